"""What a picture to start from is followed by: choices by networks' names, previews, settings."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from io import BytesIO
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from PIL import Image, ImageDraw

from pipeline.facts import ControlFacts
from pipeline.images.metadata import Settings
from pipeline.images.preparing import PREPROCESSORS
from pipeline.text.controls import UNION_TYPES, parse_controls
from serving.http import errors
from serving.http.limits import CONTROL_MAP_PATH
from tests.models import MODEL
from tests.pages import StandIn
from tests.run_by import run_by
from ui import controls, i18n, start
from ui.form import link, settings
from ui.samples.model_kind import Kind
from ui.samples.styles import styles_for

CANNY = ControlFacts("canny", "0" * 8)
HERE = replace(MODEL, controls=(CANNY,))


def named(*names: str) -> list[dict[str, Any]]:
    facts = replace(MODEL, controls=tuple(ControlFacts(name, "0" * 8) for name in names))
    return controls.choices(facts)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("control_v11p_sd15_canny", ["edges"]),
        ("controlnet-scribble-sdxl", ["scribble", "drawing"]),
        ("control_v11p_sd15s2_lineart_anime", ["drawing", "lines"]),
        ("control_v11p_sd15_softedge", ["drawing", "lines"]),
        ("control_sd15_hed", ["drawing", "lines"]),
        ("mistoLine_fp16", ["drawing", "lines"]),
        ("diffusers_xl_depth_full", ["depth"]),
        ("thibaud_xl_openpose", ["pose"]),
        ("control_v11p_sd15_seg", ["segmentation"]),
        ("control_v11p_sd15_normalbae", ["normals"]),
        ("control_v11f1e_sd15_tile", ["tile"]),
        ("kohya_controllllite_xl_blur", ["blur"]),
        ("control_v11p_sd15_inpaint", ["inpaint"]),
        ("sai_xl_recolor_256lora", ["brightness"]),
        ("control_v1p_sd15_brightness", ["brightness"]),
        ("scheduled-speed", ["other"]),
    ],
)
def test_the_name_of_a_network_tells_what_it_follows(name: str, expected: list[str]):
    labels = [choice["label"].removesuffix(f" ({name})") for choice in named(name)]
    assert labels == [i18n.FOLLOWED[kind] for kind in expected]


@pytest.mark.parametrize("number", [6, 8])
def test_a_union_network_offers_each_of_its_types(number: int):
    union = ControlFacts("canny-or-else", "0" * 8, UNION_TYPES[:number])
    choices = controls.choices(replace(MODEL, controls=(union,)))
    types = {parse_controls(choice["control"])[0].type for choice in choices}
    assert types == {*UNION_TYPES[:number]}


def test_every_choice_is_a_control_whose_map_this_server_makes():
    types = {kind.type for kind in controls.KINDS}
    assert types == {"", *UNION_TYPES}
    for kind in controls.KINDS:
        made = PREPROCESSORS[kind.preprocessor].type
        assert made in ("", "tile", kind.type)
        assert kind.name in i18n.FOLLOWED


def test_networks_for_the_same_are_told_apart():
    assert [choice["label"] for choice in named("canny", "depth")] == ["Edges", "Depth map"]
    labels = [choice["label"] for choice in named("canny_a", "canny_b", "mine")]
    assert labels == ["Edges (canny_a)", "Edges (canny_b)", "Another kind of map (mine)"]


# --- the routes ---

Test = Callable[[FastAPI], Awaitable[None]]


class Followed(StandIn):
    facts = HERE


def run(test: Test) -> None:
    app = FastAPI()
    errors.install(app)
    controls.connect(app, Followed())
    asyncio.run(test(app))  # type: ignore[arg-type]


@asynccontextmanager
async def visiting(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport, german = httpx.ASGITransport(app), {"accept-language": "de"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://test", headers=german
    ) as client:
        yield client


def disc(width: int = 300, height: int = 300) -> bytes:
    picture, file = Image.new("RGB", (width, height), "white"), BytesIO()
    ImageDraw.Draw(picture).ellipse((80, 80, 220, 220), fill="red")
    picture.save(file, "PNG")
    return file.getvalue()


async def asked(app: FastAPI, file: bytes, **fields: str) -> httpx.Response:
    fields = {"control": "canny:preprocessor=canny", **fields}
    async with visiting(app) as client:
        return await client.post(CONTROL_MAP_PATH, data=fields, files={"image": ("picture", file)})


@run_by(run)
async def test_the_choices_are_in_the_language_of_the_visitor(app: FastAPI):
    async with visiting(app) as client:
        offer = (await client.get(controls.PATH)).json()
    assert offer["texts"]["follow"] == "Orientieren an"
    assert offer["choices"] == [
        {
            "control": "canny:preprocessor=canny",
            "label": "Kanten",
            "group": "found",
            "differs": True,
        }
    ]


@run_by(run)
async def test_a_preview_is_the_map_in_the_size_that_is_drawn(app: FastAPI):
    answer = await asked(app, disc())
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    pixels = np.asarray(Image.open(BytesIO(answer.content)))
    assert pixels.shape == (MODEL.height, MODEL.width, 3)
    assert set(np.unique(pixels)) == {0, 255}
    assert 0.002 < (pixels > 0).mean() < 0.05  # the outline of the disc alone


@pytest.mark.parametrize(
    ("file", "fields", "status"),
    [
        (b"<svg/>", {}, 400),
        (disc(90, 9), {}, 400),
        (disc(), {"control": ""}, 400),
        (disc(), {"control": "canny,canny"}, 400),
        (disc(), {"control": "canny:scale=x"}, 400),
        (disc(), {"control": "canny:preprocessor=none_such"}, 400),
        (disc(), {"control": "canny:preprocessor=canny:threshold_a=999"}, 400),
        (disc(), {"size": "7x7", "model": "none such"}, 200),
    ],
)
@run_by(run)
async def test_a_preview_of_nothing_usable_is_refused(
    app: FastAPI, file: bytes, fields: dict[str, str], status: int
):
    assert (await asked(app, file, **fields)).status_code == status


# --- the setting in the page's fields ---


def test_a_control_whose_network_is_missing_is_left_out_and_named():
    made = Settings("a star", "", controls="canny:scale=0.8,depth:end=0.5")
    fields, notes = settings.as_fields(made, HERE)
    assert fields.controls == "canny:scale=0.8"
    assert i18n.text("missing_loras", names=["depth"]) in notes
    assert i18n.PICTURE_NEEDED in notes


def test_controls_in_a_link_are_restored():
    text = "canny:scale=0.8:preprocessor=canny"
    found = link.from_query({"prompt": "a star", "controls": text}, HERE, styles_for(Kind.SDXL))
    assert found is not None
    assert found == (found[0]._replace(controls=text), [i18n.PICTURE_NEEDED])


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ""),
        (["canny", "depth"], ""),
        (["canny", "control_v11p_sd15_scribble"], "control_v11p_sd15_scribble:preprocessor=invert"),
    ],
)
def test_a_sketch_needs_a_network_for_lines(names: list[str], expected: str):
    facts = replace(MODEL, controls=tuple(ControlFacts(name, "0" * 8) for name in names))
    assert controls.sketch(facts) == expected
    assert ("data-sketch" in start.layout(facts).value) == bool(expected)
