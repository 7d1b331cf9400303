"""Calls of diffusers' Flax pipelines, as programs written for them make, and their results.

Only the old interface is used, so the same functions run with diffusers 0.39's classes
(`tests.reference.incumbent`) and with those of `pipeline.compat`
(`tests/pipeline/compat/test_flax_pipelines.py`).
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax.jax_utils import replicate
from PIL import Image

PROMPT = "a llama on a blue dolphin"
NEGATIVE = "hat, red star"
DEVICES = (1, 4, 8)
SEED = 33
SIDE = 32  # pixels of the pictures that others start from
STEPS = 25


def ids(pipeline: Any) -> dict[str, np.ndarray]:
    """Return the ids of the prompts and of the negative prompt, by name."""
    prompts = [f"{PROMPT} {'hat ' * i}" for i in range(8)]
    all_texts = {"ids": prompts, "negative_ids": NEGATIVE}
    return {name: np.asarray(pipeline.prepare_inputs(texts)) for name, texts in all_texts.items()}


def pictures(
    pipeline: Any, params: dict[str, Any], device_counts: Sequence[int] = DEVICES
) -> dict[str, np.ndarray]:
    """Return ids and pictures by name; needs as many devices as the largest of `device_counts`.

    Pictures are float32 in 0..1: `[devices, batch, H, W, 3]` if they were drawn with `jit`,
    `[batch, H, W, 3]` otherwise.
    """
    inputs = ids(pipeline)
    prompt_ids, negative_ids = inputs.values()
    key = jax.random.PRNGKey(SEED)
    # Two pictures are drawn from one key in one case. With SDXL it is the call on one device.
    # Otherwise it is the call on four devices, because diffusers 0.39 draws only one without `jit`.
    alone_batch, four_batch = (2, 1) if prompt_ids.ndim == 3 else (1, 2)
    images = {
        **inputs,
        "defaults": pipeline(prompt_ids[:alone_batch], params, key).images,
        "negative": pipeline(
            prompt_ids[:1],
            params,
            key,
            num_inference_steps=STEPS,
            guidance_scale=5.0,
            height=24,
            width=16,
            neg_prompt_ids=negative_ids,
        ).images,
    }
    for devices in device_counts:
        batch = four_batch if devices == 4 else 1
        images[f"devices_{devices}"] = pipeline(
            prompt_ids[: devices * batch].reshape(devices, batch, *prompt_ids.shape[1:]),
            replicate(params, jax.devices()[:devices]),
            jax.random.split(key, devices),
            num_inference_steps=STEPS,
            jit=True,
        ).images
    return {name: np.asarray(array) for name, array in images.items()}


def picture() -> Image.Image:
    """Return a picture of random pixels, whose sides are not yet multiples of 32."""
    rng = np.random.default_rng(SEED)
    return Image.fromarray(rng.integers(0, 256, (SIDE + 8, SIDE + 4, 3), np.uint8))


def mask() -> Image.Image:
    """Return a mask of its size, whose right half is white."""
    values = np.zeros((SIDE + 8, SIDE + 4), np.uint8)
    values[:, SIDE // 2 :] = 255
    return Image.fromarray(values)


def from_picture(
    pipeline: Any, params: dict[str, Any], device_counts: Sequence[int]
) -> dict[str, np.ndarray]:
    """Return the inputs and the pictures of a pipeline from a picture to a picture, by name.

    For each number in `device_counts`, so many devices draw a picture each.
    """
    prompt_ids, image = pipeline.prepare_inputs([PROMPT], picture())
    options = {"strength": 0.6, **_CHOSEN}
    return {"ids": np.asarray(prompt_ids), "image": np.asarray(image)} | _drawn(
        pipeline, params, device_counts, (prompt_ids, image), options
    )


def inpainted(
    pipeline: Any, params: dict[str, Any], device_counts: Sequence[int]
) -> dict[str, np.ndarray]:
    """Do what `from_picture` does, with a pipeline for inpainting."""
    prompt_ids, image, masks = pipeline.prepare_inputs([PROMPT], picture(), mask())
    return {"image": np.asarray(image), "mask": np.asarray(masks)} | _drawn(
        pipeline, params, device_counts, (prompt_ids, masks, image), _CHOSEN
    )


_CHOSEN: dict[str, Any] = {
    "num_inference_steps": STEPS,
    "height": SIDE,
    "width": SIDE,
    "guidance_scale": 5.0,
}


def _drawn(
    pipeline: Any,
    params: dict[str, Any],
    device_counts: Sequence[int],
    arrays: Any,
    options: dict[str, Any],
) -> dict[str, np.ndarray]:
    """Draw a picture without `jit`, and with it a picture on each of several devices."""
    key = jax.random.PRNGKey(SEED)
    images = {"alone": pipeline(*arrays, params, key, **options).images}
    for devices in device_counts:
        images[f"devices_{devices}"] = pipeline(
            *(np.stack([array] * devices) for array in arrays),
            replicate(params, jax.devices()[:devices]),
            jax.random.split(key, devices),
            jit=True,
            **options,
        ).images
    return {name: np.asarray(array) for name, array in images.items()}
