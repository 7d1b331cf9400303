"""Live agreement with torch's ControlNet pipelines, on random checkpoints and ControlNets."""

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import diffusers
import jax
import numpy as np
import pytest
import torch
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from PIL import Image

from pipeline import SDXLPipeline
from pipeline.text.controls import UNION_TYPES, Control
from tests.controlnets import save_controlnet
from tests.reference import torch_reference
from tests.reference.pictures import (
    IMAGES,
    NEGATIVE,
    PROMPTS,
    SCALE,
    STEPS,
    Loaded,
    check,
    drawn,
    pictures,
    use_scheduler,
)
from tests.reference.test_from_pictures import pasted
from tests.reference.tiny_checkpoints import TINY, Files, load, write
from tests.reference.torch_reference import Sample

# A whole model of each family, and the kinds of ControlNets that there are for it.
KINDS = {
    "plain": ("full", "mid", "small", "bgr", "union", "promax"),
    "sd_1": ("full", "pool"),
    "sd_2": ("full",),
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Loaded, Path]]:
    """Return a function that makes a checkpoint of the shape of `TINY[name]`, with ControlNets."""

    @cache
    def make(name: str) -> tuple[Loaded, Path]:
        folder: Path = tmp_path_factory.mktemp(name)
        write(dataclasses.replace(TINY[name], files=Files()), folder / "model")
        nets = {
            kind: save_controlnet(folder / kind, folder / "model", kind, seed)
            for seed, kind in enumerate(KINDS[name])
        }
        ours = SDXLPipeline.from_pretrained(
            folder / "model",
            images_per_request=IMAGES,
            dtype="float32",
            devices=jax.devices()[:1],
            controlnets=nets,
        )
        return Loaded(load(folder / "model"), ours), folder

    return make


def torch_pipeline(loaded: Loaded, folder: Path, controls: Sequence[Control], task: str) -> Any:
    """Return torch's pipeline for these controls; `task` is "", "Img2Img" or "Inpaint"."""
    is_union, is_xl = bool(controls[0].type), hasattr(loaded.theirs, "text_encoder_2")
    # A union network draws all its controls in one run; other networks one each.
    names = [*dict.fromkeys(x.name for x in controls)] if is_union else [x.name for x in controls]
    network = diffusers.ControlNetUnionModel if is_union else diffusers.ControlNetModel
    networks = [network.from_pretrained(folder / name, torch_dtype=torch.float32) for name in names]
    family = "StableDiffusionXLControlNet" if is_xl else "StableDiffusionControlNet"
    make = getattr(diffusers, f"{family}{'Union' if is_union else ''}{task}Pipeline")
    options = {} if is_xl else {"requires_safety_checker": False}
    controlnet = networks[0] if len(networks) == 1 else networks
    pipe = make(**loaded.theirs.components, controlnet=controlnet, **options)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def values_of(controls: Sequence[Control]) -> dict[str, Any]:
    """Return the arguments of torch's pipelines for controls, each of them a list."""
    values: dict[str, Any] = {
        "controlnet_conditioning_scale": [control.scale for control in controls],
        "control_guidance_start": [control.start for control in controls],
        "control_guidance_end": [control.end for control in controls],
        "control_image": [control.image for control in controls],
        "control_mode": [UNION_TYPES.index(control.type) for control in controls if control.type],
    }
    if not controls[0].type:
        del values["control_mode"]
    if len(controls) == 1 and not controls[0].type:
        values = {name: value for name, [value] in values.items()}
    return {**values, "guess_mode": controls[0].control_mode == "guess"}


def sampled(
    loaded: Loaded,
    folder: Path,
    controls: Sequence[Control],
    noise: np.ndarray,
    image: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    **options: Any,
) -> Sample:
    """Sample with torch's pipeline for these controls, from noise or from pictures."""
    task = "" if image is None else "Img2Img" if mask is None else "Inpaint"
    pipe, values = torch_pipeline(loaded, folder, controls, task), values_of(controls)
    latents = torch_reference.to_torch(noise)
    if image is None:
        if "control_mode" not in values:
            values["image"] = values.pop("control_image")
        height, width = loaded.ours.facts.height, loaded.ours.facts.width
        values |= {"latents": latents, "height": height, "width": width}
    else:
        values["image"] = image
    if mask is not None:
        values["mask_image"] = [Image.fromarray(np.uint8(255 * part)) for part in mask]
    module = importlib.import_module(type(pipe).__module__)
    with (
        patch.object(module, "randn_tensor", lambda *_, **__: latents),
        patch.object(DiagonalGaussianDistribution, "sample", lambda self, *_, **__: self.mean),
    ):
        return torch_reference._run(
            pipe,
            noise.shape,
            prompt=PROMPTS,
            negative_prompt=NEGATIVE,
            num_inference_steps=STEPS,
            guidance_scale=SCALE,
            **values,
            **options,
        )


def with_pictures(loaded: Loaded, controls: Sequence[Control]) -> list[Control]:
    """Return controls with pictures to follow, of the size that is drawn."""
    shape = loaded.ours.facts.height, loaded.ours.facts.width, 3
    rng = np.random.default_rng(7)
    return [
        dataclasses.replace(control, image=Image.fromarray(rng.integers(0, 256, shape, np.uint8)))
        for control in controls
    ]


CASES = {
    "full": ("plain", [Control("full")]),
    "weak": ("plain", [Control("full", scale=0.4)]),
    "a part of the steps": ("plain", [Control("full", start=0.2, end=0.7)]),
    "mid": ("plain", [Control("mid")]),
    "small": ("plain", [Control("small", scale=1.5)]),
    "bgr": ("plain", [Control("bgr")]),
    "two": ("plain", [Control("full", scale=0.7), Control("bgr", scale=0.5, end=0.5)]),
    "one network twice": ("plain", [Control("mid"), Control("mid", scale=0.5, start=0.3)]),
    "guess": ("plain", [Control("full", control_mode="guess")]),
    "union": ("plain", [Control("union", type="depth", scale=0.8)]),
    "union, two types": (
        "plain",
        [Control("union", type="openpose", scale=0.8), Control("union", type="hard", scale=0.6)],
    ),
    "promax": ("plain", [Control("promax", type="tile", end=0.8)]),
    "promax, repaint": ("plain", [Control("promax", type="repaint")]),
    "sd_1": ("sd_1", [Control("full", scale=0.9)]),
    "sd_1, guess": ("sd_1", [Control("full", control_mode="guess", scale=0.8)]),
    "pool": ("sd_1", [Control("pool", scale=0.9)]),
    "sd_2": ("sd_2", [Control("full", end=0.6)]),
}


FULL = [Control("full", scale=0.8, start=0.1, end=0.8)]
PROMAX = [Control("promax", type="tile", scale=0.7), Control("promax", type="depth", scale=0.9)]


@pytest.mark.parametrize(("name", "controls"), CASES.values(), ids=[*CASES])
def test_controls(
    name: str, controls: list[Control], start: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    loaded, folder = start(name)
    use_scheduler(loaded, "euler")
    rng = np.random.default_rng(request.config.getoption("--seed"))
    noise, *_ = pictures(rng, loaded)
    controls = with_pictures(loaded, controls)
    theirs = partial(sampled, loaded, folder, controls)
    check(drawn(loaded.ours, noise, scheduler="euler", controls=controls), theirs, noise)


@pytest.mark.parametrize(
    ("name", "scheduler", "controls"),
    [
        ("plain", "euler", FULL),
        ("plain", "heun", FULL),
        ("plain", "euler", PROMAX),
        ("sd_1", "euler", FULL),
        ("sd_1", "heun", FULL),
    ],
)
def test_image_to_image(
    name: str,
    scheduler: str,
    controls: list[Control],
    start: Callable[..., Any],
    request: pytest.FixtureRequest,
) -> None:
    loaded, folder = start(name)
    use_scheduler(loaded, scheduler)
    rng = np.random.default_rng(request.config.getoption("--seed"))
    noise, images, _ = pictures(rng, loaded)
    controls = with_pictures(loaded, controls)
    theirs = partial(sampled, loaded, folder, controls, image=images, strength=0.6)
    given = {"image": [*images], "strength": 0.6, "controls": controls}
    check(drawn(loaded.ours, noise, scheduler=scheduler, **given), theirs, noise)


@pytest.mark.parametrize(("name", "controls"), [("plain", FULL), ("plain", PROMAX), ("sd_1", FULL)])
def test_inpainting(
    name: str, controls: list[Control], start: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    loaded, folder = start(name)
    use_scheduler(loaded, "euler")
    rng = np.random.default_rng(request.config.getoption("--seed"))
    noise, images, masks = pictures(rng, loaded)
    controls = with_pictures(loaded, controls)

    def theirs(noise: np.ndarray) -> Sample:
        found = sampled(loaded, folder, controls, noise, images, masks, strength=0.7)
        return pasted(found, images, masks)

    given = {"image": [*images], "mask": [*masks], "strength": 0.7, "controls": controls}
    check(drawn(loaded.ours, noise, scheduler="euler", **given), theirs, noise)
