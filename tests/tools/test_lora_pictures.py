"""Pictures that the bundled LoRAs draw, for prompts and seeds that no training saw."""

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import pytest

from pipeline import BUNDLED
from tests.checkpoints import miniature
from tools.miniature.evaluate import SEED, score
from tools.miniature.judge import minus_background, reduced, side_columns, to_lab
from tools.miniature.scenes import Scene, prompt, random_scene

LORAS = BUNDLED / "loras"
COUNT = 8
END = 1 / 8  # of a picture's height: its top, and its bottom

pytestmark = pytest.mark.slow


def light_from_below(picture: np.ndarray) -> float:
    """Return how much lighter the background is at the bottom, in percent from black to white."""
    lightness = side_columns(to_lab(reduced(picture)))[..., 0]
    end = round(END * len(lightness))
    return float(np.median(lightness[-end:]) - np.median(lightness[:end]))


def halo_share(picture: np.ndarray) -> float:
    """Return the share of a picture a little lighter than its background, in percent."""
    difference = minus_background(to_lab(reduced(picture)))
    distance = np.linalg.norm(difference, axis=-1)
    is_faint = (distance > 4) & (distance < 25)
    return 100 * float((is_faint & (difference[..., 0] > 2)).mean())


# A measure of each style that is near zero, or below, for pictures without it.
MEASURES = {"dusk": light_from_below, "glow": halo_share}


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    """Return scenes with one thing, nothing white, and a pair that training never showed."""
    rng = np.random.default_rng(SEED + 1)
    found = []
    while len(found) < COUNT:
        scene = random_scene(rng, held_out=True)
        colours = {scene.background, *(thing.colour for thing in scene.things)}
        if len(scene.things) == 1 and "white" not in colours:  # no light is seen on white
            found.append(scene)
    return found


@pytest.fixture(scope="module")
def scores(scenes: list[Scene]) -> Callable[..., Mapping[str, float]]:
    """Return a function that draws the scenes with LoRAs, and returns the judges' scores."""
    pipe = miniature()
    for name in MEASURES:
        pipe.load_lora(LORAS / f"{name}.safetensors")

    @cache
    def drawn(**loras: float) -> Mapping[str, float]:
        pictures = np.stack(
            [
                np.asarray(image)
                for i in range(0, COUNT, 4)
                for image in pipe.generate(
                    [*map(prompt, scenes[i : i + 4])],
                    seed=SEED + i,
                    num_inference_steps=20,
                    loras=loras,
                ).images
            ]
        )
        return score(scenes, pictures) | {
            name: round(float(np.median([measure(picture) for picture in pictures])), 2)
            for name, measure in MEASURES.items()
        }

    return drawn


# For each style, the least percentage of right backgrounds. Dusk makes some too dark for the judge.
BACKGROUNDS = {"dusk": 75, "glow": 85}
# For each style, the most of its measure without the LoRA, and the least with it.
APART = {"dusk": (0.0, 20.0), "glow": (4.0, 10.0)}


@pytest.mark.parametrize("name", MEASURES)
def test_a_lora_draws_its_style(name: str, scores: Callable[..., Mapping[str, float]]) -> None:
    half, whole = (scores(**{name: weight})[name] for weight in (0.5, 1.0))
    plain = scores()[name]
    most, least = APART[name]
    assert plain < most
    assert whole > least
    assert plain < half < whole


@pytest.mark.parametrize("name", MEASURES)
def test_prompts_are_still_followed(name: str, scores: Callable[..., Mapping[str, float]]) -> None:
    plain, styled = scores(), scores(**{name: 1.0})
    assert styled["background"] >= BACKGROUNDS[name]
    assert styled["object_colour"] >= 85
    assert styled["object_shape"] >= plain["object_shape"] - 30
