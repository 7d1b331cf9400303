from itertools import combinations

import numpy as np
import pytest

from tools.miniature.drawing import draw
from tools.miniature.scenes import (
    COLOURS,
    HELD_OUT,
    SHAPES,
    SIZES,
    STYLES,
    Scene,
    Thing,
    prompt,
    random_scene,
)
from tools.miniature.shapes import signed_distance


def scenes(count: int, held_out: bool = False) -> list[Scene]:
    rng = np.random.default_rng(3)
    return [random_scene(rng, held_out=held_out) for _ in range(count)]


def test_held_out_pairs_appear_only_when_asked_for():
    assert len(HELD_OUT) == len(COLOURS)
    assert {colour for colour, _ in HELD_OUT} == set(COLOURS)
    assert {shape for _, shape in HELD_OUT} == set(SHAPES)
    assert not any(scene.is_held_out for scene in scenes(2000))
    assert all(scene.is_held_out for scene in scenes(300, held_out=True))


def test_scenes_cover_the_grammar_evenly():
    drawn = scenes(3000)
    things = [thing for scene in drawn for thing in scene.things]
    assert 0.55 < np.mean([len(scene.things) == 1 for scene in drawn]) < 0.65
    for words, of in ((SHAPES, "shape"), (COLOURS, "colour"), (SIZES, "size")):
        counts = [sum(getattr(thing, of) == word for thing in things) for word in words]
        assert min(counts) > 0.4 * len(things) / len(words)


def test_the_plain_wording():
    star, circle = Thing("star", "red", "large"), Thing("circle", "white", "medium")
    assert prompt(Scene("blue", (star,), "centre", "flat")) == (
        "a large red star on a blue background"
    )
    assert prompt(Scene("orange", (circle, star), "left of", "glossy")) == (
        "a glossy white circle to the left of a large glossy red star on an orange background"
    )


def test_a_drawing_is_repeatable_and_varies_with_its_random_state():
    scene = Scene("blue", (Thing("star", "red", "large"),), "centre", "soft")
    first, again, other = (draw(scene, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first.shape == (256, 256, 3)
    assert first.dtype == np.uint8
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.lasting
@pytest.mark.parametrize("style", STYLES)
def test_things_keep_away_from_the_edge_of_the_picture(style):
    rng = np.random.default_rng(6)
    for scene in scenes(150):
        scene = Scene(scene.background, scene.things, scene.layout, style)
        picture = draw(scene, rng).astype(float)
        rows = picture - picture[:, :1]
        assert np.abs(rows[:, -1]).max() <= 2
        assert np.ptp(picture[0], axis=0).max() <= 2
        assert np.ptp(picture[-1], axis=0).max() <= 2


def test_shapes_overlap_too_little_to_be_mistaken_for_each_other():
    v, u = np.mgrid[-1.2:1.2:128j, -1.2:1.2:128j].astype(np.float32)
    masks = {shape: signed_distance(shape, u, v) < 0 for shape in SHAPES}
    for a, b in combinations(SHAPES, 2):
        assert (masks[a] & masks[b]).sum() / (masks[a] | masks[b]).sum() < 0.9, (a, b)


def test_drawing_scales_with_the_picture():
    scene = Scene("white", (Thing("heart", "red", "large"),), "centre", "flat")
    small, large = (draw(scene, np.random.default_rng(1), size) for size in (64, 128))
    shrunk = large.reshape(64, 2, 64, 2, 3).mean((1, 3))
    assert np.abs(shrunk - small).mean() < 3
