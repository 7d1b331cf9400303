"""Composed scenes with captions, made by all processor cores at once.

A process that composes imports neither JAX nor transformers, and so starts within a second.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from pipeline.text.tokenizer import Tokenizers
from tools.trainer.captions import caption
from tools.trainer.composition import Scene, draw

AT_ONCE = 64  # scenes that a process composes before it sends them
CAPTIONS = 4  # of each scene


class Examples(NamedTuple):
    """Scenes to learn from.

    `pictures` are `[n, SIDE, SIDE, 3]` uint8. `ids` are the token ids of the scenes' captions,
    `[n, CAPTIONS, E, L]` int16 for E text encoders.
    """

    scenes: list[Scene]
    pictures: np.ndarray
    ids: np.ndarray


def compose_all(
    make: Callable[[np.random.Generator], Scene],
    tokenizers: Tokenizers,
    count: int,
    seed: int,
    with_pictures: bool = True,
) -> Iterator[Examples]:
    """Compose `count` scenes, rounded up to a multiple of `AT_ONCE`, in parts of `AT_ONCE` each.

    From the first `next` on, all parts are composed, while the caller does something else. Without
    `with_pictures`, they have no pictures.
    """
    with multiprocessing.get_context("spawn").Pool() as processes:
        work = partial(compose, make, tokenizers, seed, with_pictures)
        yield from processes.imap(work, range(0, count, AT_ONCE))


def compose(
    make: Callable[[np.random.Generator], Scene],
    tokenizers: Tokenizers,
    seed: int,
    with_pictures: bool,
    start: int,
) -> Examples:
    """Compose `AT_ONCE` scenes; each has its own seed, so a larger set begins with a smaller."""
    rngs = [np.random.default_rng((seed, i)) for i in range(start, start + AT_ONCE)]
    scenes = [make(rng) for rng in rngs]
    pairs = list(zip(scenes, rngs, strict=True))
    pictures = np.array([draw(scene, rng) for scene, rng in pairs if with_pictures])
    ids, _ = tokenizers.tokenize([caption(*pair) for pair in pairs for _ in range(CAPTIONS)])
    return Examples(
        scenes, pictures, ids.astype(np.int16).reshape(AT_ONCE, CAPTIONS, *ids[0].shape)
    )
