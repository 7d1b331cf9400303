"""The page under conditions that are easily forgotten: small screens, paper, darkness, outages."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from serving.messages import Code, Message
from tests.browsing import (
    DRAWN_WITHIN_MS,
    STOPPED,
    Visitor,
    ask,
    await_answer,
    choose_steps,
    draw_pictures,
    fix_seed,
    opened,
    settle,
    wait_for_pictures,
    width_needed,
)
from tests.gated import Gate
from tools.page_states import PROMPT, act, open_advanced, open_picture
from ui import i18n

MOON = "a red moon"
HEBREW = "ירח אדום גדול"


def draw_for_long(page: Page, prompt: str = PROMPT) -> None:
    """Start a drawing that waits at the gate, and wait until its first step is shown."""
    choose_steps(page, 50)
    ask(page, prompt)
    page.wait_for_function("document.querySelector('#status progress')?.value > 0")


@pytest.mark.slow
def test_a_prompt_entered_while_drawing_is_drawn_next(slow_page: Page, gate: Gate):
    entries, aside = map(slow_page.locator, ("#history li button", "#status [data-aside]"))
    draw_for_long(slow_page)
    ask(slow_page, "a yellow moon")
    expect(aside).to_have_text(f"{i18n.STATUS['next']} a yellow moon")
    ask(slow_page, MOON)  # takes the place of the other one
    expect(aside).to_have_text(f"{i18n.STATUS['next']} {MOON}")
    slow_page.locator("#prompt textarea").fill("not entered")
    with gate.open():
        expect(entries.first).to_have_attribute("title", MOON, timeout=DRAWN_WITHIN_MS)
        expect(entries.nth(1)).to_have_attribute("title", PROMPT)
        expect(aside).to_have_text("")
        wait_for_pictures(slow_page)
    expect(slow_page.locator("#gallery .caption-label").first).to_contain_text(MOON)
    expect(slow_page.locator("#prompt textarea")).to_have_value("not entered")
    # The pictures of both are in the history.
    expect(slow_page.locator("#history li img")).to_have_count(2)
    await_answer(slow_page)
    expect(entries).to_have_count(2)


@pytest.mark.slow
@pytest.mark.parametrize("leave", ["Escape", "Stop"])
def test_a_stop_drops_the_prompt_that_waits(slow_page: Page, leave: str):
    aside = slow_page.locator("#status [data-aside]")
    draw_for_long(slow_page)
    ask(slow_page, MOON)
    expect(aside).to_contain_text(MOON)
    slow_page.keyboard.press("Escape") if leave == "Escape" else slow_page.locator("#stop").click()
    expect(aside).to_have_text("")
    expect(slow_page.locator("#status")).to_have_text(STOPPED)
    await_answer(slow_page)
    expect(slow_page.locator("#status")).to_have_text(STOPPED)
    expect(slow_page.locator("#history li")).to_have_count(1)


@pytest.mark.slow
def test_a_double_enter_draws_once(slow_page: Page):
    choose_steps(slow_page, 50)
    slow_page.locator("#prompt textarea").fill(PROMPT)
    # Both presses at the same moment on the page's clock, although Stop appears between them.
    slow_page.evaluate("const now = performance.now(); performance.now = () => now")
    slow_page.keyboard.press("Enter")
    expect(slow_page.locator("#stop")).to_be_visible()
    slow_page.locator("#prompt textarea").press("Enter")
    settle(slow_page)
    expect(slow_page.locator("#status [data-aside]")).to_have_text("")


NOTE_CLICKS = """() => document.addEventListener(
    "click", ({ timeStamp }) => { window.clicked = timeStamp; }, true)"""


@pytest.mark.slow
def test_a_refusal_is_shown_at_its_field_until_one_types(page: Page):
    prompt, refusal = page.locator("#prompt textarea"), page.locator("#status [role=alert]")
    page.evaluate(NOTE_CLICKS)
    for _ in range(2):  # again, although the message is the same
        page.locator("#generate").click()
        expect(refusal).to_have_text(i18n.translate(Message(Code.BLANK_PROMPT)))
        expect(prompt).to_be_focused()
        expect(prompt).to_have_attribute("aria-invalid", "true")
        page.wait_for_function("performance.now() - window.clicked > 500")  # no double click
    page.keyboard.type("a")
    expect(refusal).to_have_count(0)
    expect(prompt).not_to_have_attribute("aria-invalid", "true")


@pytest.mark.slow
def test_a_number_that_is_refused_has_the_focus(page: Page):
    seed = page.locator("#seed input")
    fix_seed(page, "-1")
    ask(page, PROMPT)
    expect(page.locator("#status [role=alert]")).to_contain_text("4294967295")
    expect(seed).to_be_focused()
    expect(seed).to_have_attribute("aria-invalid", "true")
    page.keyboard.type("7")
    expect(page.locator("#status [role=alert]")).to_have_count(0)


# Images that the browser would show as broken.
BROKEN = """() => [...document.querySelectorAll("#gallery .thumbnail-lg img")].filter(
    (image) => image.complete && !image.naturalWidth && getComputedStyle(image).opacity !== "0"
).length"""
MISSING = "#gallery .thumbnail-lg img[data-missing]"


@pytest.mark.slow
def test_pictures_that_did_not_arrive_are_plain_tiles(visitor: Visitor, address: str):
    with visitor.at(address, unless="Failed to load resource") as page:
        page.route("**/app_id", lambda route: route.fulfill(status=502))
        page.route("**/gradio_api/file=**", lambda route: route.abort("connectionreset"))
        ask(page, PROMPT)
        expect(page.locator(MISSING)).to_have_count(4, timeout=DRAWN_WITHIN_MS)
        assert page.evaluate(BROKEN) == 0
        page.unroute("**/gradio_api/file=**")
        page.unroute("**/app_id")
        expect(page.locator(MISSING)).to_have_count(0, timeout=DRAWN_WITHIN_MS)
        wait_for_pictures(page)


def direction(page: Page, selector: str) -> str:
    return page.locator(selector).first.evaluate("(part) => getComputedStyle(part).direction")


@pytest.mark.slow
def test_text_that_is_written_from_right_to_left(page: Page):
    choose_steps(page, 1)
    page.locator("#negative textarea").fill(HEBREW)
    draw_pictures(page, HEBREW)
    open_picture(page)
    expect(page.locator("#picked-settings dd").first).to_have_text(HEBREW)
    for selector in ("#prompt textarea", "#negative textarea", "#picked-settings dd"):
        assert direction(page, selector) == "rtl", selector
    page.locator("#history [role=toolbar] button").click()
    assert direction(page, "#history [data-prompt]") == "rtl"
    for caption in page.locator("#gallery :is(.caption, .caption-label)").all():
        assert caption.get_attribute("dir") == "auto"
    page.locator("#prompt textarea").fill(PROMPT)
    assert direction(page, "#prompt textarea") == "ltr"


@pytest.mark.slow
def test_what_opens_tells_whether_it_is_open(page: Page):
    opener = page.get_by_role("button", name=i18n.ADVANCED)
    for state in ("false", "true", "false"):
        expect(opener).to_have_attribute("aria-expanded", state)
        opener.click()
    for each in page.locator(".label-wrap").all():
        assert re.fullmatch("true|false", each.get_attribute("aria-expanded") or "")


# Controls in view, which do nothing on paper. The pictures themselves are buttons.
SEEN = """() => [...document.querySelectorAll("button, a, input, textarea, progress")].filter(
    (each) => each.checkVisibility({ visibilityProperty: true }) && !each.closest("#gallery")
).map((each) => each.outerHTML.slice(0, 100))"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_paper_shows_the_pictures_and_their_settings(browser: Browser, address: str, scheme: str):
    with opened(browser, address, color_scheme=scheme) as page:
        draw_pictures(page, PROMPT)
        page.emulate_media(media="print")
        assert page.evaluate(SEEN) == []
        for picture in page.locator("#gallery .thumbnail-lg img").all():
            expect(picture).to_be_visible()
        page.emulate_media(media="screen")
        page.locator("#gallery .thumbnail-lg").first.click()
        settings = page.locator("#picked-settings dd").first
        expect(settings).to_contain_text(PROMPT)
        page.emulate_media(media="print")
        assert page.evaluate(SEEN) == []
        expect(settings).to_be_visible()
        expect(settings).to_have_css("color", "rgb(0, 0, 0)")


# Boxes of controls that are too small for a finger. A checkbox and a choice are pressed by their
# labels, and a file by the zone around its field.
SMALL = """() => [...document.querySelectorAll(
    ".gradio-container :is(button, a, summary, input, textarea, label:has(> input), [role=button])"
)].filter((each) => {
    const { width, height } = each.getBoundingClientRect();
    const byLabel = each.matches("label > input, input[type=file]");
    return each.checkVisibility({ visibilityProperty: true }) && width && !byLabel
        && (width < 43.9 || height < 43.9);
}).map((each) => `${each.outerHTML.slice(0, 100)}: ${each.offsetWidth} x ${each.offsetHeight}`)"""


@pytest.mark.slow
def test_fingers_hit_every_control(browser: Browser, address: str):
    with opened(browser, address, 390, 844, has_touch=True, is_mobile=True) as page:
        draw_pictures(page, PROMPT)
        assert page.evaluate(SMALL) == []
        open_picture(page)
        open_advanced(page)
        assert page.evaluate(SMALL) == []
        for name in ("style", "count", "picture"):
            page.locator(f"#chip-{name}").tap()
            expect(page.locator(f"#panel-{name}")).to_be_visible()
            assert page.evaluate(SMALL) == []
        assert width_needed(page) == 390


# The least contrast of an unchecked box's or choice's border with what is behind it, by WCAG.
CONTRAST = """() => {
    const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const read = (colour) => {
        paint.clearRect(0, 0, 1, 1);
        paint.fillStyle = colour;
        paint.fillRect(0, 0, 1, 1);
        return [...paint.getImageData(0, 0, 1, 1).data];
    };
    const light = (colour) => {
        const [r, g, b] = read(colour).map((each) => each / 255).map(
            (each) => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (part) => {
        const colour = getComputedStyle(part).backgroundColor;
        return read(colour)[3] ? colour : behind(part.parentElement);
    };
    const ratio = (box) => {
        const around = light(behind(box.parentElement));
        const border = light(getComputedStyle(box).borderTopColor);
        return (Math.max(around, border) + 0.05) / (Math.min(around, border) + 0.05);
    };
    const boxes = ":is([type=checkbox], [type=radio]):not(:checked)";
    return [...document.querySelectorAll(boxes)].filter(
        (box) => box.checkVisibility({ opacityProperty: true })).map(ratio);
}"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_unchecked_boxes_stand_out(browser: Browser, address: str, scheme: str):
    with opened(browser, address, color_scheme=scheme) as page:
        open_advanced(page)
        ratios = page.evaluate(CONTRAST)
        page.locator("#chip-count").click()
        ratios += page.evaluate(CONTRAST)
        assert len(ratios) >= 2
        assert min(ratios) >= 3, ratios


IN_VIEW = """(part) => {
    const { top, bottom } = part.getBoundingClientRect();
    return top >= 0 && bottom <= innerHeight;
}"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "height"), [(360, 740), (390, 844), (820, 1180), (1280, 800), (1920, 1080)]
)
def test_progress_and_stop_are_in_view(
    browser: Browser, slow_address: str, gate: Gate, width: int, height: int
):
    """A new seed for an opened picture is drawn in view of the visitor, who may have scrolled."""
    with opened(browser, slow_address, width, height) as page:
        ask(page, PROMPT)
        with gate.open():
            wait_for_pictures(page)
        assert width_needed(page) == width
        open_advanced(page)
        open_picture(page)
        page.locator("#bar [data-act=use]").scroll_into_view_if_needed()
        act(page, "use")
        said = page.locator("#status [data-line] .note")
        expect(said).to_contain_text(i18n.TAKEN_OVER)
        assert said.evaluate(IN_VIEW)
        page.locator("#words").evaluate("(words) => words.scrollTo(0, words.scrollHeight)")
        page.locator("#bar [data-act=use]").scroll_into_view_if_needed()
        act(page, "more", "new_seed")
        expect(page.locator("#stop")).to_be_visible()
        page.wait_for_function("document.querySelector('#status progress')?.value > 0")
        for part in ("#stop", "#status"):
            assert page.locator(part).evaluate(IN_VIEW), part
        assert width_needed(page) == width
        page.locator("#stop").click()
        expect(page.locator("#generate")).to_be_visible()
