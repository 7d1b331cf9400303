"""The picture that is open, and what its buttons do."""

from dataclasses import replace

import gradio as gr
import pytest

from pipeline.metadata import Settings
from serving.generator import Model
from ui import picked, words

MODEL = Model("org/model", None, False, "cpu", 1, 256, 256, 4, 25, 50, "Stable Diffusion XL", False)
PICTURES = [Settings("a star", "", seed, 25, 5.0, 256, 256, "m", None) for seed in (7, 8)]


def opened(index: int, pictures: list[Settings]) -> tuple:
    return picked._open(pictures, index, MODEL)


def test_the_open_picture_has_its_own_settings():
    column, text, varying, chosen = opened(1, PICTURES)
    assert column.visible
    assert "<dd>8</dd>" in text
    assert chosen == PICTURES[1]
    assert varying.visible


def test_of_a_variation_there_are_no_further_ones():
    *_, varying, _ = opened(0, [replace(PICTURES[0], variation_seed=3, variation_strength=0.5)])
    assert not varying.visible


@pytest.mark.parametrize("index", [0, 2, -1])
def test_a_picture_without_settings_has_no_panel(index: int):
    column, text, _, chosen = opened(index, [] if index == 0 else PICTURES)
    assert not column.visible
    assert (text, chosen) == ("", None)


def test_used_settings_are_said_to_be_in_place():
    *fields, strip = picked.apply(PICTURES[0], MODEL)
    assert fields[5:8] == [False, 7, False]
    assert words.TAKEN_OVER in strip
    assert "It was drawn by m" in strip


def test_a_new_seed_is_left_to_chance():
    *fields, _ = picked.apply(picked._without_seed(PICTURES[0]), MODEL)
    assert fields[0] == "a star"
    assert fields[5]


def test_nothing_open_changes_nothing():
    assert set(map(str, picked.apply(picked._without_seed(None), MODEL))) == {str(gr.skip())}
