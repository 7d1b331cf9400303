"""AUTOMATIC1111's API, tested with the package webuiapi, and with calls of other clients."""

import base64
import io
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import webuiapi
from PIL import Image as Pillow

from pipeline import BUNDLED, metadata
from serving.generators.local import Folders
from serving.generators.watched import EmbeddingFolder, LoraFolder
from serving.http import limits
from serving.http.a1111 import bodies, listings, requests
from serving.messages import Code, Message
from serving.metrics import Observer
from serving.requests.registry import Limits
from tests.checkpoints import shared_pipeline
from tests.embeddings import save_embedding
from tests.fake_pipeline import FakePipeline
from tests.generators import local_generator
from tests.pictures import png, saved
from tests.web import Site, serve, wait_until

GREY = (100, 100, 100)
SIZE = {"width": 8, "height": 8}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve(a1111="keys") as site:
        site.pipe.truncated = ""
        yield site


@pytest.fixture(scope="module")
def api(site: Site) -> webuiapi.WebUIApi:
    return client_of(site)


def client_of(site: Site, **options: Any) -> webuiapi.WebUIApi:
    return webuiapi.WebUIApi(baseurl=f"{site.url}/sdapi/v1", sampler="Euler", steps=4, **options)


def txt2img(api: Any, **arguments: Any) -> Any:
    return api.txt2img(**{"prompt": "a red star", "seed": 7} | SIZE | arguments)


def img2img(api: Any, **arguments: Any) -> Any:
    images = [Pillow.new("RGB", (8, 8), GREY)]
    return api.img2img(**{"images": images, "prompt": "a red star", "seed": 7} | SIZE | arguments)


def post(site: Site, path: str, body: Any, **options: Any) -> httpx.Response:
    return httpx.post(f"{site.url}/sdapi/v1/{path}", json=body, **options)


def refused(call: Any, *arguments: Any, **named: Any) -> tuple[int, dict[str, Any]]:
    """Return the status and the body of the error that webuiapi raises."""
    with pytest.raises(RuntimeError) as raised:
        call(*arguments, **named)
    status, text = raised.value.args
    return status, json.loads(text)


def colours(result: Any) -> list[Any]:
    return [image.convert("RGB").getpixel((0, 0)) for image in result.images]


# --- pictures from words ---


def test_a_picture(site: Site, api: webuiapi.WebUIApi):
    result = txt2img(
        api, negative_prompt="a moon", cfg_scale=6.5, subseed=3, subseed_strength=0.25, steps=3
    )
    assert [image.size for image in result.images] == [(8, 8)]
    call = site.pipe.calls[-1]
    assert (call["prompt"], call["negative_prompt"]) == ("a red star", "a moon")
    assert (call["guidance_scale"], call["num_inference_steps"], call["seed"]) == (6.5, 3, 7)
    assert (call["variation_seed"], call["variation_strength"]) == (3, 0.25)
    assert (call["scheduler"], call["sigma_schedule"]) == ("euler", "")
    assert (call["width"], call["height"], call["image"]) == (8, 8, None)
    assert call["prompt_syntax"] == "a1111"
    info = result.info
    assert (info["seed"], info["all_seeds"], info["all_subseeds"]) == (7, [7], [3])
    assert (info["sampler_name"], info["steps"], info["cfg_scale"]) == ("Euler", 3, 6.5)
    assert (info["width"], info["height"], info["all_prompts"]) == (8, 8, ["a red star"])
    assert info["infotexts"] == [result.image.info["parameters"]]
    assert metadata.from_text(info["infotexts"][0]).negative_prompt == "a moon"
    assert (result.parameters["cfg_scale"], result.parameters["tiling"]) == (6.5, False)
    assert info["ignored"] == []


def test_several_pictures(api: webuiapi.WebUIApi):
    result = txt2img(api, batch_size=3, n_iter=2)
    assert [red for red, *_ in colours(result)] == [7, 8, 9, 10, 11, 12]
    assert result.info["all_seeds"] == [7, 8, 9, 10, 11, 12]
    assert len(result.info["infotexts"]) == 6
    varied = txt2img(api, batch_size=3, subseed=20, subseed_strength=0.5)
    assert (varied.info["all_seeds"], varied.info["all_subseeds"]) == ([7] * 3, [20, 21, 22])


def test_a_random_seed(api: webuiapi.WebUIApi):
    seeds = [txt2img(api, seed=-1).info["seed"] for _ in range(2)]
    assert seeds[0] != seeds[1]
    assert all(seed >= 0 for seed in seeds)


def test_a_body_with_nothing_but_a_prompt(site: Site):
    answer = post(site, "txt2img", {"prompt": "a red star"})
    assert len(answer.json()["images"]) == 1
    call = site.pipe.calls[-1]
    assert (call["num_inference_steps"], call["guidance_scale"], call["scheduler"]) == (4, 5.0, "")
    nulls = dict.fromkeys(bodies.Txt2ImgBody.model_fields) | {"prompt": "a red star"}
    assert len(post(site, "txt2img", nulls).json()["images"]) == 1


def test_pictures_that_are_not_sent(api: webuiapi.WebUIApi):
    result = txt2img(api, send_images=False)
    assert (result.images, result.info["all_seeds"]) == ([], [7])


@pytest.mark.parametrize(
    ("name", "kind"), [("png", "PNG"), ("jpg", "JPEG"), ("webp", "WEBP"), ("WebP", "WEBP")]
)
def test_formats(api: webuiapi.WebUIApi, name: str, kind: str):
    override = {"samples_format": name, "jpeg_quality": 80}
    result = txt2img(api, override_settings=override)
    assert result.image.format == kind


@pytest.mark.parametrize(
    ("sampler", "scheduler", "expected"),
    [
        ("Euler", "Automatic", ("euler", "")),
        ("Euler", "karras", ("euler", "karras")),
        ("Euler Karras", "Automatic", ("euler", "karras")),
        ("k_euler", "uniform", ("euler", "default")),
        ("Heun", "Uniform", ("heun", "default")),
    ],
)
def test_samplers_and_schedules(
    site: Site, api: webuiapi.WebUIApi, sampler: str, scheduler: str, expected: tuple[str, str]
):
    txt2img(api, sampler_name=sampler, scheduler=scheduler)
    call = site.pipe.calls[-1]
    assert (call["scheduler"], call["sigma_schedule"]) == expected


@pytest.mark.parametrize(
    ("asked", "drawn", "replaced"),
    [
        ({"sampler_name": "Euler a"}, ("euler", ""), {"sampler_name": "Euler"}),
        ({"sampler_index": "LCM"}, ("euler", ""), {"sampler_name": "Euler"}),
        ({"sampler_name": "DPM2 Karras"}, ("heun", "karras"), {"sampler_name": "Heun"}),
        ({"sampler_name": "Restart"}, ("heun", ""), {"sampler_name": "Heun"}),
        ({"sampler_name": "k_dpm_2"}, ("heun", ""), {"sampler_name": "Heun"}),
        ({"sampler_name": "DPM++ 3M SDE"}, ("euler", ""), {"sampler_name": "Euler"}),
        ({"sampler_name": "no such"}, ("euler", ""), {"sampler_name": "Euler"}),
        ({"scheduler": "KL Optimal"}, ("", "karras"), {"scheduler": "Karras"}),
        ({"scheduler": "normal"}, ("", "default"), {"scheduler": "Uniform"}),
        ({"scheduler": "simple"}, ("", "default"), {"scheduler": "SGM Uniform"}),
        ({"scheduler": "polyexponential"}, ("", ""), {"scheduler": "Automatic"}),
        ({"scheduler": "no such"}, ("", ""), {"scheduler": "Automatic"}),
        ({"sampler_name": "DDIM", "scheduler": "karras"}, ("ddim", ""), {"scheduler": "Automatic"}),
        ({"sampler_name": "DDIM", "scheduler": "uniform"}, ("ddim", "default"), {}),
        ({"sampler_name": "DDIM", "scheduler": "Automatic"}, ("ddim", ""), {}),
    ],
)
def test_what_is_not_here_is_replaced_by_the_nearest(
    site: Site, asked: dict[str, Any], drawn: tuple[str, str], replaced: dict[str, str]
):
    info = json.loads(post(site, "txt2img", {"prompt": "a"} | asked).json()["info"])
    call = site.pipe.calls[-1]
    assert (call["scheduler"], call["sigma_schedule"]) == drawn
    assert (info["replaced"], info["ignored"]) == (replaced, [])


def test_every_listed_sampler_and_schedule_draws(site: Site, api: webuiapi.WebUIApi):
    for sampler in api.util_get_sampler_names():
        assert txt2img(api, sampler_name=sampler).images
    spacings = []
    for schedule in api.util_get_scheduler_names():
        assert txt2img(api, scheduler=schedule).info["ignored"] == []
        spacings.append(site.pipe.calls[-1]["timestep_spacing"])
    assert "trailing" in spacings


def test_eta_is_for_the_samplers_that_take_it(site: Site, api: webuiapi.WebUIApi):
    txt2img(api, sampler_name="DDIM", eta=0.5)
    assert site.pipe.calls[-1]["eta"] == 0.5
    override = {"override_settings": {"eta_ddim": 0.25}}
    drawn = post(site, "txt2img", {"prompt": "a", "sampler_name": "DDIM"} | override)
    assert (drawn.status_code, site.pipe.calls[-1]["eta"]) == (200, 0.25)
    assert "eta" in txt2img(api, eta=0.5).info["ignored"]
    assert site.pipe.calls[-1]["eta"] is None


def test_what_changes_nothing_here_is_named(
    api: webuiapi.WebUIApi, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    result = txt2img(
        api,
        tiling=True,
        restore_faces=True,
        s_churn=0.5,
        styles=["a style"],
        enable_hr=True,
        hr_prompt="a style",
        hr_resize_x=8,
        override_settings={"CLIP_stop_at_last_layers": 2, "sd_model_checkpoint": "other"},
    )
    assert set(result.info["ignored"]) == {
        *("tiling", "restore_faces", "s_churn", "styles", "hr_prompt", "hr_upscaler"),
        *("override_settings.sd_model_checkpoint", "override_settings.CLIP_stop_at_last_layers"),
    }
    assert "Ignored in a call of txt2img: " in caplog.text
    assert "a style" not in caplog.text


def test_a_refiner_goes_on_where_the_call_says(site: Site):
    asked = {"refiner_checkpoint": "sd_xl_refiner_1.0", "refiner_switch_at": 0.6}
    answer = post(site, "txt2img", {"prompt": "a red star"} | SIZE | asked).json()
    assert json.loads(answer["info"])["ignored"] == ["refiner_checkpoint"]
    assert site.pipe.calls[-1]["denoising_end"] is None
    for given, share in ((asked, 0.6), ({"refiner_checkpoint": "None"}, 1), ({}, None)):
        body = bodies.Txt2ImgBody.model_validate({"prompt": "a red star"} | given)
        model = replace(site.pipe.facts, refiner="org/refiner")
        found = requests.asked_of(body, model, model.name, visitor="", address="")
        assert (found.request.denoising_end, found.ignored) == (share, ())


# --- pictures from pictures ---


def half(white: str = "lower", mode: str = "L") -> Pillow.Image:
    """Return a mask, half of which is white; in RGBA, the white half is opaque."""
    mask = Pillow.new(mode, (8, 8), 0)
    mask.paste("white", (0, 4, 8, 8) if white == "lower" else (0, 0, 8, 4))
    return mask


def test_a_picture_is_redrawn(site: Site, api: webuiapi.WebUIApi):
    result = img2img(api, denoising_strength=0.5, batch_size=3)
    assert colours(result) == [(7 + i, 100, 0) for i in range(3)]
    call = site.pipe.calls[-1]
    assert (call["strength"], call["mask"], call["padding"]) == (0.5, None, None)
    assert (result.parameters["init_images"], result.parameters["mask"]) == (None, None)
    text = result.info["infotexts"][0]
    assert metadata.from_text(text).strength == 0.5
    img2img(api)
    assert site.pipe.calls[-1]["strength"] == 0.75


@pytest.mark.parametrize("mask", [half(), half(mode="RGBA")], ids=lambda mask: mask.mode)
@pytest.mark.parametrize("inverted", [0, 1])
def test_masks(site: Site, api: webuiapi.WebUIApi, mask: Pillow.Image, inverted: int):
    result = img2img(api, mask_image=mask, inpainting_mask_invert=inverted, inpaint_full_res=False)
    assert colours(result) == [(7, 100, 127)]
    drawn = site.pipe.calls[-1]["mask"].convert("L")
    assert [drawn.getpixel((0, y)) for y in (0, 7)] == [255 * inverted, 255 - 255 * inverted]
    assert site.pipe.calls[-1]["padding"] is None


def test_only_the_masked_part(site: Site, api: webuiapi.WebUIApi):
    large, mask = Pillow.new("RGB", (40, 30), GREY), half().resize((40, 30))
    img2img(api, images=[large], mask_image=mask, inpaint_full_res_padding=12)
    call = site.pipe.calls[-1]
    assert (call["padding"], call["image"].size) == (12, (40, 30))


def test_the_masked_part_is_filled_or_kept(site: Site, api: webuiapi.WebUIApi):
    picture = Pillow.new("RGB", (8, 8), "red")
    picture.paste("blue", (0, 4, 8, 8))
    seen = []
    for fill in (0, 1, 2):
        result = img2img(api, images=[picture], mask_image=half(), inpainting_fill=fill)
        seen.append(site.pipe.calls[-1]["image"].getpixel((4, 7)))
        assert ("inpainting_fill" in result.info["ignored"]) == (fill == 2)
    assert seen == [(255, 0, 0), (0, 0, 255), (0, 0, 255)]


@pytest.mark.parametrize(
    ("resize_mode", "expected"),
    [(0, ["red", "black", "blue"]), (1, ["black"] * 3), (2, ["red", "black", "blue"])],
)
def test_a_picture_of_another_shape(
    site: Site, api: webuiapi.WebUIApi, resize_mode: int, expected: list[str]
):
    """A wide picture, red at the left and blue at the right, is stretched, cut or framed."""
    wide = Pillow.new("RGB", (32, 8), "black")
    wide.paste("red", (0, 0, 8, 8))
    wide.paste("blue", (24, 0, 32, 8))
    mask = half().resize((32, 8))
    img2img(api, images=[wide], mask_image=mask, resize_mode=resize_mode, inpaint_full_res=False)
    call = site.pipe.calls[-1]
    assert call["image"].size == call["mask"].size == (8, 8)
    row = [call["image"].getpixel((x, 0)) for x in (0, 4, 7)]
    names = {(255, 0, 0): "red", (0, 0, 255): "blue", (0, 0, 0): "black"}
    assert [names[tuple(255 * (value > 99) for value in pixel)] for pixel in row] == expected


def test_several_pictures_to_start_from(api: webuiapi.WebUIApi):
    pictures = [Pillow.new("RGB", (8, 8), (value,) * 3) for value in (10, 20, 30)]
    result = img2img(api, images=pictures, n_iter=2)
    assert colours(result) == [(7 + i, 10 * (i % 3 + 1), 0) for i in range(6)]
    assert result.info["all_seeds"] == [7, 8, 9, 10, 11, 12]


def test_several_pictures_count_until_the_call_ends(
    site: Site, api: webuiapi.WebUIApi, monkeypatch: pytest.MonkeyPatch
):
    counted: list[int] = []
    count = limits.BoundedBody.count

    def noted(body: limits.BoundedBody, num_bytes: int) -> None:
        counted.append(num_bytes)
        count(body, num_bytes)

    monkeypatch.setattr(limits.BoundedBody, "count", noted)
    img2img(api, images=[Pillow.new("RGB", (8, 8), GREY)] * 3, batch_size=3)
    assert [size > 0 for size in counted] == [True, True, True, False]
    monkeypatch.setattr(limits, "MAX_BODY_BYTES", -(2**26))
    status, body = refused(img2img, api, images=[Pillow.new("RGB", (8, 8), GREY)] * 3)
    assert (status, body["detail"]) == (429, str(Message(Code.TOO_MANY_UPLOADS)))


@pytest.mark.parametrize(
    ("asked", "settings"),
    [
        ({"hr_scale": 1}, ("8x8", 0.75, None)),
        ({"hr_resize_x": 8, "hr_second_pass_steps": 3}, ("8x8", 0.75, 3)),
        ({"hr_resize_y": 8, "hr_resize_x": 8, "denoising_strength": 0.5}, ("8x8", 0.5, None)),
    ],
)
def test_a_second_run(
    site: Site, api: webuiapi.WebUIApi, asked: dict[str, Any], settings: tuple[Any, ...]
):
    txt2img(api, **{"denoising_strength": None} | asked, enable_hr=True, hr_upscaler="Lanczos")
    call = site.pipe.calls[-1]
    assert (call["enlarge"], call["enlarge_strength"], call["enlarge_steps"]) == settings


# --- progress, interrupt, skip ---


class Drawing:
    """A call that is under way in a thread."""

    def __init__(self, site: Site, call: Any, *arguments: Any, **named: Any) -> None:
        self.result: Any = None
        self._thread = threading.Thread(target=self._run, args=(call, arguments, named))
        self._thread.start()
        wait_until(lambda: site.pipe.at_rest)

    def _run(self, call: Any, arguments: Any, named: Any) -> None:
        self.result = call(*arguments, **named)

    def ended(self) -> Any:
        self._thread.join(60)
        assert self.result is not None
        return self.result


def test_progress_and_interrupt():
    with serve(held=True, a1111="keys") as site:
        api = client_of(site)
        idle = api.get_progress()
        assert (idle["progress"], idle["state"]["job_count"], idle["state"]["job"]) == (0, 0, "")
        api.util_wait_for_ready()
        drawing = Drawing(site, txt2img, api, batch_size=2, n_iter=2)
        first = api.get_progress()
        assert (first["state"]["job"], first["state"]["job_count"]) == ("txt2img", 2)
        site.pipe.let_step(2)
        wait_until(lambda: api.get_progress()["state"]["sampling_step"] == 2)
        now = api.get_progress()
        assert now["progress"] == 0.25
        assert now["eta_relative"] > 0
        assert Pillow.open(io.BytesIO(base64.b64decode(now["current_image"]))).format == "JPEG"
        hidden = api.custom_get("progress?skip_current_image=true", baseurl=True)
        assert hidden["current_image"] is None
        site.pipe.let_step(2)
        wait_until(lambda: api.get_progress()["state"]["job_no"] == 1)
        wait_until(lambda: site.pipe.at_rest)
        assert api.interrupt() == {}
        assert drawing.ended().info["all_seeds"] == [7, 8]
        assert api.get_progress()["state"]["job_count"] == 0


@pytest.mark.parametrize("stop", ["interrupt", "skip"])
def test_a_stopped_call_is_answered_with_the_unfinished_pictures(stop: str):
    with serve(held=True, a1111="keys") as site:
        api = client_of(site)
        drawing = Drawing(site, txt2img, api, batch_size=2, width=96, height=64)
        site.pipe.let_step(2)
        wait_until(lambda: api.get_progress()["current_image"])
        post(site, stop, {})
        result = drawing.ended()
        assert [image.size for image in result.images] == [(96, 64)] * 2
        assert (result.info["all_seeds"], result.info["steps"]) == ([7, 8], 4)
        settings = metadata.from_text(result.info["infotexts"][1])
        assert (settings.prompt, settings.seed, settings.scheduler) == ("a red star", 8, "euler")
        assert result.images[1].info["parameters"] == result.info["infotexts"][1]


def test_skip():
    with serve(held=True, a1111="keys") as site:
        api = client_of(site)
        assert api.skip() is None
        drawing = Drawing(site, txt2img, api, batch_size=2, n_iter=2)
        api.skip()
        wait_until(lambda: api.get_progress()["state"]["job_no"] == 1)
        site.pipe.let_all()
        assert drawing.ended().info["all_seeds"] == [9, 10]


def test_nobody_sees_or_stops_the_pictures_of_others():
    with serve(held=True, a1111="keys", keys=["one", "other"]) as site:
        mine = client_of(site, username="me", password="one")
        other = client_of(site, username="me", password="other")
        drawing = Drawing(site, txt2img, mine)
        assert other.get_progress()["state"]["job_count"] == 0
        other.interrupt()
        other.skip()
        assert mine.get_progress()["state"]["job_count"] == 1
        site.pipe.let_all()
        assert drawing.ended().info["all_seeds"] == [7]


def test_a_client_that_leaves_stops_its_pictures():
    with serve(held=True, a1111="keys") as site:
        with pytest.raises(httpx.ReadTimeout):
            post(site, "txt2img", {"prompt": "a red star"}, timeout=0.5)
        progress = f"{site.url}/sdapi/v1/progress"
        wait_until(lambda: httpx.get(progress).json()["state"]["job_count"] == 0)
        site.pipe.let_all()
        wait_until(lambda: httpx.get(f"{site.url}/readyz").json()["running"] == 0)


# --- lists ---


def test_lists(site: Site, api: webuiapi.WebUIApi):
    model = site.pipe.facts.name
    assert api.util_get_model_names() == [model]
    assert api.util_get_current_model() == model
    api.util_set_model(model)
    assert api.util_get_sampler_names() == ["DDIM", "Euler", "Heun"]
    schedules = ["automatic", "karras", "sgm_uniform", "uniform"]
    assert api.util_get_scheduler_names() == schedules
    assert api.get_cmd_flags()["freeze_settings"] is True
    assert api.get_memory()["ram"]["used"] > 2**20
    assert (api.get_sd_vae(), api.get_loras(), api.refresh_checkpoints()) == ([], [], None)
    for call, expected in (
        (api.get_upscalers, []),
        (api.get_latent_upscale_modes, []),
        (api.get_hypernetworks, []),
        (api.get_face_restorers, []),
        (api.get_realesrgan_models, []),
        (api.get_prompt_styles, []),
        (api.get_scripts, {"txt2img": [], "img2img": []}),
        (api.get_embeddings, {"loaded": {}, "skipped": {}}),
        (api.get_artists, {"detail": "Not Found"}),
        (api.get_artist_categories, {"detail": "Not Found"}),
    ):
        assert call() == expected
    for name in listings.FIXED:
        assert api.custom_get(name, baseurl=True) == listings.FIXED[name]


@pytest.mark.parametrize(
    ("prompt", "drawn", "ignored"),
    [
        ("a red star <lora:gone:0.8>, big", "a red star, big", ["<lora:gone:0.8>"]),
        ("a <hypernet:x:1> star", "a star", ["<hypernet:x:1>"]),
        ("a star AND a ring", "a star AND a ring", ["AND"]),
        ("a __colour__ star # <lora:gone:1>", "a __colour__ star", ["__colour__"]),
    ],
)
def test_parts_of_prompts_without_effect_are_named(
    api: webuiapi.WebUIApi, prompt: str, drawn: str, ignored: list[str]
):
    result = txt2img(api, prompt=prompt)
    assert result.info["prompt"] == prompt
    assert result.info["ignored"] == ignored
    found = metadata.from_text(result.info["infotexts"][0])
    assert (found.prompt, found.loras) == (drawn, None)


def test_the_end_that_does_not_fit_is_named(site: Site, api: webuiapi.WebUIApi):
    site.pipe.truncated = "big and blue"
    try:
        assert txt2img(api).info["ignored"] == ["big and blue"]
    finally:
        site.pipe.truncated = ""


def test_tags_without_effect_do_not_count_as_characters_of_a_prompt(api: webuiapi.WebUIApi):
    tags = [f"<lora:gone{i}:0.8>" for i in range(200)]
    result = txt2img(api, prompt="a red star " + " ".join(tags))
    assert result.info["ignored"] == tags
    assert result.info["all_prompts"] == ["a red star"]


def test_embeddings(tmp_path: Path):
    pipe, observer = shared_pipeline(1), Observer()
    save_embedding(pipe, tmp_path / "style.safetensors", count=3)
    os.utime(tmp_path / "style.safetensors", (0, 0))  # long complete
    folder = EmbeddingFolder(pipe, tmp_path)
    generator = local_generator(pipe, Limits(), observer, folders=Folders(embeddings=folder))
    width = sum(encoder.hidden_size for encoder in pipe._config.text_encoders.values())
    with serve(a1111="keys", generator=generator, observer=observer) as site:
        wait_until(lambda: generator.facts.embeddings)
        [(name, found)] = client_of(site).get_embeddings()["loaded"].items()
        assert (name, found["vectors"], found["shape"]) == ("style", 3, width)
        assert found.keys() == {"step", "sd_checkpoint", "sd_checkpoint_name", "shape", "vectors"}
        [described] = httpx.get(f"{site.url}/v1/model").json()["embeddings"]
        assert (described["name"], described["vectors"], described["width"]) == ("style", 3, width)
        (tmp_path / "style.safetensors").unlink()
        wait_until(lambda: not generator.facts.embeddings)
        assert client_of(site).get_embeddings() == {"loaded": {}, "skipped": {}}


def test_loras():
    observer, pipe = Observer(), FakePipeline()
    folder = LoraFolder(BUNDLED / "loras")
    generator = local_generator(pipe.as_pipeline(), Limits(), observer, folders=Folders(folder))
    with serve(a1111="keys", generator=generator, observer=observer) as site:
        loras = client_of(site).get_loras()
        assert [each["name"] for each in loras] == ["dusk", "glow", "miniature-quick"]
        assert loras[0].keys() == {"name", "alias", "path", "metadata"}
        assert [*loras[0]["metadata"]["ss_tag_frequency"]["trigger words"]] == ["dusk"]


def test_options(site: Site, api: webuiapi.WebUIApi):
    options = api.get_options()
    assert options["samples_format"] == "png"
    assert api.set_options(options) is None
    for given, error, said in (
        ({"sd_model_checkpoint": "other"}, "RuntimeError", "model 'other' not found"),
        ({"samples_format": "webp"}, "AssertionError", "changing settings is disabled"),
        ({"nothing": 1}, "KeyError", "'nothing'"),
    ):
        answer = post(site, "options", given)
        assert answer.status_code == 500
        assert answer.json() == {"error": error, "detail": "", "body": "", "errors": said}


def test_png_info(api: webuiapi.WebUIApi):
    drawn = txt2img(api, negative_prompt="a moon")
    result = api.png_info(drawn.image)
    assert result.info == drawn.info["infotexts"][0]
    assert result.parameters["Prompt"] == "a red star"
    assert result.parameters["Negative prompt"] == "a moon"
    assert (result.parameters["Size-1"], result.parameters["Size-2"]) == ("8", "8")
    assert (result.parameters["Steps"], result.parameters["Sampler"]) == ("4", "Euler")
    empty = api.png_info(Pillow.new("RGB", (8, 8)))
    assert (empty.info, empty.parameters["Prompt"]) == ("", "")


def test_png_info_of_other_programs(site: Site):
    comment = {"prompt": "a star", "uc": "bad", "steps": 9, "seed": 7, "sampler": "k_euler"}
    file = png((b"tEXt", b"Comment\0" + json.dumps(comment).encode()))
    answer = post(site, "png-info", {"image": base64.b64encode(file).decode()}).json()
    expected = "a star\nNegative prompt: bad\nSteps: 9, Sampler: Euler, Seed: 7, Version: NovelAI"
    assert answer["info"] == expected
    assert answer["parameters"]["Prompt"] == "a star"


@pytest.mark.parametrize("text", ["a\\ud800", 'Model: "\\ud800"'])
def test_png_info_of_texts_that_no_answer_can_hold(site: Site, text: str):
    comment = json.dumps({"prompt": "a", "steps": 1}).replace('"a"', f'"{text}"')
    for chunk in (b"Comment\0" + comment.encode(), b"parameters\0a\nSteps: 1, " + text.encode()):
        file = base64.b64encode(png((b"tEXt", chunk))).decode()
        assert post(site, "png-info", {"image": file}).status_code == 200


# --- what is refused ---


@pytest.mark.parametrize("field", ["steps", "hr_second_pass_steps", "width", "n_iter"])
@pytest.mark.parametrize("value", [10**309, -(10**309), str(10**400), 2**31])
def test_numbers_that_no_setting_has(site: Site, field: str, value: object):
    body = {"prompt": "a star", "enable_hr": True, field: value}
    assert post(site, "txt2img", body).status_code == 422


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ({"width": 512}, 422, "height is 8; expected 64 to 2048"),
        ({"width": 4096, "height": 512}, 422, "width is 4096; expected 64 to 2048"),
        ({"steps": 99}, 422, "num_inference_steps is 99; expected 1 to 50"),
        ({"cfg_scale": 99}, 422, "guidance_scale is 99.0; expected 0 to 50"),
        ({"prompt": " "}, 422, "prompt is blank"),
        ({"script_name": "X/Y/Z plot"}, 422, "Script 'X/Y/Z plot' not found"),
        ({"override_settings": {"samples_format": "avif"}}, 500, "Invalid image format"),
        ({"override_settings": {"jpeg_quality": 101}}, 422, "jpeg_quality"),
        (
            {"override_settings": {"eta_ddim": "much"}, "eta": None, "sampler_name": "DDIM"},
            422,
            "eta_ddim is not a number",
        ),
        ({"enable_hr": True, "hr_resize_x": 4096}, 422, "width is 4096; expected 64 to 2048"),
        (
            {"controlnet_units": [webuiapi.ControlNetUnit()]},
            422,
            "always on script ControlNet not found",
        ),
    ],
)
def test_wrong_calls(api: webuiapi.WebUIApi, arguments: dict[str, Any], status: int, said: str):
    # webuiapi keeps this argument from call to call.
    arguments = {"alwayson_scripts": {}} | arguments
    answered, body = refused(txt2img, api, **arguments)
    assert answered == status
    assert {*body} == {"error", "detail", "body", "errors"}
    assert said in body["detail"]
    assert body["errors"] == f"{status}: {body['detail']}"


@pytest.mark.parametrize(
    ("body", "where", "said"),
    [
        ({"steps": "many"}, ["body", "steps"], "valid integer"),
        ({"steps": "7.5"}, ["body", "steps"], "valid integer"),
        ({"denoising_strength": 1.5}, ["body", "denoising_strength"], "less than or equal to 1"),
        ({"cfg_scale": "NaN"}, ["body", "cfg_scale"], "finite number"),
        ({"batch_size": bodies.MAX_PICTURES + 1}, ["body", "batch_size"], "less than or equal to"),
        ({"batch_size": 10, "n_iter": 7}, ["body"], "batch_size times n_iter is 70"),
        ({"width": 10**9}, ["body", "width"], "less than or equal to"),
        ({"init_images": ["§"]}, ["body", "init_images", 0], "expected a file in base64"),
        ({"init_images": ["http://a.example/b"]}, ["body", "init_images", 0], "are not fetched"),
        ({"mask": "§"}, ["body", "mask"], "expected a file in base64"),
        ([], ["body"], "valid dictionary"),
    ],
)
def test_wrong_bodies(site: Site, body: Any, where: list[Any], said: str):
    answer = post(site, "img2img", body)
    assert answer.status_code == 422
    (fault,) = answer.json()["detail"]
    assert (fault["loc"], {*fault}) == (where, {"type", "loc", "msg"})
    assert said in fault["msg"]


def test_wrong_pictures(site: Site, api: webuiapi.WebUIApi):
    assert post(site, "img2img", {"prompt": "a"}).json()["detail"] == "Init image not found"
    for arguments, said in (
        ({"mask_image": Pillow.new("L", (8, 8))}, "mask marks no part of the picture"),
        ({"width": 30_000, "height": 30_000}, "width is 30000; expected 64 to 2048"),
    ):
        status, body = refused(img2img, api, **arguments)
        assert status == 422
        assert said in body["detail"]
    for path, field in (("img2img", "init_images"), ("png-info", "image")):
        file = base64.b64encode(b"no picture").decode()
        answer = post(site, path, {"prompt": "a", field: [file] if path == "img2img" else file})
        assert answer.status_code in (422, 500)
        assert "not a PNG, JPEG or WebP file" in json.dumps(answer.json())


def test_settings_of_pictures_over_a_limit(site: Site):
    file = png(*[(b"tEXt", b"a\0")] * 10_001)
    answer = post(site, "png-info", {"image": base64.b64encode(file).decode()})
    assert answer.status_code == 422
    assert "more than 10000 chunks" in answer.json()["detail"]


def test_a_picture_that_no_jpeg_or_webp_file_could_hold(site: Site):
    picture = saved(Pillow.new("RGB", (16_384, 8)))
    body = {"prompt": "a", "init_images": [base64.b64encode(picture).decode()]}
    answer = post(site, "img2img", body)
    assert answer.status_code == 422
    assert "16384x8; expected sides of at most 16383 pixels" in answer.json()["detail"]


def test_what_this_program_lacks(site: Site, api: webuiapi.WebUIApi):
    picture = Pillow.new("RGB", (8, 8), GREY)
    for call, arguments, upscaler in (
        (api.extra_single_image, {"image": picture, "upscaler_1": "SwinIR_4x"}, "SwinIR_4x"),
        (api.extra_batch_images, {"images": [picture]}, "None"),
    ):
        status, body = refused(call, **arguments)
        assert (status, body["error"]) == (500, "AssertionError")
        assert body["errors"] == f"could not find upscaler named {upscaler}"
    assert refused(api.interrogate, picture)[1]["detail"] == "Model not found"
    assert httpx.get(f"{site.url}/sdapi/v1/nothing").json() == {"detail": "Not Found"}
    assert post(site, "server-kill", {}).status_code == 404


def test_other_refusals_keep_their_status():
    with serve(a1111="keys", limits=Limits(rate_per_address=1)) as site:
        assert post(site, "txt2img", {"prompt": "a"}).status_code == 200
        answer = post(site, "txt2img", {"prompt": "a"})
        assert answer.status_code == 429
        assert int(answer.headers["Retry-After"]) > 0
        assert "too many requests" in answer.json()["detail"]
        broken = post(site, "txt2img", {"prompt": "break"}, headers={"X-Forwarded-For": "9.9.9.9"})
        assert broken.json()["error"] == "HTTPException"


def test_large_bodies(site: Site):
    answer = post(site, "options", {"samples_format": "x" * 2**20})
    assert answer.status_code == 413
    assert "1024 KiB" in answer.json()["detail"]
    picture = {"infotext": "x" * 2**21, "init_images": []}
    assert post(site, "img2img", picture).status_code == 404
    assert post(site, "txt2img", {"infotext": "x" * 2**21}).status_code == 422  # it is blank


# --- who may use it ---


def test_keys():
    with serve(a1111="keys", keys=["secret"]) as site:
        for arguments in ({}, {"username": "me", "password": "wrong"}):
            status, body = refused(txt2img, client_of(site, **arguments))
            assert status == 401
            assert "detail" in body
        unknown = httpx.get(f"{site.url}/sdapi/v1/progress")
        assert unknown.headers["WWW-Authenticate"] == "Basic"
        for odd in ("Basic no base64", "Basic /w==", "Basic c2VjcmV0"):
            answer = httpx.get(f"{site.url}/sdapi/v1/progress", headers={"Authorization": odd})
            assert answer.status_code == 401
        assert txt2img(client_of(site, username="anybody", password="secret")).images
        bearer = {"Authorization": "Bearer secret"}
        assert httpx.get(f"{site.url}/sdapi/v1/samplers", headers=bearer).status_code == 200
        assert str(Code.KEY_NEEDED) == unknown.json()["error"]["message_code"]


def test_on_and_off():
    with serve(a1111="on", keys=["secret"]) as site:
        assert txt2img(client_of(site)).images
        assert httpx.get(f"{site.url}/v1/model").status_code == 401
    with serve(a1111="off") as site:
        answer = post(site, "txt2img", {"prompt": "a"})
        assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})
