"""The texts of the panel under an open picture, and the values that its buttons fill in."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from pipeline.images.metadata import Settings
from tests.models import MODEL
from ui import i18n
from ui.form.fields import Fields
from ui.pictures import picture_panel
from ui.pictures.saved import Picture, Unfinished
from ui.samples.model_kind import Kind
from ui.samples.styles import Typed, styles_for
from ui.wiring import Call

STYLES = styles_for(Kind.MINIATURE)
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
PICTURES = [
    Picture(Path(f"folder/a-star-{s.seed}.png"), Typed("a star"), s, images=2) for s in SETTINGS
]
NIGHT = Picture(
    Path("folder/a-star-7.png"),
    Typed("a star", "", "Night"),
    replace(SETTINGS[0], prompt="a glossy picture of a star on a black background"),
)


def used(pictures: list[Picture], key: str | None) -> dict[str, Any]:
    call = Call(gr.Request(), {"pictures": pictures}, {"key": key})
    return {**picture_panel.used(call, MODEL)}


def test_the_details_tell_the_size_of_the_file():
    part = replace(PICTURES[0], size=(352, 256))
    shown, alone = picture_panel.texts([part], MODEL), picture_panel.texts([PICTURES[0]], MODEL)
    assert i18n.size((352, 256)) in shown
    assert i18n.size((256, 256)) in alone
    # The size to draw in again is that of the part.
    assert "Size: 256x256" in shown


def kinds(**changes: object) -> list[str]:
    text = picture_panel.texts([replace(PICTURES[0], **changes)], MODEL)
    return re.findall('data-kind="(.*?)"', text)[0].split()


def test_each_picture_has_its_own_texts():
    first, second = picture_panel.texts(PICTURES, MODEL).split("</article>")[:2]
    assert 'data-key="folder/a-star-7.png"' in first
    assert '<dd dir="auto">7</dd>' in first
    assert 'data-key="folder/a-star-8.png"' in second
    assert '<dd dir="auto">8</dd>' in second
    query = "?prompt=a%20star&amp;guidance_scale=5&amp;steps=25&amp;seed=8&amp;images=1"
    assert f'data-link="{query}"' in second


def test_the_texts_are_of_what_was_typed():
    text = picture_panel.texts([NIGHT], MODEL)
    assert '<dd dir="auto">a star</dd>' in text
    assert (
        f'<dt>{i18n.SETTINGS["style"].label}</dt><dd dir="auto">{i18n.STYLES["Night"]}</dd>' in text
    )
    assert "?prompt=a%20star&amp;style=Night&amp;" in text
    assert 'data-copy="a glossy picture of a star on a black background' in text


def test_an_unfinished_picture_says_so():
    unfinished = Unfinished(3, 25, Fields(prompt="a star"))
    assert kinds(unfinished=unfinished) == ["unfinished"]
    text = picture_panel.texts([replace(PICTURES[0], unfinished=unfinished)], MODEL)
    assert i18n.FINISH_INFO in text


def test_using_settings_shows_a_note():
    values = used(PICTURES, PICTURES[0].key)
    fields = Fields.sent(values)
    assert (fields.randomise, fields.seed, fields.several) == (False, 7, False)
    assert fields.images == 2
    assert values["status"]["kind"] == "taken"
    assert "The picture was made with m." in values["status"]["warning"]


def test_using_settings_restores_the_typed_words_and_the_style():
    fields = Fields.sent(used([NIGHT], NIGHT.key))
    assert (fields.prompt, fields.style) == ("a star", "Night")


def test_settings_from_elsewhere_have_their_style_recognised():
    fields = Fields.sent(picture_panel.apply(NIGHT.settings, MODEL, STYLES))
    assert (fields.prompt, fields.style) == ("a star", "Night")


@pytest.mark.parametrize("key", [None, "", "folder/a-star-9.png", "a-star-7.png"])
def test_a_picture_that_is_gone_changes_no_field(key: str | None):
    values = used(PICTURES, key)
    assert [*values] == ["status"]
    assert "no longer kept" in values["status"]["text"]


def test_without_settings_from_elsewhere_nothing_changes():
    assert picture_panel.apply(None, MODEL, STYLES) == {}
