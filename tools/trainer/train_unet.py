"""Batches for the training of the miniature's UNet: latents of composed scenes, with captions."""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from pipeline.text.tokenizer import Tokenizers
from tools.miniature.train_unet import NO_PROMPT
from tools.trainer.composition import SIDE, Scene
from tools.trainer.reader import say

Batch = tuple[np.ndarray, np.ndarray, np.ndarray, jax.Array, np.ndarray]


def batches(
    scenes: Sequence[Scene], latents: np.ndarray, tokenizers: Tokenizers, size: int, seed: int
) -> Callable[[int, int], Batch]:
    """Return a function that makes the batch of a step from crops of a number of latents.

    It has latents, token ids, whether each prompt is left out, a random key, and SDXL's sizes and
    corners. Crops of half the side have four times as many pictures.
    """
    full = latents.shape[1]
    pixels = SIDE // full

    def batch(i: int, side: int) -> Batch:
        rng = np.random.default_rng((seed, 2, i))
        count = size * (full // side) ** 2
        chosen = rng.integers(len(scenes), size=count)
        corners = rng.integers(full - side + 1, size=(count, 2))
        crops = [
            latents[k, y : y + side, x : x + side]
            for k, (y, x) in zip(chosen, corners, strict=True)
        ]
        ids, _ = tokenizers.tokenize(say([scenes[k] for k in chosen], rng))
        key = jax.random.fold_in(jax.random.key(seed), i)
        sizes = np.full((count, 2), SIDE)
        time_ids = np.concatenate([sizes, corners * pixels, sizes * side // full], axis=1)
        dropped = rng.random(count) < NO_PROMPT
        return np.stack(crops).astype(np.float32), ids, dropped, key, time_ids.astype(np.float32)

    return batch
