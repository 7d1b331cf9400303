"""Exchange of a blurred picture for the unblurred one: the functions, and in a browser."""

import io
from collections.abc import Iterator
from pathlib import Path

import gradio as gr
import pytest
from PIL import Image as Pillow
from playwright.sync_api import Page, expect

from pipeline import metadata
from pipeline.images.metadata import BLURRED, Settings
from serving.generator import Image
from tests.browsing import draw_pictures, opened
from tests.pages import MODEL, said_of, to_request
from tests.web import PROGRAM, served
from tools.page_states import launched
from ui.pictures import picture_panel, saved
from ui.pictures.saved import Picture
from ui.wiring import Call

REMARK = "blurred by the safety checker"
COLOURS = {"blurred": (90, 0, 0), "itself": (255, 0, 0), "plain": (0, 0, 255)}


def png(colour: str, settings: Settings) -> bytes:
    image, file = Pillow.new("RGB", (8, 8), COLOURS[colour]), io.BytesIO()
    metadata.attach(image, settings)
    metadata.save_png(image, file)
    return file.getvalue()


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Picture]:
    """Return a picture that is not blurred and one that is."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    said = [said_of(to_request(), seed) for seed in (7, 8)]
    itself = Settings(**said[1])  # type: ignore[arg-type]
    said[1]["safety_checker"] = BLURRED
    plain, blurred = (Settings(**each) for each in said)  # type: ignore[arg-type]
    images = [
        Image(0, png("plain", plain), 7, said[0]),
        Image(1, png("blurred", blurred), 8, said[1], unblurred=png("itself", itself)),
    ]
    return saved.save(images, [], embed=True)


def exchanged(pictures: list[Picture], index: int, *, bare: bool = False) -> list[Picture]:
    values = {"relay": {"bare": bare}, "pictures": pictures}
    call = Call(gr.Request(), values, {"key": pictures[index].key})
    updates = picture_panel.exchanged(call, MODEL)
    assert updates["gallery"].selected_index == index
    return updates["pictures"]


def colour(path: Path) -> object:
    with Pillow.open(path) as image:
        return image.getpixel((0, 0))


def test_the_original_is_in_no_file_before_it_is_revealed(shown: list[Picture], tmp_path: Path):
    found = {colour(path) for path in tmp_path.rglob("*.*")}
    assert found == {COLOURS["plain"], COLOURS["blurred"]}


def test_a_picture_can_be_revealed_and_hidden_again(shown: list[Picture]):
    assert REMARK in shown[1].caption
    revealed = exchanged(shown, 1)
    assert revealed[0] is shown[0]
    assert colour(revealed[1].path) == COLOURS["itself"]
    assert revealed[1].path.name == shown[1].path.name
    assert revealed[1].path.parent != shown[1].path.parent
    assert metadata.read(revealed[1].path) == revealed[1].settings
    assert revealed[1].settings.safety_checker is None
    assert revealed[1].caption == "Seed 8: a red star"
    hidden = exchanged(revealed, 1)
    assert colour(hidden[1].path) == COLOURS["blurred"]
    assert metadata.read(hidden[1].path) == hidden[1].settings == shown[1].settings
    assert hidden[1].caption == shown[1].caption


def test_files_without_settings_stay_without_them(shown: list[Picture]):
    revealed = exchanged(shown, 1, bare=True)
    assert metadata.read(revealed[1].path) is None
    assert revealed[1].settings.prompt == "a red star"
    inside = saved.again(revealed, embed=True)
    assert metadata.read(inside[1].path) == revealed[1].settings
    assert inside[1].other == revealed[1].other


def test_a_picture_that_is_gone_is_refused(shown: list[Picture]):
    keys = [shown[0].key, "another"]  # one without another version, and one that does not exist
    shown[1].path.unlink()
    for key in (*keys, shown[1].key):
        call = Call(gr.Request(), {"pictures": shown}, {"key": key})
        updates = picture_panel.exchanged(call, MODEL)
        assert [*updates] == ["status"]
        assert "no longer kept" in updates["status"]["text"]


def test_the_buttons_are_offered_for_blurred_pictures_only(shown: list[Picture]):
    assert picture_panel._kind(shown[0], MODEL) == ""
    for kind in ("blurred", "original", "blurred"):
        assert picture_panel._kind(shown[1], MODEL) == kind
        shown = exchanged(shown, 1)


# --- in a browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Open a page whose server blurs every second picture, from the first one on."""
    program = [*PROGRAM, "--screen", "tests.screens:every_second"]
    log = tmp_path_factory.mktemp("app") / "log"
    with served(program, log) as address, launched() as browser, opened(browser, address) as found:
        yield found


def downloaded(page: Page, before: str = "") -> tuple[str, str, bytes]:
    """Download the open picture once its address differs from `before`.

    Returns:
        The address, the settings in the file, and its pixels.
    """
    menu, link = page.locator("#bar [data-act=download]"), page.locator("#bar [href$='.png']")
    menu.click()
    address = link.get_attribute("href") or ""
    assert address != before
    content = page.request.get(address).body()
    menu.click()
    with Pillow.open(io.BytesIO(content)) as image:
        return address, image.info[metadata.KEY], image.tobytes()


@pytest.mark.slow
def test_a_visitor_reveals_a_blurred_picture(page: Page):
    draw_pictures(page, "a star")
    captions = page.locator("#gallery .thumbnail-lg .caption-label")
    said = [REMARK in caption for caption in captions.all_inner_texts()]
    assert said == [True, False, True, False]

    page.locator("#gallery .thumbnail-lg").first.click()
    show = page.locator("#bar [data-act=reveal]")
    hide = page.locator("#bar [role=menuitem][data-act=blur]")
    caption = page.locator("#gallery .preview .caption")
    expect(show).to_be_visible()
    expect(caption).to_contain_text(REMARK)
    blurred = downloaded(page)
    show.click()
    expect(show).to_have_count(0)
    expect(caption).not_to_contain_text(REMARK)
    itself = downloaded(page, before=blurred[0])
    assert ("Safety checker" in blurred[1], "Safety checker" in itself[1]) == (True, False)
    assert blurred[2] != itself[2]
    page.locator("#bar [data-act=more]").click()
    hide.click()
    expect(caption).to_contain_text(REMARK)
    assert downloaded(page, before=itself[0])[1:] == blurred[1:]


@pytest.mark.slow
def test_an_unblurred_picture_has_no_reveal_button(page: Page):
    thumbnails = page.locator("#gallery .thumbnails button")
    thumbnails.nth(1).click()
    reveal = page.locator("#bar [data-act=reveal]")
    expect(page.locator("#bar [data-act=download]")).to_be_visible()
    expect(reveal).to_have_count(0)
    thumbnails.nth(2).click()
    expect(reveal).to_be_visible()


@pytest.mark.slow
def test_after_a_reload_it_can_still_be_revealed(page: Page):
    page.reload()
    expect(page.locator("#gallery .thumbnail-lg img")).to_have_count(4)
    page.locator("#gallery .thumbnail-lg").first.click()
    page.locator("#bar [data-act=reveal]").click()
    expect(page.locator("#bar [data-act=reveal]")).to_have_count(0)
    page.locator("#bar [data-act=more]").click()
    expect(page.locator("#bar [role=menuitem][data-act=blur]")).to_be_visible()
