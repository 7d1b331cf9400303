"""A network that says what a picture shows: `python -m tools.trainer.judge --steps 3000`.

It looks at a picture in a grid of `CELLS` by `CELLS` cells, and says of each which thing covers it
and in which hue, and of the whole who drew it and what is behind. It learns from composed scenes
alone, never from a picture that the miniature drew, and is measured on scenes that it has not seen.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from PIL import Image

from tools.trainer.composition import (
    COLOURS,
    HUES,
    PLACES,
    TIMES,
    Box,
    Place,
    Plain,
    Scene,
    boxes,
    draw,
    draw_at,
    random_scene,
)
from tools.trainer.icons import HANDS
from tools.trainer.things import all_things
from tools.trainer.training import Run, Tree, minimise, parameters, with_parameters

WORK = Path("runs/trainer/judge")
SIDE = 128  # pictures are judged at this width
CELLS = 8
BATCH = 48
SHARES = (0.5, 0.3, 0.2)  # of one thing, two, several of a kind
NAMES = tuple(thing.icon for thing in all_things())
NOTHING = len(NAMES)
UNSURE = -1  # cells at a thing's edge have no right answer
BEHIND = (*COLOURS, *(f"{place} {time}" for place in PLACES for time in TIMES))
OWN = len(HUES)  # a thing in its own colours


@dataclass(frozen=True)
class Labels:
    """The right answers about a picture: indices into the words above.

    Attributes:
        things: int32 `[CELLS, CELLS]`, into `NAMES`; `NOTHING` or `UNSURE`.
        hues: int32 `[CELLS, CELLS]`, into `HUES`; `OWN` or `UNSURE`.
        hand, top, bottom: into `HANDS` and `BEHIND`; the two colours of a background differ only
            where it fades.
    """

    things: np.ndarray
    hues: np.ndarray
    hand: int
    top: int
    bottom: int


class Judge(nnx.Module):
    """Convolutions from a picture to a grid of cells."""

    def __init__(self, rngs: nnx.Rngs):
        widths = (24, 48, 96, 192, 192)
        ins = (3, *widths[:-1])
        strides = (2, 2, 2, 2, 1)
        self.layers = nnx.List(
            nnx.Conv(a, b, (3, 3), strides=(stride, stride), padding=1, rngs=rngs)
            for a, b, stride in zip(ins, widths, strides, strict=True)
        )
        self.more = nnx.List(
            nnx.Conv(width, width, (3, 3), padding=1, rngs=rngs) for width in widths
        )
        self.norms = nnx.List(nnx.GroupNorm(width, num_groups=8, rngs=rngs) for width in widths)
        width = widths[-1]
        self.of_cells = nnx.Linear(width, len(NAMES) + 1 + len(HUES) + 1, rngs=rngs)
        self.of_whole = nnx.Linear(2 * width, len(HANDS) + 2 * len(BEHIND), rngs=rngs)

    def __call__(self, pictures: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the logits of every cell and of the whole; pictures are `[B, SIDE, SIDE, 3]`."""
        x = pictures
        for layer, residual_layer, norm in zip(self.layers, self.more, self.norms, strict=True):
            x = jax.nn.silu(norm(layer(x)))
            x = x + jax.nn.silu(residual_layer(x))
        pooled = jnp.concatenate([x.mean((1, 2)), x.max((1, 2))], -1)
        return self.of_cells(x), self.of_whole(pooled)


def labels_of(scene: Scene, places: list[Box]) -> Labels:
    """Return the right answers for a scene whose things are at `places`, made by `boxes`."""
    things = np.full((CELLS, CELLS), NOTHING, np.int32)
    hues = np.full((CELLS, CELLS), UNSURE, np.int32)
    middles = (np.arange(CELLS) + 0.5) / CELLS
    for x, y, size in places:
        distance = np.maximum(abs(middles[:, None] - y), abs(middles[None] - x))
        things[distance < 0.5 * size + 0.5 / CELLS] = UNSURE
    for item, (x, y, size) in zip(scene.items, places, strict=True):
        distance = np.maximum(abs(middles[:, None] - y), abs(middles[None] - x))
        is_inside = distance <= max(0.28 * size, distance.min() + 1e-6)
        things[is_inside] = NAMES.index(item.thing.icon)
        hues[is_inside] = tuple(HUES).index(item.colour) if item.colour else OWN
    top, bottom = _behind(scene.background)
    return Labels(things, hues, HANDS.index(scene.hand), BEHIND.index(top), BEHIND.index(bottom))


def _behind(background: Plain | Place) -> tuple[str, str]:
    if isinstance(background, Plain):
        return background.colour, background.to or background.colour
    name = f"{background.name} {background.time}"
    return name, name


def example(rng: np.random.Generator) -> tuple[np.ndarray, Labels]:
    """Compose a scene, a little blurred or noisy: uint8 [SIDE, SIDE, 3], and its labels."""
    scene = random_scene(rng, all_things(), SHARES)
    places = boxes(scene)
    picture = draw_at(places, scene, rng)
    return spoiled(reduced(picture), rng), labels_of(scene, places)


def reduced(picture: np.ndarray) -> np.ndarray:
    """Reduce a picture to uint8 [SIDE, SIDE, 3]."""
    return np.asarray(Image.fromarray(picture).resize((SIDE, SIDE), Image.Resampling.BOX))


def spoiled(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Blur a picture, change its colours and add noise, all a little, as a miniature would."""
    image = Image.fromarray(picture)
    if rng.random() < 0.5:
        side = int(rng.integers(SIDE // 3, SIDE))
        small_image = image.resize((side, side), Image.Resampling.BILINEAR)
        image = small_image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    values = np.asarray(image, np.float32)
    values = values * rng.uniform(0.94, 1.06, 3) + rng.uniform(-8, 8, 3)
    values += rng.normal(0, rng.uniform(0, 8), values.shape)
    return values.clip(0, 255).astype(np.uint8)


def loss_fn(judge: Judge, params: Tree, pictures: jax.Array, *labels: jax.Array) -> jax.Array:
    """Return the cross-entropy over cells and wholes."""
    of_cells, of_whole = with_parameters(judge, params)(pictures)
    things, hues, hand, top, bottom = labels
    parts = jnp.split(of_whole, [len(HANDS), len(HANDS) + len(BEHIND)], -1)
    whole_loss = sum(
        optax.softmax_cross_entropy_with_integer_labels(part, label).mean()
        for part, label in zip(parts, (hand, top, bottom), strict=True)
    )
    thing_logits, hue_logits = jnp.split(of_cells, [len(NAMES) + 1], -1)
    return whole_loss / 3 + _of_sure(thing_logits, things) + 0.5 * _of_sure(hue_logits, hues)


def _of_sure(logits: jax.Array, labels: jax.Array) -> jax.Array:
    is_sure = labels != UNSURE
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0))
    # Cells with a thing are few and say the most.
    weight = is_sure * jnp.where(labels == NOTHING, 0.2, 1.0)
    return (losses * weight).sum() / jnp.maximum(weight.sum(), 1)


@dataclass(frozen=True)
class Seen:
    """Answers about a picture: each cell's thing and hue, the hand, and the background."""

    things: np.ndarray
    hues: np.ndarray
    hand: str
    behind: tuple[str, str]

    def hue_of(self, icon: str) -> str:
        """Return the hue of most cells of a thing; "" for its own colours, or if it is not seen."""
        hues = self.hues[self.things == NAMES.index(icon)]
        return "" if not hues.size else [*HUES, ""][np.bincount(hues).argmax()]

    @property
    def names(self) -> set[str]:
        """The names of the icons in the picture."""
        return {NAMES[i] for i in np.unique(self.things) if i != NOTHING}


def look(judge: Judge, pictures: np.ndarray) -> list[Seen]:
    """Return the judge's answers about pictures, uint8 `[n, H, W, 3]`."""
    small_pictures = np.array([reduced(picture) for picture in pictures])
    forward = jax.jit(lambda x: judge(x))
    answers = []
    for start in range(0, len(small_pictures), BATCH):
        of_cells, of_whole = map(
            np.asarray, forward(_scaled(small_pictures[start : start + BATCH]))
        )
        thing_logits, hue_logits = np.split(of_cells, [len(NAMES) + 1], -1)
        hand, top, bottom = np.split(of_whole, [len(HANDS), len(HANDS) + len(BEHIND)], -1)
        answers += [
            Seen(
                thing_logits[i].argmax(-1),
                hue_logits[i].argmax(-1),
                HANDS[hand[i].argmax()],
                (BEHIND[top[i].argmax()], BEHIND[bottom[i].argmax()]),
            )
            for i in range(len(hand))
        ]
    return answers


def _scaled(pictures: np.ndarray) -> jax.Array:
    return jnp.asarray(pictures, jnp.float32) / 127.5 - 1


def load_judge(folder: Path = WORK) -> Judge:
    """Return the judge that `main` has trained in a folder."""
    judge = Judge(nnx.Rngs(0))
    with np.load(folder / "judge.npz") as archive:
        arrays = [jnp.asarray(archive[name], jnp.float32) for name in archive.files]
    structure = jax.tree.structure(parameters(judge))
    return with_parameters(judge, jax.tree.unflatten(structure, arrays))


def main() -> None:
    """Train the judge, and measure it on scenes that it has not seen."""
    parser = argparse.ArgumentParser(prog="python -m tools.trainer.judge", description=__doc__)
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--steps", type=int, default=3000)
    options = parser.parse_args()
    judge = Judge(nnx.Rngs(0))

    def batch(i: int) -> tuple[np.ndarray, ...]:
        rng = np.random.default_rng((7, i))
        pictures, labels = zip(*(example(rng) for _ in range(BATCH)), strict=True)
        fields = ("things", "hues", "hand", "top", "bottom")
        answers = [np.array([getattr(x, name) for x in labels], np.int32) for name in fields]
        return (np.asarray(_scaled(np.array(pictures))), *answers)

    run = Run(options.work, 250)
    state = minimise(run, partial(loss_fn, judge), parameters(judge), batch, options.steps)
    judge = with_parameters(judge, state["average"])
    arrays = [np.asarray(leaf, np.float16) for leaf in jax.tree.leaves(state["average"])]
    np.savez(options.work / "judge.npz", *arrays)
    print(json.dumps(measure(judge, 512), indent=2))


def measure(judge: Judge, count: int, seed: int = 99) -> dict[str, float]:
    """Return the shares of unseen, unspoiled scenes that the judge gets right."""
    rng = np.random.default_rng(seed)
    scenes = [random_scene(rng, all_things(), SHARES) for _ in range(count)]
    answers = look(judge, np.array([draw(scene, rng) for scene in scenes]))
    return score(scenes, answers)


def score(scenes: Sequence[Scene], answers: Sequence[Seen]) -> dict[str, float]:
    """Return the percentages of pictures that show what their scenes say, kind by kind."""
    results: dict[str, list[bool]] = {}
    for scene, answer in zip(scenes, answers, strict=True):
        icons = {item.thing.icon for item in scene.items}
        kind = "both of two things" if len(icons) > 1 else "thing"
        results.setdefault(kind, []).append(icons <= answer.names)
        results.setdefault("style", []).append(scene.hand == answer.hand)
        results.setdefault("background", []).append(_behind(scene.background) == answer.behind)
        if len(icons) == 1 and scene.items[0].colour:
            hue = answer.hue_of(scene.items[0].thing.icon)
            results.setdefault("colour", []).append(hue == scene.items[0].colour)
    return {
        kind: round(100 * float(np.mean(values)), 1) for kind, values in sorted(results.items())
    }


if __name__ == "__main__":
    main()
