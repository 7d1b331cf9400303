"""The page without a mouse: every part can be reached, and the focus is always visible."""

import pytest
from playwright.sync_api import Page, expect

from tests.browsing import (
    DRAWN_WITHIN_MS,
    IS_SEEN,
    STOPPED,
    choose_steps,
    go,
    wait_for_pictures,
)
from tests.web import STEPS
from tools.page_states import PROMPT
from ui import i18n


@pytest.mark.slow
def test_from_a_prompt_to_an_earlier_request(page: Page):
    press = page.keyboard.press
    expect(page.locator("#prompt textarea")).to_be_focused()
    page.wait_for_function(IS_SEEN)
    page.keyboard.type(PROMPT)
    go(page, "#generate")
    press("Space")
    wait_for_pictures(page)
    expect(page.locator("#generate")).to_be_focused()

    large = page.locator("#gallery .thumbnail-lg")
    seeds = page.locator("#picked-settings dd").nth(1)
    go(page, "#gallery .thumbnail-lg")
    press("Enter")
    go(page, "#picked summary")
    press("Enter")
    expect(seeds).to_be_visible()
    go(page, "#gallery .thumbnail-small", "Shift+Tab")
    first = int(seeds.inner_text())
    press("ArrowRight")
    expect(seeds).to_have_text(str((first + 1) % 2**32))
    go(page, "#picked button")  # elements behind the open picture are skipped
    expect(large.first).to_be_hidden()
    go(page, "#gallery .thumbnail-small", "Shift+Tab")
    press("Escape")
    expect(page.locator("#picked")).to_be_hidden()
    expect(large.nth(1)).to_be_focused()
    press("Enter")
    expect(seeds).to_be_visible()
    expect(large.first).to_be_hidden()
    go(page, "#bar [data-act=vary]")
    press("Enter")
    expect(page.locator("#bar [data-act=subtle]")).to_be_focused()
    press("ArrowDown")
    expect(page.locator("#bar [data-act=strong]")).to_be_focused()
    press("Escape")  # closes the list alone
    expect(page.locator("#bar [data-act=vary]")).to_be_focused()
    press("Escape")
    expect(page.locator("#picked")).to_be_hidden()
    expect(large.nth(1)).to_be_focused()

    steps = page.locator("#steps input[type=number]")
    go(page, "#chip-style", "Shift+Tab")
    press("Enter")
    go(page, "#style input")
    press("Tab")
    press("Space")
    expect(page.locator("#style input").nth(1)).to_be_checked()
    press("Escape")
    expect(page.locator("#chip-style")).to_be_focused()
    expect(page.locator("#style")).to_be_hidden()
    go(page, "#advanced")
    press("Enter")
    expect(steps).to_be_visible()
    go(page, "#steps input[type=range]")
    for _ in range(3):
        press("ArrowLeft")
    expect(steps).to_have_value(str(STEPS - 3))
    press("ControlOrMeta+Enter")
    expect(page.locator("#history li")).to_have_count(2, timeout=DRAWN_WITHIN_MS)
    wait_for_pictures(page)
    # Once both entries have images, the list and the focus no longer change.
    expect(page.locator("#history li img")).to_have_count(2)

    go(page, "#history [role=toolbar] button")
    press("ArrowRight")
    expect(page.locator("#history [role=toolbar] button").nth(1)).to_be_focused()
    page.wait_for_function(IS_SEEN)
    press("Tab")  # the filmstrip is one stop on the way
    expect(page.locator("#history-open")).to_be_focused()
    press("Enter")
    go(page, "#history li")  # the grid is one stop, too
    press("End")
    expect(page.locator("#history li button").last).to_be_focused()
    press("ArrowLeft")
    press("ArrowRight")
    press("Enter")
    expect(page.locator("#gallery .caption-label").first).to_contain_text(f"Seed {first}")
    expect(steps).to_have_value(str(STEPS - 3))
    assert page.evaluate(IS_SEEN)
    go(page, "#history [data-use]")
    press("Enter")
    expect(steps).to_have_value(str(STEPS))
    expect(page.locator("#style input").first).to_be_checked()
    go(page, "#history li", "Shift+Tab")
    press("Delete")
    expect(page.locator("#history li")).to_have_count(1)
    expect(page.locator("#history li button")).to_be_focused()
    page.locator("#history [data-undo]").press("Enter")
    expect(page.locator("#history li")).to_have_count(2)
    expect(page.locator("#history li button").last).to_be_focused()


@pytest.mark.slow
def test_stop_takes_the_focus_of_generate_and_gives_it_back(slow_page: Page):
    choose_steps(slow_page, 50)
    slow_page.locator("#prompt textarea").focus()
    slow_page.keyboard.type(PROMPT)
    go(slow_page, "#generate")
    slow_page.keyboard.down("Enter")
    expect(slow_page.locator("#stop")).to_be_focused()
    slow_page.keyboard.down("Enter")  # the key is still held down
    slow_page.wait_for_function("document.querySelector('#status progress')?.value > 0")
    expect(slow_page.locator("#stop")).to_be_focused()
    slow_page.keyboard.up("Enter")
    slow_page.keyboard.press("Enter")
    expect(slow_page.locator("#status")).to_have_text(STOPPED)
    expect(slow_page.locator("#generate")).to_be_focused()
    expect(slow_page.locator("#generate")).to_have_text(i18n.GENERATE)
