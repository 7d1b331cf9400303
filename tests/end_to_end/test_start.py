"""Pictures to start from, in a browser."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from pipeline.images.metadata import Settings
from tests import compiling
from tests.browsing import (
    Visitor,
    ask,
    choose,
    draw_pictures,
    opened,
    opening,
    picture,
    wait_for_pictures,
    width_needed,
)
from tests.checkpoints import make_inpainting
from tests.web import served
from tools.page_states import act
from ui import i18n

# Whether the tab keeps a picture, and how its part was marked.
KEPT = "/data:image.*inverts/.test(sessionStorage.getItem('sdxl-started /?steps=2&images=1'))"


def mark_all(page: Page) -> None:
    """Mark the whole picture, by keyboard alone."""
    page.locator("#start [data-do=mark]").press("Enter")
    page.locator("#start [data-do=invert]").press("Enter")
    page.locator("#start [data-do=done]").press("Enter")
    expect(page.locator("#start dialog")).to_have_count(0)


def test_a_picture_is_drawn_again_compared_and_used_once_more(visitor: Visitor, address: str):
    with visitor.at(f"{address}/?steps=2&images=1") as page:
        loaded: list[str] = []
        bodies: list[bytes] = []
        page.on("request", lambda each: loaded.append(each.url) if "/start/" in each.url else None)
        page.on("request", lambda each: bodies.append(each.post_data_buffer or b""))
        chip, split = page.locator("#chip-picture"), page.locator("#before input")
        page.locator("#chip-picture").click()
        expect(page.locator("#restore-picture")).to_be_visible()
        assert loaded == []
        chip.click()
        choose(page, picture())
        expect(chip).to_have_attribute("data-strength", "80 %")
        mark_all(page)
        expect(chip).to_have_attribute("data-strength", "100 %")
        page.locator("#start-strength input").fill("60")
        expect(chip).to_have_attribute("data-strength", "60 %")
        page.wait_for_function(KEPT)
        with opening(page):
            page.reload()
        expect(chip).to_have_attribute("data-strength", "60 %")
        expect(page.locator("#panel-picture")).to_be_hidden()
        expect(page.locator("#ask[data-masked]")).to_be_visible()
        draw_pictures(page, "", 1)
        page.locator("#gallery .thumbnail-lg").click()
        split.press("ArrowRight")
        expect(split).to_have_value("1")
        expect(page.locator("#before img")).to_be_visible()
        page.locator("#picked summary").click()
        strength = page.locator("#picked dt", has_text=i18n.SETTINGS["strength"].label)
        expect(strength.locator("+ dd")).to_have_text("0.6")
        act(page, "edit")
        preview = page.locator("#start .preview canvas")
        expect(preview).to_have_js_property("width", 256)  # the model's own size
        page.locator("#free-picture").click()
        expect(preview).to_be_hidden()
        expect(chip).to_be_focused()
        page.wait_for_function(f"!{KEPT}")
        assert not any(b"data:image" in body for body in bodies)  # what the tab keeps stays there


@pytest.mark.slow
def test_a_part_is_drawn_with_the_pointer_undone_and_erased(page: Page):
    choose(page, picture())
    page.locator("#start [data-do=mark]").click()
    sheet = page.locator("#start .sheet")
    box = sheet.bounding_box()
    assert box

    def marked() -> int:
        return sheet.locator("canvas").last.evaluate(
            """(canvas) => canvas.getContext("2d")
              .getImageData(0, 0, canvas.width, canvas.height)
              .data.filter((value, i) => i % 4 === 3 && value > 127).length"""
        )

    def draw_line() -> None:
        page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.5 * box["height"])
        page.mouse.down()
        page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 0.5 * box["height"], steps=5)
        page.mouse.up()

    draw_line()
    line = marked()
    assert 0.02 < line / (384 * 256) < 0.5
    page.locator("#start [data-do=invert]").click()
    assert abs(marked() - (384 * 256 - line)) < 0.01 * 384 * 256
    page.keyboard.press("ControlOrMeta+z")
    assert abs(marked() - line) < 0.02 * line
    page.locator("#start [data-do=erase]").click()
    draw_line()
    assert marked() < 0.02 * line
    page.locator("#start [data-do=draw]").click()
    page.locator("#start [data-do=clear]").click()
    page.locator("#start dialog summary").click()
    for name, value in (("x", 10), ("y", 20), ("wide", 30), ("high", 40)):
        page.locator(f"#start dialog [name={name}]").fill(str(value))
    page.locator("#start [data-do=add]").click()
    assert marked() == 30 * 40
    page.keyboard.press("Escape")
    expect(page.locator("#start dialog")).to_have_count(0)
    expect(page.locator("#start .masked")).to_be_visible()
    expect(page.locator("#start .redrawn")).to_be_visible()
    page.locator("#start [data-do=mark]").click()
    draw_line()
    assert marked() > 30 * 40
    page.locator("#start [data-do=cancel]").click()
    page.locator("#start [data-do=mark]").click()
    assert marked() == 30 * 40
    page.locator("#start [data-do=done]").click()
    page.locator("#start-strength input").fill("60")
    expect(page.locator("#start .redrawn")).to_be_hidden()
    expect(page.locator("#panel-picture")).to_be_visible()  # Esc closed the window alone


@pytest.mark.slow
def test_an_extended_picture_keeps_its_old_part(visitor: Visitor, address: str):
    with visitor.at(f"{address}/?steps=2&images=1") as page:
        choose(page, picture())
        page.locator("#start [data-start] > details summary").click()
        page.locator("#start [name=right]").fill("128")
        expect(page.locator("#start .masked [type=checkbox]")).to_be_checked()
        handle = page.locator("#start .handle.left")
        handle.hover()
        page.mouse.down()
        page.mouse.move(0, 300)
        page.mouse.up()
        expect(page.locator("#start [name=left]")).not_to_have_value("0")
        page.locator("#start [name=left]").fill("0")
        draw_pictures(page, "a red circle", 1)
        drawn = page.locator("#gallery .thumbnail-lg img")
        expect(drawn).to_have_js_property("naturalWidth", 384 + 128)
        expect(drawn).to_have_js_property("naturalHeight", 256)
        drawn.click()
        page.locator("#picked summary").click()
        expect(page.locator("#picked dl")).to_contain_text(i18n.size((384 + 128, 256)))
        page.locator("#picked summary").click()
        line, pair = page.locator("#before .line"), page.locator("#before .pair").bounding_box()
        assert pair
        line.hover(position={"x": 18, "y": 60})  # the panel's arrow is further down
        page.mouse.down()
        # The middle of the slider's thumb, which stays inside the picture.
        page.mouse.move(pair["x"] + 12 + 0.3 * (pair["width"] - 24), pair["y"] + 80, steps=3)
        page.mouse.up()
        expect(page.locator("#before input")).to_have_value("30")
        expect(page.locator("#gallery .preview")).to_be_visible()


@pytest.mark.slow
def test_the_pictures_come_into_sight_on_a_phone(browser: Browser, address: str):
    with opened(browser, f"{address}/?steps=2&images=1", 390, 844) as page:
        choose(page, picture())
        mark_all(page)
        stage = page.locator("#stage")
        expect(stage).not_to_be_in_viewport(ratio=0.5)
        page.locator("#generate").click()
        expect(stage).to_be_in_viewport(ratio=0.9)
        wait_for_pictures(page, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("language", "width"), [("de", 390), ("es", 390), ("fr", 1280)])
def test_the_tools_speak_the_pages_language(
    browser: Browser, address: str, language: str, width: int
):
    with i18n.speaking(language):
        texts = i18n.START
    with opened(browser, address, width, locale=language) as page:
        choose(page, picture(made=Settings("a star", "", seed=3, num_inference_steps=2)))
        expect(page.locator("#start-strength small").first).to_have_text(texts["least"])
        page.locator("#start [data-do=mark]").click()
        expect(page.locator("#start dialog")).to_have_attribute("aria-label", texts["editor"])
        assert width_needed(page) <= width
        page.locator("#start [data-do=done]").click()
        page.locator("#restore-use").click()  # it was drawn from words: the picture goes
        expect(page.locator("#prompt textarea")).to_have_value("a star")
        expect(page.locator("#start .preview")).to_be_hidden()
        expect(page.locator("#restored dl")).to_have_count(0)
        expect(page.locator("#chip-picture")).to_be_focused()
        choose(page, picture(made=Settings("a moon", "", seed=3, num_inference_steps=2)))
        expect(page.locator("#restored dl")).to_be_visible()
        page.locator("#free-picture").click()
        expect(page.locator("#restored dl")).to_have_count(0)
        expect(page.locator("#restore-use")).to_be_hidden()


@pytest.mark.slow
def test_a_new_seed_draws_from_the_opened_pictures_own_start(visitor: Visitor, address: str):
    with visitor.at(f"{address}/?steps=4&images=1&strength=0.5") as page:
        choose(page, picture())
        expect(page.locator("#chip-picture")).to_have_attribute("data-strength", "50 %")
        draw_pictures(page, "a red circle", 1)
        page.locator("#free-picture").click()
        page.locator("#gallery .thumbnail-lg").click()
        act(page, "new_seed", "more")
        expect(page.locator("#gallery .preview")).to_have_count(0)
        wait_for_pictures(page, 1)
        page.locator("#gallery .thumbnail-lg").click()
        expect(page.locator("#before input")).to_be_visible()
        page.wait_for_function("history.state")
        page.keyboard.press("Escape")
        expect(page.locator("#gallery .preview")).to_have_count(0)
        page.wait_for_function("!history.state")  # going back would abort the reload
        # After a reload the browser no longer has the picture, and the page says so.
        page.reload()
        page.locator("#gallery .thumbnail-lg").click()
        act(page, "new_seed", "more")
        expect(page.locator("#status [role=alert]")).to_contain_text("no longer kept")


@pytest.mark.slow
def test_a_picture_that_cannot_be_sent_is_reported(visitor: Visitor, address: str):
    with visitor.at(f"{address}/?steps=2", unless="Failed to load resource") as page:
        choose(page, picture())
        page.route("**/gradio_api/upload", lambda route: route.fulfill(status=429))
        ask(page, "a red circle")
        expect(page.locator("#status [role=alert]")).to_contain_text("Too many files")
        page.unroute("**/gradio_api/upload")


@pytest.mark.slow
def test_a_picture_that_cannot_be_kept_is_not_replaced_by_an_older_one(page: Page):
    choose(page, picture())
    key = "sdxl-started /?"
    page.wait_for_function("(key) => sessionStorage.getItem(key)", arg=key)
    page.evaluate(
        """() => {
            const set = Storage.prototype.setItem;
            Storage.prototype.setItem = function (key, value) {
                if (key.startsWith("sdxl-started")) throw new Error("no room");
                set.call(this, key, value);
            };
        }"""
    )
    mark_all(page)
    page.wait_for_function("(key) => sessionStorage.getItem(key) === null", arg=key)
    page.reload()
    expect(page.locator("#chip-picture")).to_be_visible()
    expect(page.locator("#ask[data-start]")).to_have_count(0)


@pytest.fixture(scope="module")
def inpainting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of the real program with a tiny model that needs a mask."""
    folder = tmp_path_factory.mktemp("inpainting")
    program = ["app.py", "--model", str(make_inpainting(folder))]
    with compiling.quickly(), served(program, folder / "log") as url:
        yield url


@pytest.mark.slow
def test_a_model_that_needs_a_mask_asks_for_it(visitor: Visitor, inpainting: str):
    with visitor.at(f"{inpainting}/?steps=2&images=1") as page:
        refusal, note = page.locator("#status [role=alert]"), page.locator("#mask-first")
        expect(page.locator("#panel-picture")).to_be_visible()
        expect(note).to_have_text(i18n.MASK_FIRST)
        for example in ("#cards", "#surprise"):
            expect(page.locator(example)).to_be_hidden()
        page.locator("#chip-picture").click()
        ask(page, "a star")
        expect(refusal).to_contain_text(i18n.SETTINGS["image"].label)
        expect(page.locator("#restore-picture button")).to_be_focused()  # the panel is open again
        choose(page, picture())
        ask(page, "a star")
        expect(refusal).to_contain_text(i18n.SETTINGS["mask"].label)
        expect(page.locator("#start [data-do=mark]")).to_be_focused()
        mark_all(page)
        expect(note).to_be_hidden()
        draw_pictures(page, "a star", 1)
        page.wait_for_function(KEPT)
        page.reload()  # the panel is mounted before the part that keeps the picture
        expect(page.locator("#start .preview canvas")).to_be_visible()
        expect(page.locator("#ask[data-masked]")).to_be_visible()
