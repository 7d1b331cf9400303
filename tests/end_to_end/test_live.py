"""Pictures that are drawn while a visitor types."""

import json

import pytest
from playwright.sync_api import Page, Request, expect

from tests.browsing import (
    AXE,
    SHOWN_WITHIN_MS,
    VIOLATIONS,
    choose,
    choose_steps,
    draw_pictures,
    picture,
)
from ui import i18n

ENTRIES = "() => Object.keys(localStorage).filter((key) => /^sdxl-history /.test(key)).length"
# Counts the moments without a live picture after the first one.
WATCH_GAPS = """() => {
  window.gaps = 0;
  new MutationObserver(() => {
    if (!document.querySelector('#live-picture img')) window.gaps += 1;
  }).observe(document.querySelector('#stage'), { subtree: true, childList: true });
}"""


@pytest.mark.slow
def test_a_picture_at_every_pause_and_all_of_them_with_enter(page: Page):
    switch, picture = page.locator("#live"), page.locator("#live-picture img")
    seeds: set[object] = set()

    def note(sent: Request) -> None:
        if sent.method == "POST" and sent.url.endswith("/live"):
            seeds.add(json.loads(sent.post_data or "")["fields"].get("seed"))

    page.on("request", note)
    expect(switch).to_have_attribute("aria-pressed", "false")
    page.locator("#prompt textarea").press_sequentially("a red")
    switch.focus()
    page.keyboard.press("Space")
    expect(switch).to_have_attribute("aria-pressed", "true")
    expect(picture).to_have_attribute("alt", f"{i18n.LIVE_PICTURE}: a red")

    page.evaluate(WATCH_GAPS)
    for text in ("a red star", "a red star on blue"):
        page.locator("#prompt textarea").fill(text)
        expect(picture).to_have_attribute("alt", f"{i18n.LIVE_PICTURE}: {text}")
    expect(picture).to_have_count(1)
    assert page.evaluate("gaps") == 0
    assert picture.evaluate("image => image.naturalWidth") == 256
    expect(page.locator("#live-picture [role=status]")).to_have_text(
        f"{i18n.LIVE_PICTURE}: a red star on blue"
    )
    assert len(seeds) == 1
    expect(page.locator("#cards")).to_be_hidden()
    assert page.evaluate(ENTRIES) == 0
    assert page.locator("#gallery img").count() == 0
    page.evaluate(AXE.read_text(encoding="utf-8"))
    assert page.evaluate(VIOLATIONS) == []

    draw_pictures(page, "a red star on green")
    expect(picture).to_have_count(0)
    expect(page.locator("#gallery .thumbnail-lg").first).to_be_visible()
    page.wait_for_function(f"({ENTRIES})() === 1", timeout=SHOWN_WITHIN_MS)

    page.locator("#prompt textarea").fill("a blue ring")
    expect(picture).to_be_visible()
    page.locator("#prompt textarea").press("Escape")
    expect(picture).to_have_count(0)
    page.reload()
    expect(switch).to_have_attribute("aria-pressed", "true")
    switch.click()
    expect(switch).to_have_attribute("aria-pressed", "false")


def test_a_blocked_prompt_and_an_empty_one_draw_nothing(page: Page):
    picture = page.locator("#live-picture img")
    page.locator("#live").click()
    page.locator("#prompt textarea").fill("a red star")
    expect(picture).to_be_visible()
    with page.expect_response(lambda answer: answer.url.endswith("/live")) as answered:
        page.locator("#prompt textarea").fill("a red gun")
    assert answered.value.status == 204
    expect(picture).to_have_attribute("alt", f"{i18n.LIVE_PICTURE}: a red star")
    page.locator("#prompt textarea").fill("")
    expect(picture).to_have_count(0)
    expect(page.locator("#cards")).to_be_visible()


@pytest.mark.slow
def test_a_picture_to_start_from_switches_it_off(page: Page):
    switch, live = page.locator("#live"), page.locator("#live-picture img")
    switch.click()
    page.locator("#prompt textarea").fill("a red star")
    expect(live).to_be_visible()
    choose(page, picture())
    expect(switch).to_be_disabled()
    expect(live).to_have_count(0)
    expect(page.locator("#status")).to_contain_text(i18n.STATUS["paused"])
    page.locator("#prompt textarea").fill("a red star on blue")
    page.locator("#free-picture").click()
    expect(switch).to_be_enabled()
    expect(page.locator("#status [data-line]")).to_contain_text(i18n.START["removed"])
    with page.expect_response(lambda answer: answer.url.endswith("/live")):
        page.locator("#prompt textarea").fill("a red ring")
    expect(live).to_be_visible()


def test_what_a_quick_picture_does_not_use_is_hidden(page: Page):
    ignored = [page.locator(f"#{each}") for each in ("steps", "scheduler", "guidance")]
    choose_steps(page, 7)
    quality = page.locator("#recipe input")
    for choice, is_used in (
        (i18n.text("quick", steps=4, title="Miniature"), False),
        (i18n.BEST, True),
    ):
        quality.click()
        page.get_by_role("option", name=choice, exact=True).click()
        for each in ignored:
            expect(each).to_be_visible(visible=is_used)
    expect(page.locator("#steps input[type=number]")).to_have_value("7")
