"""What other programs send to AUTOMATIC1111's API, as their own code has it."""

import base64
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from PIL import Image as Pillow

from serving.http.a1111.bodies import Txt2ImgBody
from serving.http.a1111.requests import asked_of
from serving.metrics import Observer
from serving.requests.registry import Limits
from tests.fake_pipeline import FakePipeline
from tests.generators import local_generator
from tests.models import MODEL
from tests.pictures import saved
from tests.web import Site, serve

CLIP_SKIP = "override_settings.CLIP_stop_at_last_layers"


def canvas(mask: str = "") -> str:
    """Return what `toDataURL` makes of a canvas of 512x512: RGBA; a mask is white at the right."""
    picture = Pillow.new("RGBA", (512, 512), mask or "grey")
    if mask:
        picture.paste("white", (256, 0, 512, 512))
    return "data:image/png;base64," + base64.b64encode(saved(picture)).decode()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    pipe = FakePipeline()
    pipe.facts = replace(pipe.facts, height=64, width=64)
    generator = local_generator(pipe.as_pipeline(), Limits(), Observer())
    with serve(a1111="on", generator=generator) as served:
        yield replace(served, pipe=pipe)


OPEN_WEBUI = {"prompt": "a star", "batch_size": 1, "width": 512, "height": 512, "steps": 50}
SILLYTAVERN = {
    "prompt": "a star",
    "negative_prompt": "bad",
    "sampler_name": "DDIM",
    "scheduler": "normal",
    "steps": 20,
    "cfg_scale": 7,
    "width": 512,
    "height": 512,
    "restore_faces": False,
    "enable_hr": False,
    "hr_upscaler": "Latent",
    "hr_scale": 1,
    "hr_additional_modules": [],
    "denoising_strength": 0.7,
    "hr_second_pass_steps": 0,
    "override_settings": {"CLIP_stop_at_last_layers": 1},
    "override_settings_restore_afterwards": True,
    "clip_skip": 1,
    "save_images": True,
    "send_images": True,
    "do_not_save_grid": False,
    "do_not_save_samples": False,
}
KOBOLDAI_LITE = {
    "prompt": "a star",
    "seed": 99999999,
    "sampler_name": "Euler a",
    "batch_size": 1,
    "n_iter": 1,
    "steps": 20,
    "cfg_scale": 7,
    "width": 512,
    "height": 512,
    "negative_prompt": "bad",
    "do_not_save_samples": True,
    "do_not_save_grid": True,
    "enable_hr": False,
    "eta": 0,
    "s_churn": 0,
    "s_tmax": 0,
    "s_tmin": 0,
    "s_noise": 1,
    "override_settings": {
        "sd_model_checkpoint": "stand-in",
        "eta_noise_seed_delta": 0.0,
        "CLIP_stop_at_last_layers": 1.0,
        "ddim_discretize": "uniform",
        "img2img_fix_steps": False,
        "sd_hypernetwork": "None",
        "inpainting_mask_weight": 1.0,
        "initial_noise_multiplier": 1.0,
        "comma_padding_backtrack": 20.0,
    },
}
OPENOUTPAINT = {
    "prompt": "a star",
    "negative_prompt": "",
    "seed": -1,
    "cfg_scale": 7,
    "sampler_index": "DDIM",
    "steps": 30,
    "denoising_strength": 1,
    "mask_blur": 0,
    "batch_size": 2,
    "width": 512,
    "height": 512,
    "n_iter": 1,
    "mask": "",
    "init_images": [],
    "inpaint_full_res": False,
    "inpainting_fill": 1,
    "outpainting_fill": 2,
    "enable_hr": False,
    "restore_faces": False,
    "hr_scale": 2.0,
    "hr_upscaler": "None",
    "hr_second_pass_steps": 0,
    "hr_resize_x": 0,
    "hr_resize_y": 0,
    "hr_square_aspect": False,
    "styles": [],
    "alwayson_scripts": {},
}
CYANIC = {
    "prompt": "a star",
    "negative_prompt": "",
    "sampler_name": "DPM++ 2M Karras",
    "steps": 20,
    "cfg_scale": 7.0,
    "seed": -1,
    "subseed": -1,
    "subseed_strength": 0,
    "batch_size": 1,
    "n_iter": 1,
    "width": 512,
    "height": 512,
    "enable_hr": False,
    "styles": [],
    "override_settings": {
        "sd_model_checkpoint": "stand-in",
        "sd_vae": "Automatic",
        "img2img_color_correction": True,
    },
    "override_settings_restore_afterwards": False,
    "save_images": False,
    "alwayson_scripts": {},
}
MASKED = {"init_images": [canvas()], "mask": canvas(mask="black"), "inpaint_full_res": False}
TEXTS = {  # as forms have them
    "prompt": "a star",
    "seed": "-1",
    "steps": "20",
    "cfg_scale": "7.5",
    "width": "512",
    "height": "512.0",
    "denoising_strength": "0.75",
}


@pytest.mark.parametrize(
    ("path", "body", "images"),
    [
        ("txt2img", OPEN_WEBUI, 1),
        ("txt2img", SILLYTAVERN, 1),
        ("txt2img", SILLYTAVERN | {"seed": "-1", "hr_scale": 0}, 1),
        ("txt2img", KOBOLDAI_LITE, 1),
        ("img2img", KOBOLDAI_LITE | {"init_images": [canvas()], "denoising_strength": 0.6}, 1),
        ("txt2img", OPENOUTPAINT, 2),
        ("img2img", OPENOUTPAINT | MASKED, 2),
        ("txt2img", CYANIC, 1),
        ("img2img", CYANIC | MASKED | {"mask_blur": 0, "inpainting_fill": 1}, 1),
        ("txt2img", TEXTS, 1),
    ],
)
def test_bodies(site: Site, path: str, body: dict[str, Any], images: int):
    answer = httpx.post(f"{site.url}/sdapi/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    pictures = [
        Pillow.open(io.BytesIO(base64.b64decode(image))) for image in answer.json()["images"]
    ]
    assert [picture.size for picture in pictures] == [(512, 512)] * images
    info = json.loads(answer.json()["info"])
    assert (info["width"], info["height"], info["replaced"]["size"]) == (512, 512, "64x64")
    assert info["negative_prompt"] == body.get("negative_prompt", "")


def test_only_the_white_part_of_a_canvas_is_redrawn(site: Site):
    httpx.post(f"{site.url}/sdapi/v1/img2img", json=OPENOUTPAINT | MASKED)
    call = site.pipe.calls[-1]
    assert (call["image"].size, call["mask"].getbbox()) == ((64, 64), (32, 0, 64, 64))


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/internal/ping", {}),
        ("HEAD", "/internal/ping", None),
        ("GET", "/sdapi/v1/samplers/", ...),
        ("HEAD", "/sdapi/v1/sd-models", None),
        ("HEAD", "/sdapi/v1/options", None),
        ("HEAD", "/sdapi/v1/progress", None),
        ("HEAD", "/v1/models", None),
        ("HEAD", "/healthz", None),
        ("HEAD", "/readyz", None),
        ("POST", "/sdapi/v1/options/", None),
        ("POST", "/sdapi/v1/txt2img/", ...),
        ("POST", "/sdapi/v1/unload-checkpoint", {}),
        ("POST", "/sdapi/v1/reload-checkpoint", {}),
        ("POST", "/sdapi/v1/refresh-checkpoints", None),
        ("POST", "/v1/images/generations/", ...),
        ("GET", "/v1/models/", ...),
    ],
)
@pytest.mark.parametrize("media_type", ["application/json", None])
def test_paths(site: Site, method: str, path: str, expected: Any, media_type: str | None):
    headers = {"Content-Type": media_type} if media_type else {}
    content = b'{"prompt": "a"}' if "options" not in path else b"{}"
    answer = httpx.request(method, site.url + path, content=content, headers=headers)
    assert answer.status_code == 200, answer.text
    if method == "HEAD":
        assert answer.content == b""
    elif expected is not ...:
        assert answer.json() == expected


def test_the_queue_as_gradio_3_tells_of_it(site: Site):
    status = httpx.get(f"{site.url}/queue/status").json()
    assert (status["msg"], status["queue_size"], status["queue_eta"]) == ("estimation", 0, 0)


def test_the_page_s_routes_need_no_sign_in_and_no_key():
    with serve(a1111="keys", keys=["secret"]) as keyed:
        for path, status in (("/queue/status", 200), ("/internal/ping", 200)):
            assert httpx.get(keyed.url + path).status_code == status
        assert httpx.get(f"{keyed.url}/sdapi/v1/samplers/").status_code == 401


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        ({"seed": 2**32 + 7}, "seed", 7),
        ({"seed": 10**30}, "seed", 10**30 % 2**32),
        ({"seed": -2}, "seed", 2**32 - 2),
        ({"seed": "7"}, "seed", 7),
        ({"seed": 7.0}, "seed", 7),
        ({"steps": 20.0}, "num_inference_steps", 20),
        ({"steps": 20.7}, "num_inference_steps", 20),
        ({"steps": "20.0"}, "num_inference_steps", 20),
        ({"cfg_scale": "7.5"}, "guidance_scale", 7.5),
        ({"width": 64.0, "height": "64"}, "width", 64),
        ({"prompt": 7}, "prompt", "7"),
        ({"negative_prompt": None}, "negative_prompt", None),
        ({"hr_scale": 0, "enable_hr": True}, "enlarge", "64x64"),
        ({"enable_hr": "true", "hr_second_pass_steps": 8.0}, "enlarge_steps", 8),
        ({"enable_hr": 1, "denoising_strength": 0, "steps": 8}, "enlarge_strength", 0.125),
    ],
)
def test_values_are_read_as_leniently_as_there(
    site: Site, body: dict[str, Any], field: str, value: Any
):
    answer = httpx.post(f"{site.url}/sdapi/v1/txt2img", json={"prompt": "a star"} | body)
    assert answer.status_code == 200, answer.text
    assert site.pipe.calls[-1][field] == value


def test_a_seed_of_minus_one_is_random(site: Site):
    for seed in (-1, -1.0, "-1", None):
        body = {"prompt": "a star", "seed": seed}
        answer = httpx.post(f"{site.url}/sdapi/v1/txt2img", json=body)
        assert json.loads(answer.json()["info"])["seed"] > 0


@pytest.mark.parametrize(("steps", "strength"), [(4, 0.25), (20, 0.05), (50, 0.02), (None, 0.25)])
def test_a_picture_is_redrawn_in_one_step_at_least(site: Site, steps: int | None, strength: float):
    body = {"prompt": "a", "init_images": [canvas()], "denoising_strength": 0, "steps": steps}
    answer = httpx.post(f"{site.url}/sdapi/v1/img2img", json=body)
    assert answer.status_code == 200, answer.text
    assert site.pipe.calls[-1]["strength"] == strength


@pytest.mark.parametrize(
    ("body", "drawn", "ignored"),
    [
        ({"override_settings": {"CLIP_stop_at_last_layers": 2.0}}, 2, ()),
        ({"clip_skip": 2}, 2, ()),
        ({"clip_skip": 1, "override_settings": {"CLIP_stop_at_last_layers": 3}}, 3, ()),
        ({}, 0, ()),
        ({"override_settings": {"CLIP_stop_at_last_layers": "two"}}, 0, (CLIP_SKIP,)),
    ],
)
def test_the_layer_that_is_read(body: dict[str, Any], drawn: int, ignored: tuple[str, ...]):
    read = Txt2ImgBody.model_validate({"prompt": "a"} | body)
    facts = replace(MODEL, max_clip_skip=12)
    asked = asked_of(read, facts, facts.name, visitor="", address="")
    assert (asked.request.clip_skip, asked.ignored) == (drawn, ignored)
    without = asked_of(read, MODEL, MODEL.name, visitor="", address="")
    name = CLIP_SKIP if "override_settings" in body else "clip_skip"
    assert (without.request.clip_skip, without.ignored) == (0, (name,) if body else ())


# --- sizes


@pytest.mark.parametrize(
    ("asked", "drawn", "replaced"),
    [
        ({"width": 96, "height": 64}, ["96x64", ""], {}),
        ({"width": 960, "height": 640}, ["96x64", ""], {"size": "96x64"}),
        ({"width": 512, "height": 512}, ["128x128", ""], {"size": "128x128"}),
        ({"width": 100, "height": 100}, ["128x128", ""], {"size": "128x128"}),
        ({"width": 512}, ["96x64", ""], {"size": "96x64"}),
        (
            {"width": 512, "height": 512, "enable_hr": True, "hr_scale": 2},
            ["128x128", "128x128"],
            {"size": "128x128", "hr_resize": "128x128"},
        ),
        ({"enable_hr": True, "hr_scale": 2}, ["64x64", "128x128"], {}),
        ({"enable_hr": True, "hr_resize_x": 2048}, ["64x64", "128x128"], {"hr_resize": "128x128"}),
    ],
)
@pytest.mark.parametrize("more_sizes", [((96, 64), (128, 128))])
def test_sizes(asked: dict[str, Any], drawn: list[str], replaced: dict[str, str], more_sizes: Any):
    pipe = FakePipeline()
    pipe.facts = replace(pipe.facts, height=64, width=64, more_sizes=more_sizes)
    generator = local_generator(pipe.as_pipeline(), Limits(), Observer())
    with serve(a1111="on", generator=generator) as sized:
        answer = httpx.post(f"{sized.url}/sdapi/v1/txt2img", json={"prompt": "a"} | asked).json()
    info = json.loads(answer["info"])
    call = pipe.calls[-1]
    assert ["{width}x{height}".format(**call), call["enlarge"]] == drawn
    assert info["replaced"] == replaced
    picture = Pillow.open(io.BytesIO(base64.b64decode(answer["images"][0])))
    assert picture.size == (info["width"], info["height"])
