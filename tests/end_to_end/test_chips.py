"""The chips under the prompt, in a real browser with the real model."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browsing import draw_pictures, opened, wait_for_pictures
from ui import i18n

PROMPT = "a red star"


@pytest.mark.slow
def test_a_chip_opens_and_closes_its_panel(page: Page):
    style, size = page.locator("#chip-style"), page.locator("#chip-count")
    expect(style).to_have_attribute("aria-expanded", "false")
    style.click()
    expect(style).to_have_attribute("aria-expanded", "true")
    page.get_by_label(i18n.STYLES["Night"]).check()
    expect(style).to_have_text(i18n.STYLES["Night"])
    size.click()
    expect(page.locator("#panel-style")).to_be_hidden()
    expect(style).to_have_attribute("aria-expanded", "false")
    page.locator("#count input").first.focus()
    page.keyboard.press("Escape")
    expect(page.locator("#panel-count")).to_be_hidden()
    expect(size).to_be_focused()


def test_as_many_pictures_as_chosen(page: Page):
    page.locator("#chip-count").click()
    page.locator("#count").get_by_label("2", exact=True).check()
    expect(page.locator("#chip-count")).to_have_text(i18n.text("pictures", count=2))
    draw_pictures(page, PROMPT, 2)


def test_a_fixed_seed_is_shown_and_freed(browser: Browser, address: str):
    with opened(browser, f"{address}?prompt=a+red+star&seed=7") as page:
        chip, free = page.locator("#chip-seed"), page.locator("#free-seed")
        expect(chip).to_have_text("Seed 7")
        draw_pictures(page, PROMPT)
        expect(page.locator("#gallery img").first).to_have_attribute("alt", re.compile("Seed 7:"))
        free.click()
        expect(chip).to_have_text(i18n.SETTINGS["seed"].label)
        expect(chip).to_be_focused()
        expect(free).to_be_hidden()
        page.locator("#generate").click()
        shown = page.locator("#gallery img").first
        expect(shown).not_to_have_attribute("alt", re.compile("Seed 7:"))
        wait_for_pictures(page)
        expect(chip).to_have_text(i18n.SETTINGS["seed"].label)
