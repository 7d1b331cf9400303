"""Prompts in AUTOMATIC1111's syntax, in a real browser."""

import pytest
from playwright.sync_api import Page, expect

from pipeline import metadata
from pipeline.images.metadata import Settings
from tests.browsing import choose_steps, draw_pictures, keep_history, opening
from tools.page_states import act, open_advanced, open_picture
from ui import i18n

PROMPT = "(red:1.3) cube"


@pytest.fixture(scope="module")
def address(tiny_address: str) -> str:
    return tiny_address


def drawn(page: Page, prompt: str) -> Settings:
    """Draw pictures, and return the settings of the first one."""
    draw_pictures(page, prompt)
    open_picture(page)
    copies = page.locator("#picked-settings [data-place] [data-copy]")
    return metadata.from_text(copies.get_attribute("data-copy") or "")


@pytest.mark.slow
def test_a_prompt_is_read_drawn_shared_and_restored(page: Page):
    line, negative = page.locator("#length p"), page.locator("#negative-length p")
    page.locator("#prompt textarea").fill(PROMPT)
    expect(line).to_have_text("Read as: red ×1.3")
    open_advanced(page)
    page.locator("#negative textarea").fill("[dim] light")
    expect(negative).to_have_text("Read as: dim ×0.91")
    settings = drawn(page, PROMPT)
    assert (settings.prompt, settings.prompt_syntax) == (PROMPT, "a1111")
    assert settings.negative_prompt == "[dim] light"

    links = page.locator("#picked-settings [data-place]")
    link = links.get_attribute("data-link") or ""
    assert "prompt_syntax=a1111" in link

    page.locator("#prompt textarea").fill("a cube")
    page.locator("#negative textarea").fill("")
    expect(line).to_have_count(0)
    expect(negative).to_have_count(0)
    act(page, "use")
    expect(line).to_have_text("Read as: red ×1.3")


@pytest.mark.slow
def test_links_without_a_syntax_are_of_plain_text(page: Page):
    address = page.url.rstrip("/")
    query = "prompt=(red:1.3)%20cube&steps=1"
    with opening(page):
        page.goto(f"{address}/?{query}&prompt_syntax=a1111")
    expect(page.locator("#length p")).to_have_text("Read as: red ×1.3")
    with opening(page):
        page.goto(f"{address}/?{query}")
    expect(page.locator("#prompt textarea")).to_have_value(PROMPT)
    expect(page.locator("#status")).not_to_be_empty()
    assert drawn(page, PROMPT).prompt_syntax is None
    open_advanced(page)
    syntax = page.locator("#prompt-syntax input")
    expect(syntax).to_have_value("plain")
    expect(page.locator("#length p")).to_have_count(0)
    syntax.click()
    page.get_by_role("option", name="a1111").click()
    expect(page.locator("#length p")).to_have_text("Read as: red ×1.3")


@pytest.mark.slow
def test_the_steps_of_a_change_are_those_that_are_chosen(page: Page):
    page.locator("#prompt textarea").fill("[cat:dog:0.5]")
    expect(page.locator("#length p")).to_contain_text("–12: cat")
    choose_steps(page, 4)
    expect(page.locator("#length p")).to_have_text("Read as: steps 1–2: cat · steps 3–4: dog")


@pytest.mark.slow
def test_earlier_prompts_come_back_by_the_arrow_keys(page: Page):
    links = ("?prompt=a%20moon", "?prompt=a%20star%0Aa%20cube", "?prompt=a%20moon", "?seed=7")
    entries = {
        f"i{at}": {"id": f"i{at}", "link": link, "said": "", "at": at}
        for at, link in enumerate(links)
    }
    keep_history(page, entries)
    prompt = page.locator("#prompt textarea")
    prompt.focus()
    star = "a star\na cube"
    # Up moves the caret to the first line before it leads to what is older.
    for key, value in (
        *(("ArrowUp", "a moon"), ("ArrowUp", star), ("ArrowUp", star), ("ArrowDown", star)),
        *(("ArrowDown", "a moon"), ("ArrowDown", ""), ("ArrowDown", ""), ("ArrowUp", "a moon")),
        *(("x", "a moonx"), ("ArrowUp", "a moonx"), ("ArrowDown", "a moonx")),
    ):
        page.keyboard.press(key)
        expect(prompt).to_have_value(value)


@pytest.mark.slow
def test_a_prompt_is_cleared_and_brought_back(page: Page):
    prompt, clear = page.locator("#prompt textarea"), page.locator("#prompt .clear")
    expect(clear).to_be_hidden()
    names = i18n.PROMPT_BUTTONS
    prompt.fill("a moon")
    clear.click()
    expect(prompt).to_have_value("")
    expect(prompt).to_be_focused()
    expect(clear).to_have_accessible_name(names["back"])
    clear.click()
    expect(prompt).to_have_value("a moon")
    expect(clear).to_have_accessible_name(names["clear"])
    clear.click()
    page.keyboard.press("ControlOrMeta+z")
    expect(prompt).to_have_value("a moon")
    clear.click()
    page.keyboard.type("x")
    expect(clear).to_have_accessible_name(names["clear"])
    clear.click()
    page.locator("#surprise").click()  # nobody types this text
    expect(clear).to_have_accessible_name(names["clear"])
