"""Judge the bundled ControlNet: `python -m tools.miniature.evaluate_control`.

The miniature draws things in places that training did not see, with the drawings' edges as maps, at
scales 0 and 1, and with coarse areas of their colours.
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from pipeline import BUNDLED, Control, SDXLPipeline
from tools.miniature.control import FOLDER, NAME, SIDE, areas, edges, unplaced
from tools.miniature.drawing import draw_anywhere
from tools.miniature.judge import judge_scene
from tools.miniature.scenes import Scene, prompt, random_scene

UNSEEN = 1000  # far from the seeds of training
NEAR = 3  # pixels between edges that count as the same: 1 % of the picture's diagonal
COARSE = 16  # the width of areas, in pixels


class Example(NamedTuple):
    """A scene of one thing, a drawing of it `[SIDE, SIDE, 3]` uint8, and a map of the drawing."""

    scene: Scene
    drawing: np.ndarray
    map: np.ndarray


def main() -> None:
    """Draw, and print the scores."""
    parser = argparse.ArgumentParser(prog="evaluate_control", description=__doc__)
    parser.add_argument("--prompts", type=int, default=128)
    options = parser.parse_args()
    pipe = SDXLPipeline.from_pretrained(BUNDLED, controlnets={NAME: FOLDER / NAME})
    for kind in ("edges", "areas"):
        chosen = examples(options.prompts, kind)
        for scale in (0.0, 1.0):
            print(kind, scale, score(chosen, follow(pipe, chosen, scale)), flush=True)


def examples(count: int, kind: str) -> list[Example]:
    """Return examples of scenes with maps of "edges" or "areas"."""
    chosen: list[Example] = []
    rng = np.random.default_rng(UNSEEN)
    while len(chosen) < count:
        scene = random_scene(rng)
        if len(scene.things) == 1:
            drawing = draw_anywhere(scene, rng, SIDE)
            lines = np.repeat(edges(drawing)[..., None], 3, axis=2)
            values = lines if kind == "edges" else areas(drawing, COARSE, smooth=False)
            chosen.append(Example(unplaced(scene), drawing, values))
    return chosen


def follow(pipe: SDXLPipeline, chosen: Sequence[Example], scale: float) -> np.ndarray:
    """Draw the examples' prompts by their maps; return `[n, SIDE, SIDE, 3]` uint8."""
    pictures = []
    for i, example in enumerate(chosen):
        controls = [Control(NAME, Image.fromarray(example.map), scale=scale)]
        words = prompt(example.scene)
        result = pipe.generate(words, images=1, seed=UNSEEN + i, controls=controls)
        pictures += [np.asarray(image) for image in result.images]
    return np.stack(pictures)


def score(chosen: Sequence[Example], pictures: np.ndarray) -> dict[str, float]:
    """Return the pictures' mean scores, from 0 to 1: of edges, and of what was asked for."""
    verdicts = [judge_scene(p, x.scene) for x, p in zip(chosen, pictures, strict=True)]
    outlines = [f_score(p, x.drawing) for x, p in zip(chosen, pictures, strict=True)]
    scores = {
        "edges": outlines,
        "shape": [verdict.shape for verdict in verdicts],
        "colour": [verdict.colour for verdict in verdicts],
        "background": [verdict.background for verdict in verdicts],
    }
    return {name: round(float(np.mean(values)), 3) for name, values in scores.items()}


def f_score(picture: np.ndarray, drawing: np.ndarray) -> float:
    """Return the harmonic mean of precision and recall of a picture's edges, by a drawing's.

    An edge is right if there is one within `NEAR` pixels in the other picture (Martin et al. 2004).
    """
    ours, theirs = (edges(image) > 0 for image in (picture, drawing))
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * NEAR + 1, 2 * NEAR + 1))

    def share(lines: np.ndarray, others: np.ndarray) -> float:
        near = cv2.dilate(others.astype(np.uint8), disc) > 0
        return float(near[lines].mean()) if lines.any() else 0.0

    precision, recall = share(ours, theirs), share(theirs, ours)
    return 2 * precision * recall / max(precision + recall, 1e-9)


if __name__ == "__main__":
    main()
