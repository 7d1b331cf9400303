"""Batches for the training of the miniature's UNet: latents of composed scenes, with captions."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from tools.miniature.train_unet import NO_PROMPT
from tools.miniature.work import Tree


def batches(
    latents: np.ndarray, ids: np.ndarray, size: int, seed: int, words: Tree
) -> Callable[[int], tuple[Tree, ...]]:
    """Return a function that makes the batch of a step.

    It has the text encoders' parameters, latents, token ids, whether each prompt is left out, and a
    random key. The device keeps all latents and captions and chooses from them, so that no step
    waits for data.

    Args:
        latents: `[n, h, w, C]`.
        ids: `[n, captions, E, L]`.
        size: pictures in a batch.
        seed: makes the batches reproducible.
        words: the text encoders' parameters.
    """

    @jax.jit
    def batch(latents: jax.Array, ids: jax.Array, i: int) -> tuple[jax.Array, ...]:
        key, *keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), i), 4)
        picture_indices = jax.random.randint(keys[0], (size,), 0, len(latents))
        caption_indices = jax.random.randint(keys[1], (size,), 0, ids.shape[1])
        is_dropped = jax.random.bernoulli(keys[2], NO_PROMPT, (size,))
        return (
            latents[picture_indices].astype(jnp.float32),
            ids[picture_indices, caption_indices].astype(jnp.int32),
            is_dropped,
            key,
        )

    make_batch = partial(batch, jnp.asarray(latents), jnp.asarray(ids))
    return lambda i: (words, *make_batch(i))
