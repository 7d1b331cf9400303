"""Drawings that begin with pictures, here and with torch's diffusers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import diffusers
import numpy as np

from pipeline import SDXLPipeline
from pipeline.schedulers.config import SCHEDULERS
from tests.reference.samples import LATENTS_BOUND, NUDGES_BOUND, PICTURE_BOUND, apart, nudged
from tests.reference.tiny_checkpoints import Pipeline
from tests.reference.torch_reference import Sample

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
