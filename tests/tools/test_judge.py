from collections.abc import Callable

import numpy as np
import pytest
from scipy import ndimage

from tools.miniature.drawing import draw
from tools.miniature.judge import Verdict, judge_scene, look
from tools.miniature.scenes import COLOURS, SHAPES, STYLES, Scene, Thing, random_scene

STAR = Scene("blue", (Thing("star", "red", "large"),), "centre", "flat")
PAIR = Scene(
    "white", (Thing("ring", "black", "small"), Thing("heart", "red", "large")), "inside", "glossy"
)


def drawn(scene: Scene) -> np.ndarray:
    return draw(scene, np.random.default_rng(1))


def test_the_judge_names_what_it_sees():
    seen = look(drawn(STAR))
    assert seen.background == "blue"
    (thing,) = seen.things
    assert (thing.colour, thing.shape) == ("red", "star")
    assert thing.centre == pytest.approx((0.5, 0.5), abs=0.05)
    assert 0.1 < thing.area < 0.3


def test_it_sees_one_thing_inside_another():
    seen = look(drawn(PAIR))
    assert [(thing.colour, thing.shape) for thing in seen.things] == [
        ("red", "heart"),
        ("black", "ring"),
    ]


def test_an_empty_picture_has_a_background_and_nothing_else():
    picture = np.full((256, 256, 3), (46, 160, 72), np.uint8)
    seen = look(picture)
    assert seen.background == "green"
    assert seen.things == ()
    assert judge_scene(picture, STAR) == Verdict(background=False, colour=False, shape=False)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("style", STYLES)
def test_it_knows_every_shape_in_every_style(shape, style):
    for size in ("small", "large"):
        scene = Scene("gray", (Thing(shape, "yellow", size),), "centre", style)
        assert judge_scene(drawn(scene), scene) == Verdict(True, True, True)


@pytest.mark.parametrize("colour", COLOURS)
def test_it_knows_every_colour_on_every_background(colour):
    for background in COLOURS:
        if background != colour:
            scene = Scene(background, (Thing("circle", colour, "medium"),), "centre", "glossy")
            assert judge_scene(drawn(scene), scene) == Verdict(True, True, True)


def test_a_verdict_has_one_answer_per_question():
    picture = drawn(STAR)
    other_background = Scene("white", STAR.things, "centre", "flat")
    other_colour = Scene("blue", (Thing("star", "pink", "large"),), "centre", "flat")
    other_shape = Scene("blue", (Thing("moon", "red", "large"),), "centre", "flat")
    assert judge_scene(picture, other_background) == Verdict(False, True, True)
    assert judge_scene(picture, other_colour) == Verdict(True, False, True)
    assert judge_scene(picture, other_shape) == Verdict(True, True, False)
    assert not judge_scene(picture, PAIR).colour


@pytest.mark.parametrize(
    "picture", [np.zeros((64, 64, 3), np.float32), np.zeros((64, 32, 3), np.uint8)]
)
def test_a_picture_that_is_not_square_is_refused(picture):
    with pytest.raises(ValueError, match="expected"):
        look(picture)


def test_it_judges_other_sizes_too():
    for size in (128, 512):
        assert judge_scene(draw(STAR, np.random.default_rng(1), size), STAR).shape


def measure(
    renders: int, seed: int, spoil: Callable[[np.ndarray, np.random.Generator], np.ndarray]
) -> dict[str, float]:
    """Return the share of pictures judged correctly, by question, with one thing and with two."""
    rng = np.random.default_rng(seed)
    right: dict[int, list[tuple[bool, bool, bool]]] = {1: [], 2: []}
    while min(len(verdicts) for verdicts in right.values()) < renders:
        scene = random_scene(rng, held_out=rng.random() < 0.1)
        verdicts = right[len(scene.things)]
        if len(verdicts) < renders:
            verdict = judge_scene(spoil(draw(scene, rng), rng), scene)
            verdicts.append((verdict.background, verdict.colour, verdict.shape))
    return {
        f"{kind}, {question}": float(np.mean([v[i] for v in right[count]]))
        for count, kind in ((1, "one thing"), (2, "two things"))
        for i, question in enumerate(("background", "colour", "shape"))
    }


def untouched(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return picture


def blurred_and_noisy(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    blurred = ndimage.gaussian_filter(picture.astype(np.float32), (2, 2, 0))
    noise = rng.uniform(-8, 8, picture.shape)
    return np.clip(blurred + noise + 0.5, 0, 255).astype(np.uint8)


@pytest.mark.slow
def test_it_is_hardly_ever_wrong_about_true_renders():
    assert min(measure(renders=60, seed=1, spoil=untouched).values()) >= 0.98
    assert min(measure(renders=30, seed=2, spoil=blurred_and_noisy).values()) >= 0.96


def test_it_is_not_fooled_by_an_uneven_background():
    rng = np.random.default_rng(7)
    for _ in range(20):
        scene = random_scene(rng)
        picture = draw(scene, rng).astype(np.float32)
        picture += 10 * np.sin(np.linspace(0, 9, 256))[None, :, None]
        assert judge_scene(np.clip(picture, 0, 255).astype(np.uint8), scene).colour
