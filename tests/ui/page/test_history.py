"""Entries of a browser's list of requests, and the data that it may send back."""

from pathlib import Path

import pytest

from ui.form.fields import Fields
from ui.page import history
from ui.samples.styles import NONE


def test_a_request_is_recorded_as_a_link_and_a_line():
    fields = Fields(
        prompt="a star",
        style=NONE,
        negative_prompt="",
        guidance_scale=5.0,
        steps=25,
        randomise=False,
        seed=7,
    )
    told = history.asked("an id", fields)
    assert told == {
        "id": "an id",
        "link": "?prompt=a%20star&guidance_scale=5&steps=25&seed=7",
        "said": "Seed 7 · Steps 25 · Guidance scale 5",
    }
    styled = history.asked("an id", fields._replace(style="Anime"))
    assert styled["said"].startswith("Anime · Seed 7")


def test_pictures_are_recorded_by_their_files():
    told = history.drawn("an id", [Path("/somewhere/token/a-star-7.png")])
    assert told == {"id": "an id", "drawn": ["token/a-star-7.png"]}


@pytest.mark.parametrize("data", [None, [], "x", {}, {"link": None, "id": []}, {"id": 0}])
def test_a_malformed_choice_is_ignored(data: object):
    assert history._chosen(data) == ("", "")


def test_the_line_of_a_recipe_names_no_settings_that_it_replaces():
    told = history.asked("an id", Fields(prompt="a star", seed=7, recipe="lcm"))
    assert told["said"] == "Seed 7 · Quality lcm"


def test_a_choice_has_the_link_and_the_request_of_its_entry():
    assert history._chosen({"link": "?prompt=x", "id": "y"}) == ("prompt=x", "y")
