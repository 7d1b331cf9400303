"""Batches for the training of the miniature's UNet: latents of composed scenes, with captions."""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from pipeline.text.tokenizer import Tokenizers
from tools.miniature.train_unet import NO_PROMPT
from tools.trainer.composition import Scene
from tools.trainer.reader import say

Batch = tuple[np.ndarray, np.ndarray, np.ndarray, jax.Array]


def batches(
    scenes: Sequence[Scene], latents: np.ndarray, tokenizers: Tokenizers, size: int, seed: int
) -> Callable[[int], Batch]:
    """Return a function that makes the batch of each step.

    It has latents, token ids, whether each prompt is left out, and a random key.
    """

    def batch(i: int) -> Batch:
        rng = np.random.default_rng((seed, 2, i))
        chosen = rng.integers(len(scenes), size=size)
        ids, _ = tokenizers.tokenize(say([scenes[k] for k in chosen], rng))
        key = jax.random.fold_in(jax.random.key(seed), i)
        return latents[chosen].astype(np.float32), ids, rng.random(size) < NO_PROMPT, key

    return batch
