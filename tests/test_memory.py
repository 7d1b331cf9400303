"""What the page remembers and gives back, in a real browser.

A stand-in draws: what matters here is what becomes of pictures and settings, not the pictures.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from benchmarks.processes import stand_in
from tests.browsing import opened, wait_for_pictures, width_needed
from tests.web import served
from tools.page_states import launched
from ui import words

PROMPT = "a red star"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(stand_in(10), tmp_path_factory.mktemp("memory") / "log") as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as started:
        yield started


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    with opened(browser, address) as found:
        yield found


def draw(page: Page, prompt: str = PROMPT) -> None:
    page.locator("#prompt textarea").fill(prompt)
    page.keyboard.press("ControlOrMeta+Enter")
    wait_for_pictures(page)


def advanced(page: Page) -> None:
    page.get_by_role("button", name=words.ADVANCED).click()


# --- links ---


def test_a_link_is_copied_and_fills_a_page(page: Page, browser: Browser):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    draw(page, "a <b>red</b> star & more")
    page.locator("#gallery .thumbnail-lg").nth(1).click()
    seed = page.locator("#picked-settings dd").nth(1)
    expect(seed).not_to_be_empty()
    page.get_by_role("button", name=words.COPY_LINK).click()
    expect(page.get_by_role("button", name=words.COPIED)).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()")
    assert link.startswith(f"{page.url}?prompt=a%20%3Cb%3E")

    with opened(browser, link, 390, 844, color_scheme="dark") as other:
        expect(other.locator("#prompt textarea")).to_have_value("a <b>red</b> star & more")
        expect(other.locator("#linked")).to_have_text(words.TAKEN_OVER)
        assert other.locator("#gallery img").count() == 0  # it does not draw by itself
        assert width_needed(other) == 390
        advanced(other)
        expect(other.locator("#seed input")).to_have_value(seed.inner_text())
        expect(other.get_by_label(words.RANDOMISE)).not_to_be_checked()
        other.locator("#generate").click()
        wait_for_pictures(other)
        expect(other.locator("#linked p")).to_have_count(0)
        caption = other.locator("#gallery .caption-label").first
        expect(caption).to_contain_text(f"Seed {seed.inner_text()}")


def test_a_broken_link_says_so_and_the_rest_of_it_is_used(browser: Browser, address: str):
    query = "?prompt=a+moon&style=%3Cimg+src%3Dx%3E&steps=7&seed=many&guidance_scale=99"
    with opened(browser, address + query) as page:
        expect(page.locator("#prompt textarea")).to_have_value("a moon")
        said = page.locator("#linked .warning")
        expect(said).to_contain_text("Style: <img src=x> is unknown")
        expect(said).to_contain_text("Seed: many is no number")
        expect(said).to_contain_text("Guidance scale: 99.0 is not possible here; 20 is used")
        advanced(page)
        expect(page.locator("#steps input[type=number]")).to_have_value("7")
        expect(page.get_by_label(words.RANDOMISE)).to_be_checked()


# --- a picture for each line ---


def test_enter_begins_a_line_from_the_very_next_key_on(page: Page):
    advanced(page)
    held: list[Route] = []  # so long nothing comes from the server
    page.route("**/gradio_api/**", lambda route: held.append(route))
    page.get_by_label(words.SEVERAL).check()
    page.locator("#prompt textarea").focus()
    page.keyboard.type("a moon\na star")
    expect(page.locator("#prompt textarea")).to_have_value("a moon\na star")
    expect(page.locator("#prompt textarea")).to_have_attribute("rows", "4")
    for request in held:
        request.continue_()
