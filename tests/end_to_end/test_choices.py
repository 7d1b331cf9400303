"""Sizes, variations and samplers, as a visitor uses them in a browser."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from tests import compiling
from tests.browsing import draw_pictures, opened, wait_for_pictures
from tests.checkpoints import SMALLEST
from tests.web import served, wait_until
from tools.page_states import act, open_advanced, open_picture
from ui import i18n

WIDE = (24, 16)


@pytest.fixture(scope="module")
def page(browser: Browser, tiny_address: str) -> Iterator[Page]:
    """Open the page before the second size is ready."""
    with opened(browser, tiny_address) as found:
        yield found


def shown(page: Page, name: str) -> str:
    """Return the value of a setting of the open picture."""
    term = page.locator("#picked-settings dt", has_text=name).first
    return term.locator("xpath=following-sibling::dd[1]").inner_text()


def pixels_of_the_open_picture(page: Page) -> np.ndarray:
    page.locator("#bar [data-act=download]").click()
    content = page.request.get(page.locator("#bar a").first.get_attribute("href") or "").body()
    page.locator("#bar [data-act=download]").click()
    with Image.open(BytesIO(content)) as picture:
        return np.asarray(picture, int)


@pytest.mark.slow
def test_a_size_can_be_chosen_once_it_is_ready(page: Page):
    chip = page.locator("#chip-size")
    expect(chip).to_be_visible(timeout=600_000)
    chip.click()
    wide = page.locator("#size").get_by_label(i18n.size(WIDE))
    wide.check()
    expect(chip).to_have_text(i18n.size(WIDE))
    draw_pictures(page, "a star")
    open_picture(page)
    expect(page.locator("#picked-settings")).to_contain_text(i18n.size(WIDE))


@pytest.mark.slow
def test_variations_of_the_open_picture(page: Page):
    seed = shown(page, i18n.SETTINGS["seed"].label)
    act(page, "vary", "strong")
    expect(page.locator("#picked")).to_be_hidden()
    wait_for_pictures(page)
    captions = page.locator("#gallery .caption-label")
    expect(captions.first).to_contain_text(f"Seed {seed}, variation ")
    assert len(set(captions.all_inner_texts())) == 4

    page.locator("#gallery .thumbnail-lg").last.click()
    expect(page.locator("#picked-settings")).to_contain_text(i18n.SETTINGS["variation_seed"].label)
    drawn = pixels_of_the_open_picture(page)
    assert shown(page, i18n.SETTINGS["seed"].label) == seed
    assert shown(page, i18n.SETTINGS["variation_strength"].label) == "0.6"
    variation = shown(page, i18n.SETTINGS["variation_seed"].label)
    open_advanced(page)
    act(page, "use")
    expect(page.locator("#variation-seed input")).to_have_value(variation)
    expect(page.locator("#variation-strength input[type=number]")).to_have_value("0.6")
    expect(page.locator("#seed input")).to_have_value(seed)
    expect(page.locator("#size").get_by_label(i18n.size(WIDE))).to_be_checked()

    page.locator("#generate").click()
    expect(page.locator("#picked")).to_be_hidden()
    wait_for_pictures(page)
    page.locator("#gallery .thumbnail-lg").first.click()
    expect(page.locator("#picked-settings")).to_contain_text(i18n.SETTINGS["variation_seed"].label)
    assert shown(page, i18n.SETTINGS["variation_seed"].label) == variation
    # The picture's index among the four may change how a number is rounded.
    assert np.abs(pixels_of_the_open_picture(page) - drawn).max() <= 1


@pytest.mark.slow
def test_a_sampler_from_a_link_and_another_from_the_page(page: Page):
    page.goto(f"{page.url.partition('?')[0]}?prompt=a%20ring&steps=3&scheduler=heun")
    open_advanced(page)
    sampler = page.locator("#scheduler input")
    expect(sampler).to_have_value("Heun")
    expect(page.locator("#sigma-schedule input")).to_have_value(i18n.text("automatic", own=""))
    expect(page.locator("#timesteps")).to_be_hidden()
    sampler.click()
    page.get_by_role("option", name="Euler a", exact=True).click()
    page.locator("#generate").click()
    wait_for_pictures(page)
    open_picture(page)
    assert shown(page, i18n.SETTINGS["scheduler"].label) == "Euler a"


@pytest.mark.slow
def test_a_picture_is_drawn_again_larger(browser: Browser, tmp_path: Path):
    program = ["app.py", "--model", str(SMALLEST), "--sizes", "16x16,32x32"]
    with compiling.quickly(), served(program, tmp_path / "log") as url:
        wait_until(lambda: not httpx.get(f"{url}/v1/model").json()["coming_sizes"], within_s=600)
        with opened(browser, f"{url}/?steps=2&images=2") as page:
            draw_pictures(page, "a star", 2)
            open_picture(page, 1)
            seed = shown(page, i18n.SETTINGS["seed"].label)
            act(page, "more", "larger")
            expect(page.locator("#gallery .preview")).to_have_count(0)
            wait_for_pictures(page, 1)
            open_picture(page)
            expect(page.locator("#picked-settings")).to_contain_text(i18n.size((32, 32)))
            assert shown(page, i18n.SETTINGS["seed"].label) == seed
            assert shown(page, i18n.SETTINGS["strength"].label) == "0.5"  # of two steps
            page.locator("#bar [data-act=more]").click()
            expect(page.locator("#bar [data-act=link]")).to_be_visible()
            expect(page.locator("#bar [data-act=larger]")).to_have_count(0)
