"""Following the picture to start from, in a browser."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests import compiling
from tests.browsing import (
    AXE,
    VIOLATIONS,
    Visitor,
    choose,
    draw_pictures,
    opened,
    opening,
    picture,
    width_needed,
)
from tests.checkpoints import SMALLEST
from tests.controlnets import save_controlnet
from tests.web import served
from tools.page_states import act
from ui import i18n

STRENGTH = i18n.SETTINGS["strength"].label
EDGES = "canny:preprocessor=canny"
SKETCHED = "scribble:preprocessor=invert"
# Waits until the picture that the opened one began with has a shade in the middle of a row.
BEGAN_WITH = """async ([row, shade]) => {
  const image = document.querySelector("#before img");
  await image?.decode();
  if (!image) return false;
  const canvas = new OffscreenCanvas(image.naturalWidth, image.naturalHeight);
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  return context.getImageData(canvas.width / 2, row * canvas.height, 1, 1).data[0] === shade;
}"""


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of the real program with a tiny model and two ControlNets."""
    folder = tmp_path_factory.mktemp("controls")
    save_controlnet(folder / "canny", SMALLEST)
    save_controlnet(folder / "controlnet-depth-sdxl-1.0-small", SMALLEST, "small")
    program = ["app.py", "--model", str(SMALLEST), "--control-dir", str(folder)]
    log = tmp_path_factory.mktemp("app") / "log"
    with compiling.quickly(), served(program, log) as url:
        yield url


@pytest.mark.slow
def test_the_edges_of_a_picture_are_followed(visitor: Visitor, controlled: str):
    with visitor.at(f"{controlled}/?steps=4&images=1") as page:
        follow, followed = page.locator("#start-controls select"), page.locator(".followed")
        strength, chip = page.locator("#start-strength output"), page.locator("#chip-picture")
        scale, seen = page.locator("[name=scale]"), page.locator(".map img")
        choose(page, picture())
        expect(follow).to_have_value("")
        expect(followed).to_be_hidden()
        page.locator("#start-strength input").fill("60")
        follow.select_option(label="Edges")
        expect(strength).to_have_text("100 %")
        expect(seen).to_have_js_property("naturalWidth", 16)  # the model's own size
        scale.press("Home")
        scale.fill("80")
        expect(chip).to_have_attribute("title", f"{STRENGTH} 100 % · Edges")
        page.evaluate(AXE.read_text(encoding="utf-8"))
        assert page.evaluate(VIOLATIONS) == []
        # What the picture already is needs no preview.
        follow.select_option(label="Depth map")
        expect(seen).to_be_hidden()
        follow.select_option(label="Edges")
        expect(seen).to_be_visible()
        page.wait_for_function("/former/.test(JSON.stringify({ ...sessionStorage }))")
        with opening(page):
            page.reload()
        expect(follow).to_have_value(EDGES)
        expect(scale).to_have_value("80")
        expect(seen).to_be_visible()
        draw_pictures(page, "a red circle", 1)
        page.locator("#gallery .thumbnail-lg").click()
        page.locator("#picked summary").click()
        name = page.locator("#picked dt", has_text=i18n.SETTINGS["controls"].label)
        expect(name.locator("+ dd")).to_have_text("canny:scale=0.8:preprocessor=canny")
        chip.click()
        follow.select_option("")
        expect(strength).to_have_text("60 %")
        expect(followed).to_be_hidden()
        # The settings of the picture bring it back, with the picture that it began with.
        page.keyboard.press("Escape")
        act(page, "use")
        chip.click()
        expect(follow).to_have_value(EDGES)
        expect(scale).to_have_value("80")


@pytest.mark.slow
def test_what_is_followed_goes_with_the_picture(visitor: Visitor, controlled: str):
    link = f"{controlled}/?steps=2&images=1&controls=canny:scale%3D0.5:control_mode%3Dprompt"
    with visitor.at(link) as page:
        follow, status = page.locator("#start-controls select"), page.locator("#status")
        draw_pictures(page, "a red circle", 1)  # there is nothing to follow
        choose(page, picture())
        expect(follow).to_have_value("canny:scale=0.5:control_mode=prompt")
        follow.select_option(label="Edges")
        expect(page.locator("[name=scale]")).to_have_value("50")
        page.locator("#free-picture").click()
        status.locator("[data-do=undo]").click()
        expect(follow).to_have_value(EDGES)
        page.locator("#free-picture").click()
        choose(page, picture())
        expect(follow).to_have_value("")


@pytest.mark.slow
@pytest.mark.parametrize("language", ["de", "es", "fr"])
def test_following_speaks_the_pages_language_on_a_phone(
    browser: Browser, controlled: str, language: str
):
    phone = {"has_touch": True, "is_mobile": True, "locale": language}
    with opened(browser, controlled, 390, 844, **phone) as page:
        choose(page, picture())
        with i18n.speaking(language):
            page.locator("#start-controls select").select_option(label=i18n.FOLLOWED["depth"])
            expect(page.locator("#start-controls .hint")).to_have_text(i18n.FOLLOW["only_maps"])
        for part in ("select", "label:has([name=scale])", "label:has([name=end])"):
            box = page.locator(f"#start-controls {part}").bounding_box()
            assert box
            assert box["height"] >= 44
        assert width_needed(page) == 390


@pytest.mark.slow
def test_without_controlnets_there_is_no_choice(visitor: Visitor, address: str):
    with visitor.at(address) as page:
        nothing = {"texts": i18n.FOLLOW, "choices": []}
        page.route("**/controls?*", lambda route: route.fulfill(json=nothing))
        with page.expect_response("**/controls?*"):
            choose(page, picture())
        expect(page.locator("#start-controls")).to_be_hidden()
        expect(page.locator("#edit .by-numbers")).to_be_visible()


@pytest.mark.slow
def test_a_sketch_is_followed(visitor: Visitor, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("scribbles")
    save_controlnet(folder / "scribble", SMALLEST)
    program = ["app.py", "--model", str(SMALLEST), "--control-dir", str(folder)]
    log = tmp_path_factory.mktemp("app") / "log"
    with (
        compiling.quickly(),
        served(program, log) as url,
        visitor.at(f"{url}/?steps=2&images=1&controls=scribble:scale%3D0.5") as page,
    ):
        follow, sheet = page.locator("#start-controls select"), page.locator("#edit .layers")
        page.locator("#chip-picture").click()
        page.locator("[data-sketch]").click()
        expect(page.locator("#edit .note")).to_have_text(i18n.START["outline"])
        expect(follow).to_have_value(SKETCHED)
        expect(page.locator("#start-strength")).to_be_hidden()
        expect(page.locator("#start-strength output")).to_have_text("100 %")
        follow.select_option("")
        expect(page.locator("#start-strength")).to_be_visible()
        follow.select_option(SKETCHED)
        box = sheet.bounding_box()
        assert box
        page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.5 * box["height"])
        page.mouse.down()
        page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 0.5 * box["height"], steps=4)
        page.mouse.up()
        page.evaluate(AXE.read_text(encoding="utf-8"))
        assert page.evaluate(VIOLATIONS) == []
        page.wait_for_function("/isSketch/.test(JSON.stringify({ ...sessionStorage }))")
        with opening(page):
            page.reload()
        expect(follow).to_have_value(SKETCHED)
        draw_pictures(page, "a red circle", 1)
        page.locator("#gallery .thumbnail-lg").click()
        page.wait_for_function(BEGAN_WITH, arg=[0.5, 0])
        page.wait_for_function(BEGAN_WITH, arg=[0.25, 255])
        # Without the line, the sheet that is sent is white.
        page.locator("#chip-picture").click()
        page.locator("#edit [data-do=undo]").click()
        draw_pictures(page, "a red circle", 1)
        page.locator("#gallery .thumbnail-lg").click()
        page.wait_for_function(BEGAN_WITH, arg=[0.5, 255])
