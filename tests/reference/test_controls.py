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
# The class of torch's pipeline by model, what it starts from, and whether the net is a union.
XL, SD = "StableDiffusionXLControlNet", "StableDiffusionControlNet"


@pytest.fixture(scope="module", autouse=True)
def _prepared() -> None:
    torch_reference.prepare_for_tiny()


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


def torch_controlnet(folder: Path) -> torch.nn.Module:
    is_union = folder.name in ("union", "promax")
    network = diffusers.ControlNetUnionModel if is_union else diffusers.ControlNetModel
    return network.from_pretrained(folder, torch_dtype=torch.float32)


def sampled(
    loaded: Loaded,
    folder: Path,
    controls: Sequence[Control],
    noise: np.ndarray,
    image: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    **options: Any,
) -> Sample:
    """Sample with torch's pipeline for these controls."""
    networks = [torch_controlnet(folder / name) for name in dict.fromkeys(c.name for c in controls)]
    if len(networks) < len(controls) and not controls[0].type:
        networks = [torch_controlnet(folder / control.name) for control in controls]
    is_union = bool(controls[0].type)
    is_xl = hasattr(loaded.theirs, "text_encoder_2")
    task = {(False, False): "", (True, False): "Img2Img", (True, True): "Inpaint"}[
        image is not None, mask is not None
    ]
    name = f"{XL if is_xl else SD}{'Union' if is_union else ''}{task}Pipeline"
    parts = {
        **loaded.theirs.components,
        "controlnet": networks[0] if len(networks) == 1 else networks,
    }
    pipe = getattr(diffusers, name)(
        **parts, **({} if is_xl else {"requires_safety_checker": False})
    )
    pipe.set_progress_bar_config(disable=True)
    hints = [control.image for control in controls]
    several = len(controls) > 1 or is_union
    values = {
        "controlnet_conditioning_scale": [control.scale for control in controls],
        "control_guidance_start": [control.start for control in controls],
        "control_guidance_end": [control.end for control in controls],
        "guess_mode": controls[0].control_mode == "guess",
    }
    if not several:
        values = {
            key: value[0] if isinstance(value, list) else value for key, value in values.items()
        }
    if is_union:
        values["control_mode"] = [UNION_TYPES.index(control.type) for control in controls]
    given = hints if several else hints[0]
    arguments = {"image": given} if image is None and not is_union else {"control_image": given}
    if image is not None:
        arguments["image"] = image
    if mask is not None:
        arguments["mask_image"] = [Image.fromarray(np.uint8(255 * part)) for part in mask]
    if image is None:
        arguments["latents"] = torch_reference.to_torch(noise)
        height, width = loaded.ours.facts.height, loaded.ours.facts.width
        arguments |= {"height": height, "width": width}
    module = importlib.import_module(type(pipe).__module__)
    randn = lambda *_, **__: torch_reference.to_torch(noise)  # noqa: E731
    with (
        patch.object(module, "randn_tensor", randn),
        patch.object(DiagonalGaussianDistribution, "sample", lambda self, *_, **__: self.mean),
    ):
        return torch_reference._run(
            pipe,
            noise.shape,
            prompt=PROMPTS,
            negative_prompt=NEGATIVE,
            num_inference_steps=STEPS,
            guidance_scale=SCALE,
            **arguments,
            **values,
            **options,
        )


def hint(loaded: Loaded, seed: int) -> Image.Image:
    """Return a picture to follow, of the size that is drawn."""
    shape = loaded.ours.facts.height, loaded.ours.facts.width, 3
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, np.uint8))


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
    "sd_1": ("sd_1", [Control("full", scale=0.9)]),
    "sd_1, guess": ("sd_1", [Control("full", control_mode="guess", scale=0.8)]),
    "pool": ("sd_1", [Control("pool", scale=0.9)]),
    "sd_2": ("sd_2", [Control("full", end=0.6)]),
}


@pytest.mark.parametrize(("name", "controls"), CASES.values(), ids=[*CASES])
def test_controls(
    name: str, controls: list[Control], start: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    loaded, folder = start(name)
    use_scheduler(loaded, "euler")
    rng = np.random.default_rng(request.config.getoption("--seed"))
    noise, *_ = pictures(rng, loaded)
    controls = [replaced(loaded, control, i) for i, control in enumerate(controls)]
    theirs = partial(sampled, loaded, folder, controls)
    check(drawn(loaded.ours, noise, scheduler="euler", controls=controls), theirs, noise)


def replaced(loaded: Loaded, control: Control, seed: int) -> Control:
    return dataclasses.replace(control, image=hint(loaded, seed))


@pytest.mark.parametrize("name", ["plain", "sd_1"])
@pytest.mark.parametrize("scheduler", ["euler", "heun"])
def test_image_to_image(
    name: str, scheduler: str, start: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    loaded, folder = start(name)
    use_scheduler(loaded, scheduler)
    rng = np.random.default_rng(request.config.getoption("--seed"))
    noise, images, _ = pictures(rng, loaded)
    controls = [replaced(loaded, Control("full", scale=0.8, start=0.1, end=0.8), 1)]
    theirs = partial(sampled, loaded, folder, controls, image=images, strength=0.6)
    ours = drawn(
        loaded.ours, noise, image=[*images], strength=0.6, controls=controls, scheduler=scheduler
    )
    check(ours, theirs, noise)


@pytest.mark.parametrize("name", ["plain", "sd_1"])
def test_inpainting(name: str, start: Callable[..., Any], request: pytest.FixtureRequest) -> None:
    loaded, folder = start(name)
    use_scheduler(loaded, "euler")
    rng = np.random.default_rng(request.config.getoption("--seed"))
    noise, images, masks = pictures(rng, loaded)
    controls = [replaced(loaded, Control("full"), 2)]

    def theirs(noise: np.ndarray) -> Sample:
        found = sampled(loaded, folder, controls, noise, images, masks, strength=0.7)
        return pasted(found, images, masks)

    given = {"image": [*images], "mask": [*masks], "strength": 0.7, "controls": controls}
    check(drawn(loaded.ours, noise, scheduler="euler", **given), theirs, noise)
