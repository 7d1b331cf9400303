"""Batches for the training of the miniature's UNet: latents of composed scenes, with captions."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from tools.miniature.train_unet import NO_PROMPT
from tools.trainer.composition import SIDE
from tools.trainer.train_vae import cut_out

Batch = tuple[jax.Array, ...]


def batches(
    latents: np.ndarray, ids: np.ndarray, size: int, seed: int
) -> Callable[[int, int], Batch]:
    """Return a function that makes the batch of a step from crops of a number of latents.

    It has latents, token ids, whether each prompt is left out, a random key, and SDXL's sizes and
    corners. Crops of half the side have four times as many pictures. The device keeps all latents
    and captions and chooses from them, so that no step waits for data.

    Args:
        latents: `[n, h, w, C]`.
        ids: `[n, captions, E, L]`.
        size: pictures in a batch of whole ones.
        seed: makes the batches reproducible.
    """
    full = latents.shape[1]

    @partial(jax.jit, static_argnums=3)
    def batch(latents: jax.Array, ids: jax.Array, i: int, side: int) -> Batch:
        count = size * (full // side) ** 2
        key, *keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), i), 5)
        chosen = jax.random.randint(keys[0], (count,), 0, len(latents))
        said = jax.random.randint(keys[1], (count,), 0, ids.shape[1])
        corners = jax.random.randint(keys[2], (count, 2), 0, full - side + 1)
        time_ids = (
            jnp.concatenate([jnp.full((count, 2), full), corners, jnp.full((count, 2), side)], 1)
            * SIDE
            / full
        )
        return (
            cut_out(latents, chosen, corners, side).astype(jnp.float32),
            ids[chosen, said].astype(jnp.int32),
            jax.random.bernoulli(keys[3], NO_PROMPT, (count,)),
            key,
            time_ids,
        )

    return partial(batch, jnp.asarray(latents), jnp.asarray(ids))
