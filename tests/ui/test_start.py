"""The picture to start from, as a browser sends it with a request."""

import asyncio
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from PIL import Image

from pipeline.facts import ControlFacts
from pipeline.images.metadata import Settings
from pipeline.request import STRENGTH
from serving.generator import Error, ErrorKind, Request, RequestError
from serving.messages import Code, Message
from tests.pages import MODEL, SENDER, VALUES, StandIn, all_of, call_with, uploaded
from ui import i18n, start
from ui.form import link, settings
from ui.form.fields import Fields
from ui.page import restore
from ui.page.generation import Drawing
from ui.page.page import build_page
from ui.pictures.saved import Picture
from ui.samples.model_kind import Kind
from ui.samples.styles import styles_for
from ui.start import Start
from ui.wiring import Updates

HERE = replace(MODEL, more_sizes=((384, 256),), controls=(ControlFacts("canny", "0" * 8),))
GONE = i18n.translate(Message(Code.INPUT_GONE))


class FromPictures(StandIn):
    facts = HERE


@pytest.fixture(autouse=True)
def uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a new folder for uploads."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    return tmp_path


def sent(folder: Path, *, masked: bool = False, width: int = 384) -> dict[str, Any]:
    size = width, 256
    mask = Image.new("L", size)
    mask.paste(255, (0, 0, 100, 100))
    return {
        "id": "k3x",
        "image": uploaded(folder, "image", Image.new("RGB", size, "red")),
        "mask": uploaded(folder, "mask", mask) if masked else None,
        "strength": 0.9,
    }


def drawn(stand_in: StandIn, payload: object, **changes: Any) -> list[Updates]:
    fields = Fields(**VALUES | {"randomise": False} | changes)
    call = call_with(told={"start": payload}, **fields.shown())
    drawing = Drawing(stand_in, Kind.SDXL)
    return all_of(drawing, drawing.for_page(call))


def asked(payload: object, **changes: Any) -> Request:
    stand_in = FromPictures()
    drawn(stand_in, payload, **changes)
    (request,) = stand_in.asked
    return request


def test_a_request_has_the_picture_and_its_files_are_deleted(uploads: Path):
    request = asked(sent(uploads), prompt="", padding=16, controls="canny:scale=0.50")
    assert (request.prompt, request.strength, request.padding) == ("", 0.9, None)
    assert request.controls == "canny:scale=0.5"
    assert request.image
    assert Image.open(BytesIO(request.image)).size == (384, 256)
    assert request.mask is None
    assert not list(uploads.glob("hash*"))


def test_a_picture_chooses_the_size_of_its_shape_unless_one_is_chosen(uploads: Path):
    assert asked(sent(uploads)).size == (384, 256)
    assert asked(sent(uploads), size="384x256").size == (384, 256)
    assert asked(sent(uploads, width=250)).size == (256, 256)


def test_fields_are_used_with_a_mask_alone(uploads: Path):
    request = asked(sent(uploads, masked=True), strength=0.25, padding=16)
    assert (request.strength, request.padding) == (0.25, 16)
    assert request.mask


@pytest.mark.parametrize("nothing", [None, "", {}, [], {"image": None}])
def test_without_a_picture_its_settings_are_not_sent(nothing: object):
    request = asked(nothing, strength=0.25, padding=16, controls="canny")
    assert (request.image, request.strength, request.padding) == (None, None, None)
    assert request.controls == ""


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({"gone": True}, GONE),
        ({"failed": 413}, "too large"),
        ({"failed": 429}, "Too many files"),
        ({"failed": 507}, "no room"),
        ({"failed": 0}, "did not arrive"),
        ({"failed": ["?"]}, "did not arrive"),
        ({"image": {"path": "/etc/passwd"}}, "not uploaded"),
        ({"image": {"path": None}}, "not uploaded"),
        ({"image": "a\0b"}, "not uploaded"),
    ],
)
def test_a_picture_that_did_not_come_is_reported_at_its_field(payload: object, said: str):
    stand_in = FromPictures()
    line = drawn(stand_in, payload)[-1]["status"]
    assert said in line["text"]
    assert line["field"] == "start"
    assert stand_in.asked == []


def test_a_file_that_is_no_picture_is_refused_and_deleted(uploads: Path):
    payload = sent(uploads)
    Path(payload["image"]["path"]).write_text("<svg/>")
    assert "PNG, JPEG or WebP" in drawn(FromPictures(), payload)[-1]["status"]["text"]
    assert not list(uploads.glob("hash*"))


@pytest.mark.parametrize("change", [{"id": "<b>"}, {"id": None}, {"id": "x" * 33}])
def test_an_odd_id_is_dropped(uploads: Path, change: dict[str, Any]):
    found = asyncio.run(start.take(sent(uploads) | change))
    assert found is not None
    assert found.id == ""


@pytest.mark.parametrize("strength", [None, "1", 0, -1, 2, float("nan")])
def test_an_odd_strength_becomes_the_usual_one(uploads: Path, strength: object):
    found = asyncio.run(start.take(sent(uploads) | {"strength": strength}))
    assert found is not None
    assert found.strength == STRENGTH


def test_files_do_not_appear_in_logs():
    assert "secret" not in repr(Start("a", b"secret", None, 1.0))


def test_pictures_name_what_they_began_with(uploads: Path):
    texts = drawn(FromPictures(), sent(uploads))[-1]["texts"]
    assert 'data-start="k3x"' in texts
    texts = drawn(FromPictures(), None)[-1]["texts"]
    assert 'data-began="" data-start=""' in texts


def test_unfinished_pictures_are_finished_from_the_same_picture(uploads: Path):
    stopped = FromPictures(error=Error(ErrorKind.CANCELLED, Message(Code.CANCELLED)))
    update = drawn(stopped, sent(uploads))[-1]
    assert 'data-began="1" data-start="k3x"' in update["texts"]
    stand_in = FromPictures()

    pictures = update["pictures"]

    def finish(payload: object) -> list[Updates]:
        details = {"key": pictures[0].key}
        call = call_with(details, told={"start": payload}, pictures=pictures)
        drawing = Drawing(stand_in, Kind.SDXL)
        return all_of(drawing, drawing.finish(call))

    assert GONE in finish({"gone": True})[-1]["status"]["text"]
    finish(sent(uploads))
    assert stand_in.asked[0].strength == 0.9


SIZED = replace(HERE, more_sizes=((384, 256), (512, 512), (1024, 1024)))


@pytest.mark.parametrize(
    ("size", "changes", "larger"),
    [
        ((256, 256), {}, (512, 512)),
        ((512, 512), {}, (1024, 1024)),
        ((1024, 1024), {}, None),
        ((384, 256), {}, None),
        ((None, None), {}, None),
        ((256, 256), {"needs_mask": True}, None),
    ],
)
def test_the_next_larger_size_has_the_same_shape(
    size: tuple[int, int], changes: dict[str, Any], larger: tuple[int, int] | None
):
    assert start.larger_size(size, replace(SIZED, **changes)) == larger


def enlarged(stand_in: StandIn, pictures: list[Picture], key: str) -> list[Updates]:
    call = call_with({"key": key}, pictures=pictures)
    drawing = Drawing(stand_in, Kind.SDXL)
    return all_of(drawing, drawing.larger(call))


class Sized(FromPictures):
    facts = SIZED


def test_a_finished_picture_is_drawn_again_in_a_larger_size():
    update = drawn(Sized(), None)[-1]
    assert 'data-kind="enlargeable"' in update["texts"]
    picture = update["pictures"][1]
    stand_in = Sized()
    Image.new("RGB", (256, 256), "red").save(picture.path)
    enlarged(stand_in, [picture], picture.key)
    enlarged(
        stand_in,
        [replace(picture, settings=replace(picture.settings, enlarge="512x512", controls="canny"))],
        picture.key,
    )
    request, larger = stand_in.asked
    assert (larger.size, larger.enlarge, larger.controls) == ((1024, 1024), "", "")
    assert (request.size, request.images, request.strength) == ((512, 512), 1, 0.35)
    assert request.seed == picture.settings.seed
    assert request.image is not None
    assert Image.open(BytesIO(request.image)).getpixel((0, 0)) == (255, 0, 0)


def test_a_picture_of_a_model_of_one_size_is_not_offered_larger():
    small = replace(MODEL, name="small", width=128, height=128, more_sizes=())
    settings = Settings("a star", width=128, height=128, model="small")
    picture = replace(drawn(Sized(), None)[-1]["pictures"][0], settings=settings)
    assert picture.larger_size(SIZED) == (256, 256)
    assert picture.larger_size(replace(SIZED, others=(small,))) is None


def test_a_picture_that_is_gone_is_not_drawn_larger():
    update = drawn(Sized(), None)[-1]
    picture = update["pictures"][0]
    picture.path.unlink()
    stand_in = Sized()
    said = i18n.translate(Message(Code.PICTURE_GONE))
    for key in (picture.key, "another"):
        assert said in enlarged(stand_in, update["pictures"], key)[-1]["status"]["text"]
    assert stand_in.asked == []


def test_settings_of_such_a_picture_say_that_it_is_needed():
    made = Settings("a star", "", seed=1, strength=0.5, padding=8, num_inference_steps=4)
    fields, notes = settings.as_fields(made, HERE)
    assert (fields.strength, fields.padding) == (0.5, 8)
    assert i18n.PICTURE_NEEDED in notes
    query = link.to_query(fields)
    assert "strength=0.5" in query
    found = link.from_query({"prompt": "x", "strength": "0.5"}, HERE, styles_for(Kind.SDXL))
    assert found is not None
    assert found[0].strength == 0.5
    assert i18n.PICTURE_NEEDED in found[1]
    assert settings.as_fields(replace(made, strength=None), HERE)[1] == []


def test_a_picture_without_settings_is_no_mistake(uploads: Path):
    file = uploaded(uploads, "image", Image.new("RGB", (8, 8)))
    assert restore._of_picture(file, styles_for(Kind.SDXL))["restored"] == ""


@pytest.mark.parametrize("needs_mask", [True, False])
def test_a_model_that_needs_a_mask_begins_with_the_panel_of_pictures(needs_mask: bool):
    class Here(StandIn):
        facts = replace(HERE, needs_mask=needs_mask)

    page = build_page(Here(), programs=False)
    parts = {
        each["props"].get("elem_id"): each["props"] for each in page.get_config_file()["components"]
    }
    assert ("data-masks" in parts["header"]["value"]) is needs_mask
    assert parts["panel-picture"]["visible"] is needs_mask
    assert parts["mask-first"]["visible"] is needs_mask


def test_an_error_of_the_picture_is_refused_with_its_field(uploads: Path):
    class Refusing(FromPictures):
        async def submit(self, request: Request) -> None:
            raise RequestError(Message(Code.EMPTY_MASK, {"field": "mask"}), field="mask")

    assert drawn(Refusing(), sent(uploads))[-1]["status"]["field"] == "start"


def test_programs_need_no_prompt_with_a_picture(uploads: Path):
    stand_in = FromPictures()
    file = uploaded(uploads, "image", Image.new("RGB", (256, 256), "red"))
    asyncio.run(Drawing(stand_in, Kind.SDXL).for_programs(SENDER, prompt="", image=file))
    assert stand_in.asked[0].image
    with pytest.raises(gr.Error, match="prompt"):
        asyncio.run(Drawing(stand_in, Kind.SDXL).for_programs(SENDER, prompt=""))
