"""Checks of a request's arguments, which need no loaded checkpoint."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import InputError
from pipeline.schedulers.config import MAX_INFERENCE_STEPS

MAX_IMAGES = 64  # per request
MAX_SEED = 2**32 - 1
MAX_GUIDANCE_SCALE = 50.0


@dataclass(frozen=True)
class Request:
    """A request whose values have been checked: one prompt and negative prompt per picture."""

    prompts: list[str]
    negative_prompts: list[str]
    guidance_scale: float
    seeds: list[int]
    num_inference_steps: int
    guidance_until: float
    variation_seeds: list[int]
    variation_strength: float

    @property
    def guided_steps(self) -> int:
        """Number of steps with guidance, which come first; 0 for a scale of 1 or less."""
        until = self.guidance_until if self.guidance_scale > 1 else 0.0
        return round(until * self.num_inference_steps)


def check_request(
    prompt: str | Sequence[str],
    negative_prompt: str | Sequence[str] | None,
    guidance_scale: float,
    seed: int,
    num_inference_steps: int,
    images: int,
    guidance_until: float = 1.0,
    variation_seed: int = 0,
    variation_strength: float = 0.0,
) -> Request:
    """Return the checked values of a request for `images` pictures.

    Raises:
        InputError: if an argument cannot be used; the message names it and its value.
    """
    check_count("images_per_request", images, 1, MAX_IMAGES)
    negative = "" if negative_prompt is None else negative_prompt
    _check_number("guidance_scale", guidance_scale, MAX_GUIDANCE_SCALE)
    _check_number("guidance_until", guidance_until, 1)
    _check_number("variation_strength", variation_strength, 1)
    check_count("seed", seed, 0, MAX_SEED)
    check_count("variation_seed", variation_seed, 0, MAX_SEED)
    check_count("num_inference_steps", num_inference_steps, 1, MAX_INFERENCE_STEPS)
    return Request(
        prompts=_per_picture("prompt", prompt, images),
        negative_prompts=_per_picture("negative_prompt", negative, images),
        guidance_scale=float(guidance_scale),
        seeds=picture_seeds(int(seed), images, variation_strength),
        num_inference_steps=int(num_inference_steps),
        guidance_until=float(guidance_until),
        variation_seeds=picture_seeds(int(variation_seed), images),
        variation_strength=float(variation_strength),
    )


def picture_seeds(seed: int, images: int, variation_strength: float = 0.0) -> list[int]:
    """Return the seed of each picture; variations all have the same seed."""
    apart = 0 if variation_strength > 0 else 1
    return [(seed + apart * i) % (MAX_SEED + 1) for i in range(images)]


def checked_latents(latents: np.ndarray, right: tuple[int, ...]) -> np.ndarray:
    """Return latents as a NumPy array `[images, h, w, C]` float32.

    Args:
        latents: the noise to check.
        right: the shape that it must have.

    Raises:
        InputError: if the shape, the dtype or a value is wrong; the message says which.
    """
    try:
        array = np.asarray(latents)
    except ValueError as error:
        raise InputError(f"latents are no array of {list(right)} float32: {error}") from error
    if array.shape != right or array.dtype != np.float32:
        raise InputError(
            f"latents are {list(array.shape)} {array.dtype}; expected {list(right)} float32"
        )
    if not np.isfinite(array).all():
        raise InputError("latents hold NaN or infinity; expected standard normal noise")
    return array


def _per_picture(name: str, value: Any, count: int) -> list[str]:
    if isinstance(value, str):
        texts = [value] * count
    else:
        texts = list(value) if isinstance(value, Iterable) else [value]
    if len(texts) != count or not all(isinstance(text, str) for text in texts):
        raise InputError(
            f"{name} must be one text, or a list of {count}, one for each picture;"
            f" got {len(texts)} of {sorted({type(text).__name__ for text in texts})}"
        )
    return texts


def _check_number(name: str, value: Any, high: float) -> None:
    is_number = isinstance(value, int | float | np.integer | np.floating)
    if not is_number or isinstance(value, bool) or not 0 <= value <= high:  # refuses NaN too
        raise InputError(f"{name} is {value!r}; expected a number from 0 to {high:g}")


def check_count(name: str, value: object, low: int, high: int) -> None:
    """Raise InputError unless `value` is a whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputError(f"{name} is {value!r}; expected a whole number from {low} to {high}")
    if not low <= value <= high:
        raise InputError(f"{name} is {value}; expected {low} to {high}")
