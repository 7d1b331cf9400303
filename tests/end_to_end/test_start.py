"""Pictures to start from, in a browser."""

from collections.abc import Iterator
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from pipeline.images.metadata import Settings
from tests import compiling
from tests.browsing import (
    Visitor,
    ask,
    choose,
    draw_pictures,
    drop,
    go,
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


STRENGTH = i18n.SETTINGS["strength"].label


def mark_all(page: Page) -> None:
    """Mark the whole picture, by keyboard alone."""
    page.locator("#edit [data-do=invert]").press("Enter")


@pytest.mark.slow
def test_a_picture_is_drawn_again_compared_and_used_once_more(visitor: Visitor, address: str):
    with visitor.at(f"{address}/?steps=2&images=1") as page:
        loaded: list[str] = []
        bodies: list[bytes] = []
        page.on("request", lambda each: loaded.append(each.url) if "/start/" in each.url else None)
        page.on("request", lambda each: bodies.append(each.post_data_buffer or b""))
        chip, split = page.locator("#chip-picture"), page.locator("#before input")
        edit = page.locator("#edit")
        chip.click()
        expect(page.locator("#restore-picture")).to_be_visible()
        assert loaded == []
        choose(page, picture())
        expect(page.locator("#panel-picture")).to_be_hidden()
        expect(page.locator("#cards")).to_be_hidden()
        expect(chip).to_have_attribute("title", f"{STRENGTH} 80 %")
        mark_all(page)
        expect(chip).to_have_attribute("title", f"{STRENGTH} 100 %")
        page.locator("#start-strength input").fill("60")
        expect(chip).to_have_attribute("title", f"{STRENGTH} 60 %")
        page.wait_for_function(KEPT)
        with opening(page):
            page.reload()
        expect(edit).to_be_visible()
        expect(chip).to_have_attribute("title", f"{STRENGTH} 60 %")
        expect(page.locator("#ask[data-masked]")).to_be_visible()
        draw_pictures(page, "", 1)
        expect(edit).to_be_hidden()
        page.locator("#gallery .thumbnail-lg").click()
        expect(split).to_have_value("50")
        split.press("ArrowRight")
        expect(split).to_have_value("51")
        expect(page.locator("#before img")).to_be_visible()
        page.locator("#picked summary").click()
        strength = page.locator("#picked dt", has_text=STRENGTH)
        expect(strength.locator("+ dd")).to_have_text("0.6")
        act(page, "edit")
        expect(edit).to_be_focused()
        for other in ("#gallery", "#before", "#walk", "#picked"):
            expect(page.locator(other)).to_be_hidden()
        shown = page.locator("#edit .layers canvas").first
        expect(shown).to_have_js_property("width", 256)  # the model's own size
        page.locator("#free-picture").click()
        expect(edit).to_be_hidden()
        expect(chip).to_be_focused()
        page.wait_for_function(f"!{KEPT}")
        expect(page.locator("#status")).to_contain_text(i18n.START["removed"])
        page.locator("#status [data-do=undo]").click()
        expect(edit).to_be_visible()
        page.locator("#edit [data-do=remove]").click()
        expect(edit).to_be_hidden()
        assert not any(b"data:image" in body for body in bodies)  # what the tab keeps stays there


def marked(page: Page) -> int:
    """Return the number of marked pixels."""
    return (
        page.locator("#edit .layers canvas")
        .nth(1)
        .evaluate(
            """(canvas) => canvas.getContext("2d")
          .getImageData(0, 0, canvas.width, canvas.height)
          .data.filter((value, i) => i % 4 === 3 && value > 127).length"""
        )
    )


def draw_line(page: Page) -> None:
    """Drag the pointer over the picture, from the left to the right."""
    box = page.locator("#edit .layers").bounding_box()
    assert box
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.6 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 0.6 * box["height"], steps=5)
    page.mouse.up()


NOTE_FILES = """() => {
  const { append } = FormData.prototype;
  window.sent = [];
  FormData.prototype.append = function (name, file, ...more) {
    window.sent.push(file);
    append.call(this, name, file, ...more);
  };
}"""
NOTED = """() => Promise.all(
    window.sent.map(async (file) => [...new Uint8Array(await file.arrayBuffer())]))"""


def test_what_is_drawn_on_the_stage_is_sent_as_the_mask(visitor: Visitor, address: str):
    with visitor.at(f"{address}/?steps=2&images=1") as page:
        choose(page, picture())
        draw_line(page)
        line = marked(page)
        assert 0.02 < line / (384 * 256) < 0.5
        page.keyboard.press("Escape")
        expect(page.locator("#edit")).to_be_hidden()
        expect(page.locator("#cards")).to_be_visible()
        page.locator("#chip-picture").click()
        expect(page.locator("#edit .sheet")).to_be_visible()
        expect(page.locator("#panel-picture")).to_be_hidden()
        assert marked(page) == line
        page.locator("#edit [data-do=done]").click()
        expect(page.locator("#chip-picture")).to_be_focused()
        page.evaluate(NOTE_FILES)
        draw_pictures(page, "a red circle", 1)
        image, mask = (Image.open(BytesIO(bytes(file))) for file in page.evaluate(NOTED))
        assert image.size == mask.size == (384, 256)
        white = np.asarray(mask.convert("L")) > 127
        assert abs(int(white.sum()) - line) < 0.02 * line


@pytest.mark.slow
def test_a_part_is_drawn_with_the_pointer_undone_and_erased(page: Page):
    choose(page, picture())
    brush, ring = page.locator("#edit .brush"), page.locator("#edit .ring")
    draw_line(page)
    line = marked(page)
    page.locator("#edit [data-do=invert]").click()
    assert abs(marked(page) - (384 * 256 - line)) < 0.01 * 384 * 256
    page.keyboard.press("ControlOrMeta+z")
    assert abs(marked(page) - line) < 0.02 * line
    page.locator("#edit [data-do=erase]").click()
    expect(page.locator("#edit [data-do=erase]")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("]")
    expect(brush).to_have_value("11")
    draw_line(page)
    assert marked(page) == 0
    width = ring.evaluate("(ring) => ring.offsetWidth")
    page.keyboard.press("[")
    page.keyboard.press("[")
    expect(brush).to_have_value("7")
    assert ring.evaluate("(ring) => ring.offsetWidth") < width
    page.locator("#prompt textarea").press("[")
    expect(page.locator("#prompt textarea")).to_have_value("[")
    expect(brush).to_have_value("7")
    page.locator("#edit [data-do=draw]").click()
    page.locator("#edit [data-do=clear]").click()
    page.locator("#edit .box summary").click()
    for name, value in (("x", 10), ("y", 20), ("wide", 30), ("high", 40)):
        page.locator(f"#edit [name={name}]").fill(str(value))
    page.locator("#edit [data-do=add]").click()
    assert marked(page) == 30 * 40
    expect(page.locator("#edit .masked")).to_be_visible()
    expect(page.locator("#edit .note")).to_contain_text(i18n.START["redrawn"])
    page.locator("#start-strength input").fill("60")
    expect(page.locator("#edit .note")).not_to_contain_text(i18n.START["redrawn"])


@pytest.mark.slow
def test_a_picture_is_edited_by_keyboard_alone_and_nothing_moves(page: Page):
    page.set_viewport_size({"width": 1280, "height": 1000})  # where all tools are in sight
    press, edit, generate = page.keyboard.press, page.locator("#edit"), page.locator("#generate")
    place = generate.bounding_box()
    drop(page, "#prompt textarea", "disc.png", picture()["buffer"])
    expect(edit).to_be_visible()
    assert generate.bounding_box() == place
    for selector, key in (
        ("[data-do=invert]", "Space"),
        (".brush", "]"),
        (".box summary", "Enter"),
    ):
        go(page, f"#edit {selector}")
        press(key)
    assert marked(page) == 384 * 256
    expect(page.locator("#edit .brush")).to_have_value("11")
    press("ControlOrMeta+z")
    go(page, "#edit [data-do=add]")
    press("Enter")
    assert marked(page) == 192 * 128  # the middle of the picture
    go(page, "#edit .masked input", "Shift+Tab")
    press("Space")
    expect(page.locator("#start-padding input")).to_have_value("32")
    go(page, "#start-strength input", "Shift+Tab")
    press("ArrowLeft")
    expect(page.locator("#start-strength output")).to_have_text("99 %")
    press("Escape")
    expect(edit).to_be_hidden()
    assert generate.bounding_box() == place
    expect(page.locator("#chip-picture")).to_be_focused()
    press("Enter")
    expect(edit).to_be_visible()
    assert generate.bounding_box() == place


@pytest.mark.slow
def test_an_extended_picture_keeps_its_old_part(visitor: Visitor, address: str):
    with visitor.at(f"{address}/?steps=2&images=1") as page:
        choose(page, picture())
        page.locator("#edit .sides summary").click()
        page.locator("#edit [name=right]").fill("128")
        expect(page.locator("#edit .masked [type=checkbox]")).to_be_checked()
        page.locator("#edit .handle.left").hover()
        page.mouse.down()
        page.mouse.move(0, 300)
        page.mouse.up()
        expect(page.locator("#edit [name=left]")).not_to_have_value("0")
        page.locator("#edit [name=left]").fill("0")
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
def test_a_picture_is_edited_on_a_phone(browser: Browser, address: str):
    url = f"{address}/?steps=2&images=1"
    with opened(browser, url, 390, 844, has_touch=True, is_mobile=True) as page:
        choose(page, picture())
        for part in (".tools", ".sheet", "#start-strength"):
            expect(page.locator(f"#edit {part}")).to_be_in_viewport(ratio=1)
        assert width_needed(page) == 390
        box = page.locator("#edit .layers").bounding_box()
        assert box
        page.touchscreen.tap(box["x"] + 60, box["y"] + 60)
        assert marked(page) > 100
        # Beside the picture fingers scroll the page.
        beside = "(y) => !document.elementFromPoint(6, y).closest('#edit')"
        assert page.evaluate(beside, box["y"] + 10)
        page.locator("#generate").tap()
        expect(page.locator("#edit")).to_be_hidden()
        expect(page.locator("#stage")).to_be_in_viewport(ratio=0.9)
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
        expect(page.locator("#edit .tools")).to_have_attribute("aria-label", texts["tools"])
        mark_all(page)
        for summary in page.locator("#edit summary").all():
            summary.click()
        assert width_needed(page) <= width
        assert page.locator("#edit .by-numbers").evaluate(
            "(part) => part.scrollWidth <= part.offsetWidth"
        )
        # It was drawn from words: the picture goes.
        page.locator("#edit [data-do=restore]").click()
        expect(page.locator("#prompt textarea")).to_have_value("a star")
        expect(page.locator("#edit")).to_be_hidden()
        expect(page.locator("#restored dl")).to_have_count(0)
        expect(page.locator("#chip-picture")).to_be_focused()
        choose(page, picture(made=Settings("a moon", "", seed=3, num_inference_steps=2)))
        expect(page.locator("#edit .offer p")).to_have_text("a moon")
        page.locator("#free-picture").click()
        expect(page.locator("#restored dl")).to_have_count(0)
        choose(page, picture())
        expect(page.locator("#edit .offer")).to_be_hidden()


@pytest.mark.slow
def test_a_new_seed_draws_from_the_opened_pictures_own_start(visitor: Visitor, address: str):
    with visitor.at(f"{address}/?steps=4&images=1&strength=0.5") as page:
        choose(page, picture())
        expect(page.locator("#chip-picture")).to_have_attribute("title", f"{STRENGTH} 50 %")
        draw_pictures(page, "a red circle", 1)
        page.locator("#free-picture").click()
        page.locator("#gallery .thumbnail-lg").click()
        act(page, "more", "new_seed")
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
        act(page, "more", "new_seed")
        expect(page.locator("#status [role=alert]")).to_contain_text("no longer kept")


# Has no canvas become a file until `released` is called.
HOLD_FILES = """() => {
  const { toBlob } = HTMLCanvasElement.prototype;
  const held = new Promise((release) => { window.released = release; });
  HTMLCanvasElement.prototype.toBlob = function (...call) {
    held.then(() => toBlob.apply(this, call));
  };
}"""


@pytest.mark.slow
def test_a_picture_that_cannot_be_sent_is_reported(visitor: Visitor, address: str):
    with visitor.at(f"{address}/?steps=2", unless="Failed to load resource") as page:
        choose(page, picture())
        page.route("**/gradio_api/upload", lambda route: route.fulfill(status=429))
        page.evaluate(HOLD_FILES)
        mark_all(page)
        ask(page, "a red circle")
        expect(page.locator("[data-uploading] #generate")).to_be_visible()  # at once
        page.evaluate("window.released()")
        expect(page.locator("#status [role=alert]")).to_contain_text("Too many files")
        page.unroute("**/gradio_api/upload")


@pytest.mark.slow
def test_a_picture_is_sent_once_the_network_is_back(visitor: Visitor, address: str):
    with visitor.at(f"{address}/?steps=2&images=1", unless="Failed to load resource") as page:
        choose(page, picture())
        page.route("**/gradio_api/{upload,app_id}", lambda route: route.abort())
        ask(page, "a red circle")
        expect(page.locator("#status [data-line]")).to_have_text(i18n.STATUS["away"])
        page.locator("#generate").click()  # changes nothing
        page.unroute("**/gradio_api/{upload,app_id}")
        wait_for_pictures(page, 1)


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
        page.locator("#chip-picture").click()  # closes it
        ask(page, "a star")
        expect(refusal).to_contain_text(i18n.SETTINGS["image"].label)
        expect(page.locator("#restore-picture button")).to_be_focused()  # the panel is open again
        choose(page, picture())
        ask(page, "a star")
        expect(refusal).to_contain_text(i18n.SETTINGS["mask"].label)
        expect(page.locator("#edit [data-do=draw]")).to_be_focused()
        mark_all(page)
        expect(note).to_be_hidden()
        draw_pictures(page, "a star", 1)
        page.wait_for_function(KEPT)
        page.reload()  # the panel is mounted before the part that keeps the picture
        expect(page.locator("#ask[data-masked]")).to_be_visible()
        expect(page.locator("#panel-picture")).to_be_hidden()
