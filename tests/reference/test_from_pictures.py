"""Live agreement with torch's pipelines that begin with a picture, on random checkpoints.

The pipelines sample the VAE's posterior; here they take its mean, and the noise that is given.
"""

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest

from pipeline import SDXLPipeline
from pipeline.families import read_config
from pipeline.images.canvas import Box, Frame
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
from tests.reference.tiny_checkpoints import TINY, Files, load, write
from tests.reference.torch_reference import Sample


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
