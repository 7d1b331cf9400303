"""Scores of pictures that the bundled miniature draws of random scenes."""

from collections.abc import Sequence

import numpy as np

from tools.miniature.judge import judge_scene
from tools.miniature.scenes import Scene, random_scene

HELD_OUT_EVERY = 4  # one scene in this many
SEED = 1000  # far from the seeds of training


def draw_scenes(count: int) -> list[Scene]:
    """Draw scenes that training did not see, every fourth with a held-out pair."""
    rng = np.random.default_rng(SEED)
    return [random_scene(rng, held_out=i % HELD_OUT_EVERY == 0) for i in range(count)]


def score(scenes: Sequence[Scene], pictures: np.ndarray) -> dict[str, float]:
    """Return the percentages of pictures `[n, H, W, 3]` uint8 that show what was asked for."""
    pairs = zip(pictures, scenes, strict=True)
    both = [(scene, judge_scene(picture, scene)) for picture, scene in pairs]
    single = [(scene, verdict) for scene, verdict in both if len(scene.things) == 1]
    double = [verdict for scene, verdict in both if len(scene.things) == 2]
    unseen = [verdict for scene, verdict in single if scene.is_held_out]
    return {
        "background": _percent([verdict.background for _, verdict in both]),
        "object_colour": _percent([verdict.colour for _, verdict in single]),
        "object_shape": _percent([verdict.shape for _, verdict in single]),
        "both_colours": _percent([verdict.colour for verdict in double]),
        "both_shapes": _percent([verdict.shape for verdict in double]),
        "held_out_colour": _percent([verdict.colour for verdict in unseen]),
        "held_out_shape": _percent([verdict.shape for verdict in unseen]),
    }


def _percent(outcomes: list[bool]) -> float:
    return round(100 * float(np.mean(outcomes)), 1)
