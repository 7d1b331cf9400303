"""An opened picture: its place in the window, its panel, and what can be done with it."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browsing import (
    DRAWN_WITHIN_MS,
    STOPPED,
    ask,
    await_focus_on_picture,
    choose_steps,
    draw_pictures,
    opened,
    settle,
    wait_for_pictures,
)
from tests.gated import Gate
from tools.page_states import act, open_picture
from ui import i18n

WORDS, STYLE = "a large star", "Night"
# The file of the open picture, and the one whose texts are in the panel.
FILES = """() => [
  decodeURI(document.querySelector("#gallery .preview .media-button img").src),
  document.querySelector("#picked [data-place]").dataset.key,
]"""
IS_IN_WINDOW = """(part) => {
  const { top, bottom } = part.getBoundingClientRect();
  return top >= 0 && bottom <= innerHeight;
}"""
# `#act` lies over the lower end of the window on a phone.
IS_IN_SIGHT = """(part) => {
  const { top, bottom } = part.getBoundingClientRect();
  const act = document.querySelector("#act").getBoundingClientRect();
  return top >= 0 && bottom <= (act.top > top && act.left < 20 ? act.top : innerHeight);
}"""


@pytest.fixture(scope="module")
def drawn(browser: Browser, address: str) -> Iterator[Page]:
    """Draw four pictures in a style, once for all tests that only look at them."""
    with opened(browser, address) as page:
        page.locator("#chip-style").click()
        page.locator("#style").get_by_role("radio", name=i18n.STYLES[STYLE]).check()
        draw_pictures(page, WORDS)
        yield page


@pytest.fixture
def gallery(drawn: Page) -> Page:
    """Return the page with these pictures, none of them open."""
    drawn.set_viewport_size({"width": 1280, "height": 800})
    drawn.locator("#prompt textarea").press("Escape")
    expect(drawn.locator("#gallery .preview")).to_have_count(0)
    return drawn


def selected(page: Page) -> Locator:
    return page.locator("#gallery .thumbnail-small.selected")


@pytest.mark.slow
@pytest.mark.parametrize("index", range(4))
def test_a_double_click_opens_the_picture_that_it_hits(gallery: Page, index: int):
    thumbnail = gallery.locator("#gallery .thumbnail-lg").nth(index)
    picture = thumbnail.locator("img").get_attribute("src") or ""
    thumbnail.dblclick()
    expect(gallery.locator("#gallery .media-button img")).to_have_attribute("src", picture)
    settle(gallery)
    expect(gallery.locator("#gallery .media-button img")).to_have_attribute("src", picture)
    file, key = gallery.evaluate(FILES)
    assert file.endswith(f"/{key}")
    expect(gallery.locator("#picked")).to_be_visible()


@pytest.mark.slow
def test_the_panel_belongs_to_the_open_picture_at_every_moment(gallery: Page):
    open_picture(gallery)
    await_focus_on_picture(gallery)
    presses = (
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("ArrowLeft", 0),
        ("ArrowLeft", 3),
    )
    for press, index in presses:
        gallery.keyboard.press(press)
        file, key = gallery.evaluate(FILES)
        assert file.endswith(f"/{key}")
        expect(gallery.locator("#gallery .thumbnail-small").nth(index)).to_contain_class("selected")
    expect(gallery.locator("#picked details")).to_have_attribute("open", "")


@pytest.mark.slow
def test_escape_closes_a_menu_first_and_then_the_picture(gallery: Page):
    open_picture(gallery)
    gallery.locator("#bar [data-act=more]").click()
    gallery.keyboard.press("Escape")
    expect(gallery.locator("#bar [data-act=link]")).to_be_hidden()
    expect(gallery.locator("#picked")).to_be_visible()
    gallery.keyboard.press("Escape")
    expect(gallery.locator("#picked")).to_be_hidden()


@pytest.mark.slow
def test_arrows_lead_around_and_keep_the_focus(gallery: Page):
    gallery.locator("#gallery .thumbnail-lg").first.click()
    following = gallery.get_by_role("button", name=i18n.NEXT)
    box = following.bounding_box()
    assert box is not None
    assert min(box["width"], box["height"]) >= 44
    for index in (1, 2, 3, 0):
        following.press("Enter")
        thumbnail = gallery.locator("#gallery .thumbnail-small").nth(index)
        expect(thumbnail).to_contain_class("selected")
        settle(gallery)
        expect(following).to_be_focused()
    gallery.get_by_role("button", name=i18n.PREVIOUS).click()
    expect(gallery.locator("#gallery .thumbnail-small").last).to_contain_class("selected")


@pytest.mark.slow
def test_an_open_picture_has_what_was_typed_and_its_style(gallery: Page):
    open_picture(gallery, 1)
    facts = gallery.locator("#picked-settings dd")
    expect(facts.first).to_have_text(WORDS)
    expect(facts.last).to_have_text(i18n.STYLES[STYLE])
    gallery.locator("#prompt textarea").fill("something else")
    act(gallery, "use")
    expect(gallery.locator("#prompt textarea")).to_have_value(WORDS)
    expect(gallery.locator("#style").get_by_label(i18n.STYLES[STYLE])).to_be_checked()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "height"), [(1920, 1080), (1280, 800), (820, 1180), (390, 844), (640, 400)]
)
def test_an_opened_picture_is_in_sight_as_a_whole(gallery: Page, width: int, height: int):
    gallery.set_viewport_size({"width": width, "height": height})
    picture = gallery.locator("#gallery .media-button img")
    for index in (0, 3):
        gallery.locator("#gallery .thumbnail-lg").nth(index).click()
        expect(picture).to_be_visible()
        gallery.wait_for_function(
            f"(part) => ({IS_IN_SIGHT})(part)", arg=picture.element_handle(), timeout=5000
        )
        selected(gallery).press("Escape")
        expect(picture).to_have_count(0)


FILLS = """(part) => {
  const { left, top, right, bottom } = part.getBoundingClientRect();
  return left === 0 && top === 0 && right === innerWidth && bottom === innerHeight;
}"""


@pytest.mark.slow
def test_the_open_picture_fills_the_screen(gallery: Page):
    picture = gallery.locator("#gallery .media-button img")
    full = gallery.locator("#walk [data-full]")
    gallery.locator("#gallery .thumbnail-lg").first.click()
    small = picture.bounding_box()
    full.click()
    gallery.wait_for_function(FILLS, arg=gallery.locator("#stage").element_handle())
    large = picture.bounding_box()
    assert small
    assert large
    assert large["height"] == 800 > small["height"]
    gallery.keyboard.press("ArrowRight")
    expect(gallery.locator("#gallery .thumbnail-small").nth(1)).to_have_class(
        re.compile("selected")
    )
    gallery.keyboard.press("+")
    expect(picture).to_have_attribute("style", re.compile(r"scale\(1.25\)"))
    gallery.mouse.move(640, 400)
    gallery.mouse.down()
    gallery.mouse.move(700, 400, steps=3)
    gallery.mouse.up()
    expect(picture).to_have_attribute("style", re.compile(r"translate\(60px, 0px\)"))
    gallery.keyboard.press("Escape")
    expect(full).to_be_focused()
    expect(gallery.locator("#stage[data-full]")).to_have_count(0)
    expect(picture).to_be_visible()
    expect(full).to_have_attribute("aria-pressed", "false")
    picture.click()
    expect(full).to_have_attribute("aria-pressed", "true")
    gallery.keyboard.press("Escape")
    expect(full).to_have_attribute("aria-pressed", "false")
    expect(gallery.locator("#gallery .thumbnail-small").nth(1)).to_have_class(
        re.compile("selected")
    )


@pytest.mark.slow
def test_captions_are_shown_to_the_focus_only(gallery: Page):
    thumbnails = gallery.locator("#gallery .thumbnail-lg")
    first, second = (thumbnails.nth(i).locator(".caption-label") for i in (0, 1))
    gallery.locator("#prompt textarea").hover()
    gallery.locator("#prompt textarea").focus()
    expect(first).to_have_css("opacity", "0")
    thumbnails.first.focus()
    gallery.keyboard.press("Tab")
    expect(second).to_have_css("opacity", "1")
    expect(thumbnails.first.locator("img")).to_have_attribute("alt", first.inner_text())


@pytest.mark.slow
def test_variations_bring_the_pictures_into_view_on_a_phone(browser: Browser, address: str):
    with opened(browser, address, 390, 600, has_touch=True, is_mobile=True) as page:
        draw_pictures(page, WORDS)
        expect(page.locator("#gallery .caption-label").first).to_have_css("opacity", "0")
        open_picture(page)
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        page.locator("#bar [data-act=vary]").tap()
        page.locator("#bar [data-act=subtle]").tap()
        expect(page.locator("#picked")).to_be_hidden()
        # The page replaces the tiles of the request before, so they are looked up each time.
        page.wait_for_function(
            f"""() => {{
                const part = document.querySelector("#gallery .thumbnail-lg, #previews img");
                return part !== null && ({IS_IN_WINDOW})(part);
            }}""",
            timeout=5000,
        )
        wait_for_pictures(page)


@pytest.mark.slow
def test_a_stopped_picture_is_finished(slow_page: Page, gate: Gate):
    choose_steps(slow_page, 40)
    ask(slow_page, WORDS)
    expect(slow_page.locator("#previews img")).to_have_count(4, timeout=DRAWN_WITHIN_MS)
    seed = slow_page.locator("#seed input").input_value()
    slow_page.locator("#stop").click()
    expect(slow_page.locator("#status")).to_have_text(STOPPED)
    slow_page.locator("#steps input[type=number]").fill("2")
    open_picture(slow_page, 1)
    for action in ("vary", "edit", "download"):
        expect(slow_page.locator(f"#bar [data-act={action}]")).to_have_count(0)
    slow_page.keyboard.press("Escape")
    with gate.open():
        slow_page.locator("#status [data-do=finish]").click()
        wait_for_pictures(slow_page)
    caption = slow_page.locator("#gallery .caption-label").first
    assert caption.inner_text() == f"Seed {int(seed)}: {WORDS}"
    open_picture(slow_page)
    expect(slow_page.locator("#bar [data-act=finish]")).to_have_count(0)
    expect(slow_page.locator("#picked-settings dd").nth(2)).to_have_text("40")
