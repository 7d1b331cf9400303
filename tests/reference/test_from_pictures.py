"""Live agreement with torch's pipelines that begin with a picture, on random checkpoints.

The pipelines sample the VAE's posterior; here they take its mean, and the noise that is given.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import diffusers
import jax
import numpy as np
import pytest

from pipeline import SDXLPipeline
from pipeline.families import read_config
from pipeline.images.canvas import Box, Frame
from pipeline.schedulers.config import SCHEDULERS
from tests.reference.samples import LATENTS_BOUND, NUDGES_BOUND, PICTURE_BOUND, apart, nudged
from tools import torch_reference
from tools.tiny_checkpoints import TINY, Files, Pipeline, load, write
from tools.torch_reference import Sample

IMAGES = 2
STEPS = 8
SCALE = 4.0
PROMPTS = ["a red star on blue", "night"]
NEGATIVE = ["blue", "a star"]


@dataclass(frozen=True)
class Loaded:
    """A checkpoint, loaded by torch's diffusers and by this project."""

    theirs: Pipeline
    ours: SDXLPipeline


@pytest.fixture(scope="module", autouse=True)
def _prepared() -> None:
    torch_reference.prepare_for_tiny()


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Loaded]:
    """Return a function that makes a checkpoint of the shape of `TINY[name]`.

    Its UNet takes a mask if asked to.
    """

    @cache
    def make(name: str, takes_mask: bool = False) -> Loaded:
        unet = {**TINY[name].unet, **({"in_channels": 9, "out_channels": 4} if takes_mask else {})}
        folder: Path = tmp_path_factory.mktemp(name)
        write(dataclasses.replace(TINY[name], unet=unet, files=Files()), folder)
        assert read_config(folder).takes_mask == takes_mask
        ours = SDXLPipeline.from_pretrained(
            folder, images_per_request=IMAGES, dtype="float32", devices=jax.devices()[:1]
        )
        return Loaded(load(folder), ours)

    return make


def drawn(ours: SDXLPipeline, noise: np.ndarray, **options: Any) -> Sample:
    """Draw pictures from `noise` `[B, h, w, C]`."""
    last: list[np.ndarray] = []

    def keep(_step: int, _total: int, latents: Any) -> None:
        last[:] = [np.asarray(latents)]

    given = {"num_inference_steps": STEPS, "latents": noise, "output_type": "np"}
    images = ours.generate(PROMPTS, NEGATIVE, SCALE, on_step=keep, **given, **options).images
    return Sample(last[0], images)


def use_scheduler(loaded: Loaded, name: str) -> None:
    """Let torch draw by a scheduler."""
    kind, own = SCHEDULERS[name], loaded.theirs.scheduler
    supported = {key: kind.supported[key][0] for key in kind.own_defaults}
    loaded.theirs.scheduler = getattr(diffusers, kind.name).from_config(
        own.config, **kind.implied, **supported
    )


def pictures(rng: np.random.Generator, loaded: Loaded) -> tuple[np.ndarray, ...]:
    """Return noise `[B, h, w, C]`, pictures `[B, H, W, 3]` and masks `[B, H, W]`."""
    noise = rng.standard_normal((IMAGES, *loaded.ours._compiled.latents_shape), np.float32)
    shape = IMAGES, loaded.ours.facts.height, loaded.ours.facts.width
    images = rng.uniform(size=(*shape, 3)).astype(np.float32)
    masks = np.zeros(shape, np.float32)
    masks[0, 3:-4, : shape[2] // 2] = 1
    masks[1, :5] = 1
    return noise, images, masks


def check(ours: Sample, theirs: Callable[[np.ndarray], Sample], noise: np.ndarray) -> None:
    """Assert that samples agree; `theirs` samples by torch."""
    right = theirs(noise)
    errors = apart(ours, right)
    bounds = np.array([[LATENTS_BOUND], [PICTURE_BOUND]])
    if (errors > bounds).any():
        moved = [apart(theirs(each), right) for each in nudged(noise)]
        bounds = np.maximum(bounds, NUDGES_BOUND * np.max(moved, axis=0))
    assert (errors <= bounds).all(), (errors, bounds)


def pasted(found: Sample, images: np.ndarray, masks: np.ndarray) -> Sample:
    """Return a sample of torch's with its pictures pasted into those that it began with."""
    box = Box(0, 0, *images.shape[1:3])
    frames = [Frame.around(*each[:1], box, *each[1:]) for each in zip(images, masks, strict=True)]
    parts = zip(frames, found.images, strict=True)
    return Sample(found.latents, np.stack([frame.filled(part) for frame, part in parts]))


@pytest.mark.parametrize(
    ("name", "scheduler", "strength"),
    [
        ("plain", "euler", 0.5),
        ("plain", "dpmsolver++", 0.8),
        ("plain", "heun", 0.3),
        ("plain", "euler-ancestral", 1.0),
        ("plain", "unipc", 0.6),
        ("sd_1", "pndm", 0.5),
        ("sd_1", "ddim", 0.8),
        ("sd_1", "lms", 0.6),
        ("sd_1", "dpmsolver++-sde", 0.5),
    ],
)
def test_image_to_image(
    name: str,
    scheduler: str,
    strength: float,
    start: Callable[..., Loaded],
    request: pytest.FixtureRequest,
) -> None:
    loaded = start(name)
    use_scheduler(loaded, scheduler)
    rng = np.random.default_rng(request.config.getoption("--seed"))
    noise, images, _ = pictures(rng, loaded)

    def theirs(noise: np.ndarray) -> Sample:
        return torch_reference.sample_from_picture(
            loaded.theirs, PROMPTS, NEGATIVE, noise, SCALE, STEPS, images, strength=strength
        )

    given = {"image": [*images], "strength": strength, "scheduler": scheduler}
    check(drawn(loaded.ours, noise, **given), theirs, noise)


@pytest.mark.parametrize(
    ("name", "scheduler", "strength", "takes_mask"),
    [
        ("plain", "euler", 0.7, False),
        ("plain", "heun", 1.0, False),
        ("plain", "dpmsolver++-2m-sde", 0.5, False),
        ("sd_1", "pndm", 0.7, False),
        ("sd_1", "ddim", 1.0, False),
        ("plain", "euler", 1.0, True),
        ("plain", "dpmsolver++", 0.6, True),
        ("sd_1", "pndm", 1.0, True),
        ("sd_1", "euler-ancestral", 0.6, True),
    ],
)
def test_inpainting(
    name: str,
    scheduler: str,
    strength: float,
    takes_mask: bool,
    start: Callable[..., Loaded],
    request: pytest.FixtureRequest,
) -> None:
    loaded = start(name, takes_mask)
    use_scheduler(loaded, scheduler)
    rng = np.random.default_rng(request.config.getoption("--seed"))
    noise, images, masks = pictures(rng, loaded)

    def theirs(noise: np.ndarray) -> Sample:
        found = torch_reference.sample_from_picture(
            loaded.theirs, PROMPTS, NEGATIVE, noise, SCALE, STEPS, images, masks, strength=strength
        )
        return pasted(found, images, masks)

    given = {"image": [*images], "mask": [*masks], "strength": strength, "scheduler": scheduler}
    check(drawn(loaded.ours, noise, **given), theirs, noise)


@pytest.mark.parametrize(("scheduler", "share"), [("euler", 0.6), ("heun", 0.5), ("unipc", 0.7)])
def test_a_second_model_goes_on(
    scheduler: str,
    share: float,
    start: Callable[..., Loaded],
    request: pytest.FixtureRequest,
) -> None:
    loaded = start("plain")
    use_scheduler(loaded, scheduler)
    rng = np.random.default_rng(request.config.getoption("--seed"))
    latents, *_ = pictures(rng, loaded)

    def theirs(latents: np.ndarray) -> Sample:
        return torch_reference.sample_from_picture(
            loaded.theirs, PROMPTS, NEGATIVE, latents, SCALE, STEPS, latents, denoising_start=share
        )

    ours = drawn(loaded.ours, latents, scheduler=scheduler, denoising_start=share)
    check(ours, theirs, latents)
