"""AUTOMATIC1111's ControlNet extension: what its clients send, and its own routes."""

import base64
import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
import webuiapi
from fastapi import HTTPException
from fastapi.exceptions import RequestValidationError
from PIL import Image as Pillow

from pipeline.facts import ControlFacts
from pipeline.images.preparing import PREPROCESSORS
from pipeline.text.controls import MAX_CONTROLS, UNION_TYPES, Control, format_controls
from serving.http.a1111.controlnet import read_units
from serving.metrics import Observer
from serving.requests import inputs
from serving.requests.inputs import ControlFiles
from serving.requests.registry import Limits
from tests.fake_pipeline import FakePipeline
from tests.generators import local_generator
from tests.models import MODEL
from tests.pictures import saved
from tests.web import Site, serve

CONTROLS = (
    ControlFacts("control_v11p_sd15_canny", "d14c016b"),
    ControlFacts("depth-sdxl", "0123abcd"),
    ControlFacts("promax", "89abcdef", UNION_TYPES),
)
FACTS = replace(MODEL, controls=CONTROLS)
CANNY = "control_v11p_sd15_canny [d14c016b]"
PICTURE = Pillow.fromarray(np.random.default_rng(0).integers(0, 256, (16, 24, 3), np.uint8))
MASK = Pillow.new("L", (24, 16))
MASK.paste(255, (6, 4, 18, 12))


def encoded(image: Pillow.Image, head: str = "") -> str:
    return head + base64.b64encode(saved(image)).decode()


IMAGE, DRAWN = encoded(PICTURE), encoded(MASK)
DATA_URL = encoded(PICTURE, "data:image/png;base64,")


def read(*units: Any, script: str = "ControlNet", has_image: bool = True) -> list[Control]:
    controls, ignored = read_units({script: {"args": [*units]}}, FACTS, has_image=has_image)
    assert not ignored
    return [*controls]


def webui_unit(**arguments: Any) -> webuiapi.ControlNetUnit:
    return webuiapi.ControlNetUnit(**arguments)


WEBUIAPI = webui_unit(image=PICTURE, module="canny", model=CANNY).to_dict()
CYANIC = {
    "enabled": True,
    "module": "canny",
    "model": CANNY,
    "weight": 0.75,
    "resize_mode": "Crop and Resize",
    "lowvram": False,
    "processor_res": -2,
    "threshold_a": -2,
    "threshold_b": -3,
    "guidance_start": 0.1,
    "guidance_end": 0.9,
    "control_mode": "My prompt is more important",
    "pixel_perfect": True,
    "image": {"image": IMAGE},
}
PHOTOSHOP = {
    "enabled": True,
    "input_image": IMAGE,
    "mask": "",
    "module": "canny",
    "model": CANNY,
    "weight": 1,
    "resize_mode": "Crop and Resize",
    "lowvram": True,
    "processor_res": 512,
    "threshold_a": 50,
    "threshold_b": 200,
    "guidance_start": 0,
    "guidance_end": 1,
    "control_mode": 2,
    "pixel_perfect": False,
}
AI_RENDER = {"weight": 0.9, "module": "none", "model": "depth-sdxl [0123abcd]"}
OPENOUTPAINT = {
    "enabled": True,
    "module": "inpaint_global_harmonious",
    "model": CANNY,
    "control_mode": "ControlNet is more important",
    "image": DATA_URL,
    "mask": encoded(MASK, "data:image/png;base64,"),
    "processor_res": 64,
    "resize_mode": "Just Resize",
}
ANIMATEDIFF = {"module": "canny", "model": CANNY, "image": [{"image": IMAGE, "mask": DRAWN}]}
NAME = "control_v11p_sd15_canny"


@pytest.mark.parametrize(
    ("unit", "control"),
    [
        (
            WEBUIAPI,
            "canny:preprocessor=canny:resolution=512:threshold_a=64:threshold_b=64:resize_mode=fill",
        ),
        (
            CYANIC,
            "canny:scale=0.75:start=0.1:end=0.9:preprocessor=canny:control_mode=prompt",
        ),
        (
            PHOTOSHOP,
            "canny:preprocessor=canny:resolution=512:threshold_a=50:control_mode=control",
        ),
        (AI_RENDER, "depth-sdxl:scale=0.9"),
        (OPENOUTPAINT, "canny:preprocessor=inpaint:resize_mode=stretch:control_mode=control"),
        (ANIMATEDIFF, "canny:preprocessor=canny:resolution=512"),
    ],
)
def test_what_clients_send(unit: dict[str, Any], control: str):
    (read_control,) = read(unit)
    assert format_controls([read_control]) == control.replace("canny:", f"{NAME}:", 1)


UNIT = {"model": "depth-sdxl", "image": IMAGE}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"resize_mode": 0}, {"resize_mode": "stretch"}),
        ({"resize_mode": "1"}, {"resize_mode": "crop"}),
        ({"resize_mode": 2}, {"resize_mode": "fill"}),
        ({"resize_mode": 3}, {"resize_mode": "stretch"}),
        ({"resize_mode": "Envelope (Outer Fit)"}, {"resize_mode": "fill"}),
        ({"resize_mode": "Scale to Fit (Inner Fit)"}, {"resize_mode": "crop"}),
        ({"resize_mode": "Inner Fit (Scale to Fit)"}, {"resize_mode": "crop"}),
        ({"resize_mode": "Outer Fit (Shrink to Fit)"}, {"resize_mode": "fill"}),
        ({"resize_mode": None}, {"resize_mode": "crop"}),
        ({"control_mode": 0}, {"control_mode": "balanced"}),
        ({"control_mode": "1"}, {"control_mode": "prompt"}),
        ({"control_mode": 2}, {"control_mode": "control"}),
        ({"weight": "0.5", "guidance": 0.5}, {"scale": 0.5, "end": 0.5}),
        ({"weight": None, "guidance_end": None}, {"scale": 1.0, "end": 1.0}),
        ({"guidance_end": 0.0}, {"end": 0.0}),
        ({"union_control_type": "Soft Edge"}, {"type": "soft"}),
        ({"union_control_type": "Inpaint"}, {"type": "repaint"}),
        ({"union_control_type": "Unknown"}, {"type": ""}),
        ({"module": "None"}, {"preprocessor": "none", "resolution": 0}),
        ({"module": "invert (from white bg & black line)"}, {"preprocessor": "invert"}),
        ({"module": "canny"}, {"resolution": 512, "threshold_a": None}),
        ({"module": "canny", "processor_res": 5000}, {"resolution": 512}),
        ({"module": "canny", "processor_res": 768.0}, {"resolution": 768}),
        ({"module": "canny", "processor_res": 768, "pixel_perfect": True}, {"resolution": 0}),
        ({"module": "canny", "threshold_a": 300}, {"threshold_a": None}),
        ({"module": "canny", "threshold_b": 90.5}, {"threshold_b": 90.5}),
        ({"module": "tile_resample", "threshold_a": 64}, {"threshold_a": None, "resolution": 0}),
        ({"module": "tile_resample", "threshold_a": 4, "threshold_b": 9}, {"threshold_b": None}),
        ({"low_vram": True, "hr_option": "Both", "save_detected_map": False}, {}),
        ({"model": "DEPTH-sdxl"}, {"name": "depth-sdxl"}),
        ({"model": "depth"}, {"name": "depth-sdxl"}),
        ({"model": "depth-sdxl [ffffffff]"}, {"name": "depth-sdxl"}),
        ({"model": "89abcdef"}, {"name": "promax"}),
    ],
)
def test_values(changes: dict[str, Any], expected: dict[str, Any]):
    (control,) = read(UNIT | changes)
    assert {name: getattr(control, name) for name in expected} == expected


FILE, MASK_FILE = saved(PICTURE), saved(MASK)


@pytest.mark.parametrize(
    ("pictures", "files"),
    [
        ({}, None),
        ({"image": ""}, None),
        ({"image": None, "mask": ""}, None),
        ({"image": {}}, None),
        ({"image": IMAGE}, ControlFiles(FILE)),
        ({"image": DATA_URL}, ControlFiles(FILE)),
        ({"input_image": IMAGE}, ControlFiles(FILE)),
        ({"image": None, "input_image": IMAGE}, ControlFiles(FILE)),
        ({"image": IMAGE, "mask": DRAWN}, ControlFiles(FILE, MASK_FILE)),
        ({"image": IMAGE, "mask_image": DRAWN}, ControlFiles(FILE, MASK_FILE)),
        ({"image": {"image": IMAGE, "mask": None}}, ControlFiles(FILE)),
        ({"image": {"image": IMAGE, "mask": DRAWN}}, ControlFiles(FILE, MASK_FILE)),
        ({"image": [{"image": IMAGE}]}, ControlFiles(FILE)),
        ({"image": [IMAGE, DRAWN]}, ControlFiles(FILE, MASK_FILE)),
    ],
)
def test_pictures(pictures: dict[str, Any], files: ControlFiles | None):
    (control,) = read({"model": "depth", "resize_mode": 2} | pictures)
    assert control.image == files
    # What a call starts from is fitted already.
    assert control.resize_mode == ("crop" if files is None else "fill")
    (control,) = read({"model": "depth", "module": "inpaint_only"} | pictures)
    assert control.image == (files and replace(files, is_redrawn=True))


@pytest.mark.parametrize(
    ("scripts", "count"),
    [
        ({}, 0),
        ({"ControlNet": {"args": []}}, 0),
        ({"ControlNet": {"args": [None, True, "UiControlNetUnit", UNIT]}}, 1),
        ({"controlnet": {"args": UNIT}}, 1),
        ({"CONTROLNET": [UNIT]}, 1),
        ({"ControlNet": {"args": [UNIT | {"enabled": False, "model": "gone"}, UNIT]}}, 1),
        ({"ControlNet": {"args": [UNIT | {"enabled": "true"}]}}, 1),
        ({"ControlNet": {"args": [UNIT] * 3}}, 3),
    ],
)
def test_units(scripts: dict[str, Any], count: int):
    controls, ignored = read_units(scripts, FACTS, has_image=False)
    assert (len(controls), ignored) == (count, [])


def test_what_changes_nothing_here_is_named():
    unit = UNIT | {"hr_option": "Low res only", "advanced_weighting": [1.0] * 13}
    controls, ignored = read_units(
        {"controlnet": {"args": [unit, *[UNIT] * 4]}}, FACTS, has_image=False
    )
    assert len(controls) == MAX_CONTROLS
    args = "alwayson_scripts.controlnet.args"
    assert ignored == [
        f"{args}[0].hr_option",
        f"{args}[0].advanced_weighting",
        f"{args}[3]",
        f"{args}[4]",
    ]


@pytest.mark.parametrize(
    ("scripts", "message"),
    [
        ({"ADetailer": {"args": [True]}}, "always on script ADetailer not found"),
        ({"ControlNet": {"args": [UNIT | {"model": "None"}]}}, "You have not selected any"),
        (
            {"ControlNet": {"args": [UNIT | {"model": "openpose"}]}},
            "model not found: openpose; there are: control_v11p_sd15_canny [d14c016b], depth-sdxl",
        ),
        (
            {"ControlNet": {"args": [UNIT | {"module": "depth_midas"}]}},
            "preprocessor is 'depth_midas'; expected one of 'none', 'canny', ",
        ),
        (
            {"ControlNet": {"args": [UNIT | {"image": None}]}},
            "controlnet is enabled but no input image is given",
        ),
        (
            {"ControlNet": {"args": [UNIT | {"resize_mode": "9"}]}},
            "resize_mode is '9'; expected one of 'just resize', ",
        ),
        (
            {"ControlNet": {"args": [UNIT | {"guidance_start": 0.8, "guidance_end": 0.2}]}},
            "'depth-sdxl' starts at 0.8, after its end",
        ),
    ],
)
def test_what_is_not_here(scripts: dict[str, Any], message: str):
    with pytest.raises(HTTPException) as raised:
        read_units(scripts, FACTS, has_image=False)
    assert raised.value.status_code == 422
    assert message in raised.value.detail


def test_a_server_without_controls_has_no_such_script():
    disabled = {"controlnet": {"args": [UNIT | {"enabled": False}]}}
    assert read_units(disabled, MODEL, has_image=True) == ((), [])
    with pytest.raises(HTTPException, match="always on script ControlNet not found"):
        read_units({"ControlNet": {"args": [UNIT]}}, MODEL, has_image=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"weight": 3},
        {"weight": "much"},
        {"guidance_start": -1},
        {"image": "§"},
        {"image": "http://a.example/b.png"},
        {"image": [IMAGE]},
        {"image": [{"image": IMAGE}, {"image": IMAGE}, {"image": IMAGE}]},
        {"image": 7},
        {"model": ["depth"]},
    ],
)
def test_wrong_values(changes: dict[str, Any]):
    with pytest.raises(RequestValidationError) as raised:
        read(UNIT | changes)
    assert "input" not in raised.value.errors()[0]


# --- pictures to follow

CLEAR = Pillow.new("RGBA", (24, 16), (9, 9, 9, 0))


@pytest.mark.parametrize(
    ("image", "mask", "expected"),
    [
        (PICTURE, None, PICTURE),
        (PICTURE, Pillow.new("L", (24, 16), 5), PICTURE),
        (PICTURE, Pillow.new("L", (24, 16), 250), PICTURE),
        (PICTURE, MASK, MASK.convert("RGB")),
        (CLEAR, None, CLEAR),
        (CLEAR, Pillow.new("L", (24, 16), 5), Pillow.new("RGB", (24, 16), "white")),
    ],
)
def test_a_mask_in_which_something_is_drawn_is_followed(
    image: Pillow.Image, mask: Pillow.Image | None, expected: Pillow.Image
):
    files = ControlFiles(saved(image), mask and saved(mask))
    assert inputs._control_picture(files).tobytes() == expected.tobytes()


@pytest.mark.parametrize("size", [(24, 16), (48, 32)])
def test_what_is_redrawn_becomes_transparent(size: tuple[int, int]):
    files = ControlFiles(FILE, saved(MASK.resize(size, Pillow.Resampling.NEAREST)), True)
    picture = inputs._control_picture(files)
    assert picture.convert("RGB").tobytes() == PICTURE.tobytes()
    alpha = np.asarray(picture.getchannel("A"))
    np.testing.assert_array_equal(alpha, 255 - np.asarray(MASK))


def test_large_pictures_are_reduced(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inputs, "MAX_PIXELS", 96)
    assert inputs._control_picture(ControlFiles(FILE)).size == (12, 8)


# --- routes


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    pipe = FakePipeline()
    pipe.facts = replace(pipe.facts, controls=CONTROLS)
    generator = local_generator(pipe.as_pipeline(), Limits(), Observer())
    with serve(a1111="on", generator=generator) as served:
        yield replace(served, pipe=pipe)


@pytest.fixture(scope="module")
def api(site: Site) -> webuiapi.WebUIApi:
    return webuiapi.WebUIApi(baseurl=f"{site.url}/sdapi/v1")


def get(site: Site, path: str) -> Any:
    answer = httpx.get(f"{site.url}/controlnet/{path}")
    assert answer.status_code == 200
    return answer.json()


def test_lists(site: Site, api: webuiapi.WebUIApi):
    assert api.controlnet_version() == 3
    titles = [CANNY, "depth-sdxl [0123abcd]", "promax [89abcdef]"]
    assert api.controlnet_model_list() == titles
    assert get(site, "model_list?update=true")["model_list"] == titles
    modules = api.controlnet_module_list()
    assert modules[0] == "none"
    assert {*modules} == {*PREPROCESSORS}
    assert get(site, "settings") == {"control_net_unit_count": 3, "control_net_max_models_num": 3}
    scripts = httpx.get(f"{site.url}/sdapi/v1/scripts").json()
    assert scripts == {"txt2img": ["controlnet"], "img2img": ["controlnet"]}


def test_details_of_modules(site: Site):
    details = get(site, "module_list")["module_detail"]
    assert details["canny"] == {
        "model_free": False,
        "sliders": [
            {"name": "Resolution", "value": 512, "min": 64, "max": 2048, "step": 8},
            {"name": "Low Threshold", "value": 100, "min": 1, "max": 255, "step": 1},
            {"name": "High Threshold", "value": 200, "min": 1, "max": 255, "step": 1},
        ],
    }
    assert details["invert"]["sliders"] == []
    aliases = get(site, "module_list?alias_names=true")
    assert "invert (from white bg & black line)" in aliases["module_detail"]
    assert [*aliases["module_detail"]] == aliases["module_list"]


@pytest.mark.parametrize(
    ("tag", "models", "modules"),
    [
        ("Canny", [CANNY, "promax [89abcdef]"], ["none", "canny", "invert"]),
        ("Depth", ["depth-sdxl [0123abcd]", "promax [89abcdef]"], ["none"]),
        ("Tile", ["promax [89abcdef]"], ["none", "tile_resample", "blur_gaussian"]),
        ("Shuffle", [], ["none"]),
    ],
)
def test_control_types(site: Site, tag: str, models: list[str], modules: list[str]):
    types = get(site, "control_types")["control_types"]
    kind = types[tag]
    assert kind["model_list"] == ["None", *models]
    assert [name.split(" ")[0] for name in kind["module_list"]] == modules
    assert kind["default_option"] == modules[:2][-1]
    assert kind["default_model"] == [*models, "None"][0]
    every_type = types["All"]
    assert (every_type["default_option"], every_type["default_model"]) == ("none", "None")
    assert len(every_type["module_list"]) == len(PREPROCESSORS)


def maps(answer: Any) -> list[Pillow.Image]:
    if isinstance(answer, webuiapi.WebUIApiResult):
        return answer.images
    assert answer["info"] == "Success"
    return [Pillow.open(io.BytesIO(base64.b64decode(image))) for image in answer["images"]]


def test_maps(site: Site, api: webuiapi.WebUIApi):
    (inverted,) = maps(api.controlnet_detect([PICTURE], "invert"))
    np.testing.assert_array_equal(np.asarray(inverted), 255 - np.asarray(PICTURE))
    sizes = [each.size for each in maps(api.controlnet_detect([PICTURE, MASK], "canny", 64))]
    assert sizes == [(96, 64), (96, 64)]


def detect(site: Site, **body: Any) -> httpx.Response:
    named = {f"controlnet_{name}": value for name, value in body.items()}
    return httpx.post(f"{site.url}/controlnet/detect", json=named)


def test_the_masked_part_of_a_map_is_half_transparent(site: Site):
    answer = detect(site, module="inpaint_only", input_images=[IMAGE], masks=[DRAWN])
    (marked,) = maps(answer.json())
    assert (marked.getpixel((0, 0)), marked.getpixel((12, 8))) == (
        (*np.asarray(PICTURE)[0, 0], 255),
        (*np.asarray(PICTURE)[8, 12], 128),
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"module": "openpose", "input_images": [IMAGE]},
            "preprocessor is 'openpose'; expected one of",
        ),
        ({"module": "canny"}, "No image selected"),
        ({"module": "inpaint", "input_images": [IMAGE]}, "requires `controlnet_masks` param"),
        ({"module": "canny", "input_images": ["bm8="]}, "controls cannot be used"),
        ({"module": "canny", "input_images": [encoded(Pillow.new("RGB", (90, 10)))]}, "90x10"),
    ],
)
def test_maps_that_cannot_be_made(site: Site, body: dict[str, Any], message: str):
    answer = detect(site, **body)
    assert answer.status_code == 422
    assert {*answer.json()} == {"error", "detail", "body", "errors"}
    assert message in answer.json()["detail"]


def test_few_pictures_at_a_time(site: Site):
    answer = detect(site, module="canny", input_images=[IMAGE] * (MAX_CONTROLS + 1))
    assert answer.status_code == 422
    assert "at most 3 items" in answer.json()["detail"][0]["msg"]


PATHS = ["version", "model_list", "module_list", "control_types", "settings"]


@pytest.mark.parametrize("path", PATHS)
def test_routes_need_what_the_rest_of_the_api_needs(path: str):
    with serve(a1111="keys", keys=["secret"]) as keyed:
        url = f"{keyed.url}/controlnet/{path}"
        refused = httpx.get(url)
        assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, "Basic")
        assert httpx.get(url, auth=("user", "secret")).status_code == 200
        assert httpx.head(url, auth=("user", "secret")).status_code == 200
        assert httpx.get(f"{url}/", auth=("user", "secret")).status_code == 200
        assert httpx.post(f"{keyed.url}/controlnet/detect", json={}).status_code == 401


def test_paths_that_are_not_here():
    with serve(a1111="off") as closed:
        for path in ("version", "nothing"):
            answer = httpx.get(f"{closed.url}/controlnet/{path}")
            assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})


# --- calls for pictures

SIZE: Any = {"width": 8, "height": 8, "seed": 7, "steps": 2}


def with_units(*units: webuiapi.ControlNetUnit) -> dict[str, Any]:
    """Return arguments of webuiapi, which keeps scripts from call to call unless it has them."""
    return {"controlnet_units": [*units], "alwayson_scripts": {}}


def opened(image: Pillow.Image | None) -> bytes | None:
    return image and image.tobytes()


def test_pictures_that_follow_others(site: Site, api: Any):
    unit = webui_unit(image=PICTURE, module="canny", model="depth", weight=0.5)
    result = api.txt2img(prompt="a star", n_iter=3, **with_units(unit), **SIZE)
    assert len(result.images) == 3
    for call in site.pipe.calls[-2:]:
        assert call["controls"] == (
            "depth-sdxl:scale=0.5:preprocessor=canny:resolution=512:threshold_a=64:threshold_b=64"
            ":resize_mode=fill"
        )
        assert [*map(opened, call["followed"])] == [PICTURE.tobytes()]
    assert result.parameters["alwayson_scripts"] in ({}, None)
    assert "controlnet" not in str(result.info["ignored"]).lower()


def test_pictures_to_start_from_are_followed(site: Site, api: Any):
    first = webui_unit(model="depth")
    second = webui_unit(image=PICTURE, model="promax", mask=MASK, module="inpaint")
    images = [PICTURE.resize((8, 8)), PICTURE.resize((8, 8))]
    result = api.img2img(images, prompt="a star", **with_units(first, second), **SIZE)
    assert len(result.images) == 2
    for call in site.pipe.calls[-2:]:
        assert call["controls"] == "depth-sdxl,promax:preprocessor=inpaint:resize_mode=fill"
        none, marked = call["followed"]
        assert none is None
        assert (marked.mode, marked.getextrema()[3]) == ("RGBA", (0, 255))


@pytest.mark.parametrize("has_image", [False, True])
def test_calls_without_units(site: Site, has_image: bool):
    body = {"prompt": "a", **SIZE, "alwayson_scripts": {"ControlNet": {"args": []}}}
    body |= {"init_images": [IMAGE]} if has_image else {}
    path = "img2img" if has_image else "txt2img"
    assert httpx.post(f"{site.url}/sdapi/v1/{path}", json=body).status_code == 200
    assert (site.pipe.calls[-1]["controls"], site.pipe.calls[-1]["followed"]) == ("", [])


@pytest.mark.parametrize(
    ("unit", "message"),
    [
        ({"model": "gone", "image": IMAGE}, "ControlNet: model not found: gone"),
        ({"model": "depth"}, "ControlNet: controlnet is enabled but no input image is given"),
        ({"model": "depth", "image": "bm8="}, "controls cannot be used"),
        ({"model": "depth", "image": IMAGE, "mask": "bm8="}, "controls cannot be used"),
    ],
)
def test_calls_that_are_refused(site: Site, unit: dict[str, Any], message: str):
    calls = len(site.pipe.calls)
    body = {"prompt": "a", **SIZE, "alwayson_scripts": {"ControlNet": {"args": [unit]}}}
    answer = httpx.post(f"{site.url}/sdapi/v1/txt2img", json=body)
    assert answer.status_code == 422
    assert message in answer.json()["detail"]
    assert len(site.pipe.calls) == calls


def test_a_wrong_unit_is_answered_without_its_values(site: Site):
    unit = {"model": "depth", "image": IMAGE, "weight": "a secret"}
    body = {"prompt": "a", "alwayson_scripts": {"ControlNet": {"args": [unit]}}}
    answer = httpx.post(f"{site.url}/sdapi/v1/txt2img", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "weight"]
    assert "secret" not in answer.text


def test_large_pictures_fit_into_a_call(site: Site):
    noise = np.random.default_rng(1).integers(0, 256, (1024, 1024, 3), np.uint8)
    unit = {"model": "depth", "image": encoded(Pillow.fromarray(noise))}
    body = {"prompt": "a", **SIZE, "alwayson_scripts": {"ControlNet": {"args": [unit]}}}
    answer = httpx.post(f"{site.url}/sdapi/v1/txt2img", json=body)
    assert answer.status_code == 200
    assert opened(site.pipe.calls[-1]["followed"][0]) == noise.tobytes()
