"""Pictures that the bundled LoRAs draw, for prompts and seeds that no training saw."""

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import pytest

from tests.checkpoints import miniature
from tools.miniature.evaluate import SEED, score
from tools.miniature.evaluate_lora import LORAS, names_white, style_scores
from tools.miniature.lora import STYLES
from tools.miniature.scenes import Scene, prompt, random_scene

COUNT = 8

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    """Return scenes with one thing, nothing white, and a pair that training never showed."""
    rng = np.random.default_rng(SEED + 1)
    found = []
    while len(found) < COUNT:
        scene = random_scene(rng, held_out=True)
        if len(scene.things) == 1 and not names_white(scene):
            found.append(scene)
    return found


@pytest.fixture(scope="module")
def scores(scenes: list[Scene]) -> Callable[..., Mapping[str, float]]:
    """Return a function that draws the scenes with LoRAs, and returns the judges' scores."""
    pipe = miniature()
    for name in STYLES:
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
        return score(scenes, pictures) | style_scores(scenes, pictures)

    return drawn


# For each style, the least percentage of right backgrounds. Dusk makes some too dark for the judge.
BACKGROUNDS = {"dusk": 75, "glow": 85}
# For each style, the most of its measure without the LoRA, and the least with it.
APART = {"dusk": (0.0, 20.0), "glow": (4.0, 10.0)}


@pytest.mark.parametrize("name", STYLES)
def test_a_lora_draws_its_style(name: str, scores: Callable[..., Mapping[str, float]]) -> None:
    half, whole = (scores(**{name: weight})[name] for weight in (0.5, 1.0))
    plain = scores()[name]
    most, least = APART[name]
    assert plain < most
    assert whole > least
    assert plain < half < whole


@pytest.mark.parametrize("name", STYLES)
def test_prompts_are_still_followed(name: str, scores: Callable[..., Mapping[str, float]]) -> None:
    plain, styled = scores(), scores(**{name: 1.0})
    assert styled["background"] >= BACKGROUNDS[name]
    assert styled["object_colour"] >= 85
    assert styled["object_shape"] >= plain["object_shape"] - 30
