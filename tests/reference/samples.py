"""Comparison of whole drawings with torch's pipelines."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline import SDXLPipeline
from tests.reference import torch_reference
from tests.reference.tiny_checkpoints import (
    Pipeline,
)
from tools.agreement import relative_error

LATENTS_BOUND = 1e-4
PICTURE_BOUND = 1 / 255
NUDGES_BOUND = 10  # times torch's own change when the last bits of its input change


def nudged(x: np.ndarray) -> list[np.ndarray]:
    """Return copies of x whose last bits are rounded down, towards zero and up."""
    return [np.nextafter(x, np.float32(to)) for to in (-np.inf, 0, np.inf)]


def reference_sample(
    theirs: Pipeline,
    prompts: list[str],
    negative: Sequence[str],
    latents: np.ndarray,
    scale: float,
    rescale: float = 0.0,
) -> torch_reference.Sample:
    """Sample with torch, with each picture's own negative prompt or none.

    diffusers takes a negative prompt for all pictures or for none, so two runs are combined.
    """
    without, given = (
        torch_reference.sample(theirs, prompts, texts, latents, scale, guidance_rescale=rescale)
        for texts in (None, negative)
    )
    blank = np.array([not text.strip() for text in negative])[:, None, None, None]
    return torch_reference.Sample(
        np.where(blank, without.latents, given.latents),
        np.where(blank, without.images, given.images),
    )


def apart(one: torch_reference.Sample, other: torch_reference.Sample) -> np.ndarray:
    """Return each picture's relative error of latents and largest pixel difference, `[2, N]`."""
    latents = map(relative_error, one.latents, other.latents)
    return np.array([[*latents], [*np.abs(one.images - other.images).max(axis=(1, 2, 3))]])


def check_sample(
    theirs: Pipeline,
    pipe: SDXLPipeline,
    noise: np.ndarray,
    prompts: list[str],
    negative: list[str],
    scale: float,
    rescale: float = 0.0,
    scheduler: str | None = None,
) -> None:
    """Assert that both pipelines draw the same from `noise` `[B, h, w, C]`.

    `scheduler` is the name of torch's scheduler, if it is not the checkpoint's own.
    """

    def drawn(latents: np.ndarray) -> torch_reference.Sample:
        return reference_sample(theirs, prompts, negative, latents, scale, rescale)

    last: list[Any] = []

    def keep(_step: int, _total: int, latents: Any) -> None:
        last[:] = [latents]

    right = drawn(noise)
    request = {
        "latents": noise,
        "guidance_rescale": rescale,
        "num_inference_steps": 25,
        "scheduler": scheduler,
    }
    images = pipe.generate(
        prompts, negative, scale, output_type="np", on_step=keep, **request
    ).images
    errors = apart(torch_reference.Sample(np.asarray(last[0]), images), right)
    bounds = np.array([[LATENTS_BOUND], [PICTURE_BOUND]])
    if (errors > bounds).any():
        # Networks magnify rounding, in torch as well, over 25 steps up to a millionfold.
        moved = [apart(drawn(each), right) for each in nudged(noise)]
        bounds = np.maximum(bounds, NUDGES_BOUND * np.max(moved, axis=0))
    assert (errors <= bounds).all(), (errors, bounds, prompts, negative, scale)


def psnr(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio in dB of pictures in 0..1."""
    return float(-10 * np.log10(np.mean((ours - theirs) ** 2)))
