"""Looks, which are LoRAs, in a real browser."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from pipeline import metadata
from tests.browsing import AXE, VIOLATIONS, ask, draw_pictures, opened, wait_for_pictures
from tests.end_to_end.conftest import TITLES
from tools.page_states import THREE_FRAMES, open_advanced, open_picture
from ui import i18n

PROMPT = "a red star"


@pytest.fixture(scope="module")
def address(tiny_address: str) -> str:
    return tiny_address


def chosen(page: Page) -> list[str]:
    """Return the titles of the looks that are pressed."""
    return page.locator("#loras [aria-pressed=true]").all_inner_texts()


def settings_of(page: Page, index: int = 0) -> str:
    open_picture(page, index)
    return (
        page.locator("#picked-settings [data-place] [data-copy]").get_attribute("data-copy") or ""
    )


def test_a_model_has_its_picture_in_the_list(page: Page):
    open_advanced(page)
    page.locator("#checkpoint input").click()
    options = page.locator("#checkpoint [role=option]")
    expect(options).to_have_text([re.compile("checkpoint"), re.compile("pony")])
    expect(options.nth(1)).to_have_attribute("style", re.compile("look-pictures/models/pony"))
    expect(options.nth(0)).not_to_have_attribute("data-pictured", "")
    address = f"{page.url.rstrip('/')}/look-pictures/models/pony"
    assert page.request.get(address).headers["content-type"] == "image/webp"


@pytest.mark.slow
def test_a_look_is_chosen_weighed_shared_and_restored(page: Page, browser: Browser, tmp_path: Path):
    page.locator("#chip-style").click()
    tile = page.locator("#loras [data-look=pixel]")
    expect(tile.locator("img")).to_have_attribute("src", re.compile("look-pictures/loras/pixel"))
    page.wait_for_function("document.querySelector('#loras [data-look] img').naturalWidth === 160")
    expect(page.locator("#loras [data-look=ink]")).to_contain_text(TITLES["ink"])
    expect(page.locator("#loras [data-weight]")).to_have_count(0)
    tile.press("Enter")
    expect(page.locator("#chip-style")).to_have_text(TITLES["pixel"])
    expect(tile).to_be_focused()
    slider = page.locator("#loras [data-weight=pixel] input")
    expect(slider).to_have_attribute("aria-valuetext", i18n.STRENGTHS[3])
    slider.press("ArrowLeft")
    slider.press("ArrowLeft")
    slider.press("ArrowLeft")
    slider.press("ArrowLeft")
    draw_pictures(page, PROMPT)
    text = settings_of(page)
    assert metadata.from_text(text).loras == "pixel:0.8"
    assert f"{PROMPT} <lora:pixel:0.8>" in text
    link = page.locator("#picked-settings [data-place]").get_attribute("data-link") or ""
    assert "loras=pixel%3A0.8" in link
    page.reload()  # the tab keeps what was chosen
    expect(page.locator("#chip-style")).to_have_text(TITLES["pixel"])
    with opened(browser, f"{page.url.partition('?')[0]}{link.replace('pixel', 'ink')}") as other:
        expect(other.locator("#chip-style")).to_have_text(TITLES["ink"])
        other.locator("#chip-picture").click()
        other.locator("#restore-text textarea").fill(
            text.replace("pixel:", "gone:1>, <lora:pixel:")
        )
        other.locator("#restore-use").click()
        expect(other.locator("#status")).to_contain_text("available here: gone")
        expect(other.locator("#chip-style")).to_have_text(TITLES["pixel"])


@pytest.mark.slow
def test_a_look_named_in_the_prompt(page: Page):
    draw_pictures(page, f"{PROMPT} <lora:ink:0.3:0.5>")
    found = metadata.from_text(settings_of(page))
    assert (found.prompt, found.loras) == (PROMPT, "ink:0.5:0.3")
    assert chosen(page) == []  # it is named, not chosen
    page.locator("#gallery .preview [data-named='Close']").click()
    ask(page, f"{PROMPT} <lora:nowhere>")
    expect(page.get_by_role("alert")).to_contain_text("nowhere isn’t available here")
    expect(page.locator("#prompt textarea")).to_be_focused()


@pytest.mark.slow
def test_all_loras_in_advanced(page: Page):
    page.get_by_role("button", name=i18n.ADVANCED).click()
    lora = page.locator("#all-loras [data-look=ink]")
    lora.click()
    expect(page.locator("#chip-style")).to_have_text(TITLES["ink"])
    weight = page.locator("#all-loras [data-weight=ink] input")
    weight.fill("-1")
    weight.press("Tab")
    page.locator("#all-loras").get_by_role("button", name="ink style").click()
    expect(page.locator("#prompt textarea")).to_have_value("ink style")
    page.evaluate(THREE_FRAMES)
    page.locator("#generate").click()
    wait_for_pictures(page)
    assert metadata.from_text(settings_of(page)).loras == "ink:-1"
    page.locator("#chip-style").click()
    page.evaluate(AXE.read_text(encoding="utf-8"))
    assert page.evaluate(VIOLATIONS) == []
