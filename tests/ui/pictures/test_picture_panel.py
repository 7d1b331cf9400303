"""The open picture and its buttons."""

from dataclasses import replace
from pathlib import Path

import gradio as gr
import pytest

from pipeline.images.metadata import Settings
from serving.generator import Model
from ui import i18n
from ui.form import Fields
from ui.pictures import picture_panel
from ui.pictures.saved import Picture

MODEL = Model(
    "org/model", None, False, "cpu", 1, 256, 256, 4, 25, 50, "Stable Diffusion XL", False, "", ""
)
SETTINGS = [
    Settings(
        "a star",
        "",
        seed=seed,
        num_inference_steps=25,
        guidance_scale=5.0,
        width=256,
        height=256,
        model="m",
    )
    for seed in (7, 8)
]
PICTURES = [Picture(Path(f"folder/a-star-{s.seed}.png"), "a star", s) for s in SETTINGS]


def opened(index: int, pictures: list[Picture]) -> tuple:
    return picture_panel._open(pictures, index, MODEL)


def test_the_open_picture_has_its_own_settings():
    column, text, varying, reveal, chosen, index = opened(1, PICTURES)
    assert column.visible
    assert "<dd>8</dd>" in text
    assert (chosen, index) == (SETTINGS[1], 1)
    assert varying.visible
    assert not reveal.visible
    assert 'href="pictures/folder/a-star-8.webp" download' in text
    assert "prompt=a%20star&amp;guidance_scale=5&amp;steps=25&amp;seed=8" in text


def test_a_variation_cannot_be_varied_again():
    variation = replace(SETTINGS[0], variation_seed=3, variation_strength=0.5)
    _, _, varying, *_ = opened(0, [replace(PICTURES[0], settings=variation)])
    assert not varying.visible


@pytest.mark.parametrize("index", [0, 2, -1])
def test_a_picture_without_settings_has_no_panel(index: int):
    column, text, _, _, chosen, _ = opened(index, [] if index == 0 else PICTURES)
    assert not column.visible
    assert (text, chosen) == ("", None)


def test_using_settings_shows_a_note():
    *values, strip = picture_panel.apply(SETTINGS[0], MODEL)
    fields = Fields.sent(values)
    assert (fields.randomise, fields.seed, fields.several) == (False, 7, False)
    assert i18n.TAKEN_OVER in strip
    assert "The picture was made with m." in strip


def test_a_new_seed_is_random():
    *values, _ = picture_panel.apply(picture_panel._without_seed(SETTINGS[0]), MODEL)
    fields = Fields.sent(values)
    assert fields.prompt == "a star"
    assert fields.randomise


def test_without_an_open_picture_nothing_changes():
    assert set(map(str, picture_panel.apply(picture_panel._without_seed(None), MODEL))) == {
        str(gr.skip())
    }
