"""Entries of a browser's history, and the data that it may send back."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pages import MADE_HERE, StandIn, call_with
from ui import status
from ui.form.fields import Fields
from ui.page import history
from ui.pictures.saved import Picture
from ui.samples.model_kind import Kind
from ui.samples.styles import NONE, Typed, styles_for

PICTURES = [
    Picture(
        Path(f"folder/a-star-{7 + index}.png"),
        Typed("a star", "", NONE),
        replace(MADE_HERE, seed=7 + index),
        index=index,
    )
    for index in range(3)
]


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
    styled = history.asked("an id", fields._replace(style="Anime", guidance_scale=7.5))
    assert styled["said"] == "Anime · Seed 7 · Steps 25 · Guidance scale 7.5"


def test_the_line_of_a_recipe_names_no_settings_that_it_replaces():
    told = history.asked("an id", Fields(prompt="a star", seed=7, recipe="lcm"))
    assert told["said"] == "Seed 7 · Quality lcm"


# --- settings that are taken ---


def used(data: object) -> dict[str, Any]:
    return {**history.used(call_with(data), StandIn(), styles_for(Kind.SDXL))}


def test_the_settings_of_an_entry_are_taken():
    values = used({"link": "?prompt=x&style=Anime&seed=7"})
    fields = Fields.sent(values)
    assert (fields.prompt, fields.style, fields.seed) == ("x", "Anime", 7)
    assert values["status"] == status.taken_over([])


@pytest.mark.parametrize("data", [None, [], "x", {}, {"link": None}, {"link": []}, {"link": 0}])
def test_a_malformed_link_is_ignored(data: object):
    assert used(data) == {}


# --- pictures that are deleted ---


def test_a_picture_is_deleted_and_brought_back():
    call = call_with({"key": PICTURES[1].key, "open": 1}, pictures=PICTURES)
    updates = history.without(call, StandIn())
    assert updates["pictures"] == [PICTURES[0], PICTURES[2]]
    assert PICTURES[1].key not in updates["texts"]
    assert updates["gallery"].selected_index == 1
    assert len(updates["gallery"].value) == 2

    restored = history.restored(call_with(dropped=updates["dropped"]), StandIn())
    assert restored["pictures"] == PICTURES
    assert PICTURES[1].key in restored["texts"]


@pytest.mark.parametrize("data", [None, [], {"key": None}, {"key": ["x"]}, {"key": "gone"}])
def test_a_picture_that_is_not_there_is_not_deleted(data: object):
    for pictures in (PICTURES, []):  # a session that was forgotten has none
        updates = history.without(call_with(data, pictures=pictures), StandIn())
        assert updates.keys() == {"status"}
        assert updates["status"]["kind"] == "error"
    assert history.restored(call_with(data, dropped=[]), StandIn()) == {}


@pytest.mark.parametrize("place", [-1, 2, 10**30, True, 0.5, "1", [], None])
def test_a_place_that_is_not_there_is_not_opened(place: object):
    call = call_with({"key": PICTURES[1].key, "open": place}, pictures=PICTURES)
    assert history.without(call, StandIn())["gallery"].selected_index is None


def test_what_another_tab_deleted_goes_too():
    call = call_with({"key": PICTURES[1].key, "gone": "0,1"}, pictures=PICTURES)
    assert history.without(call, StandIn())["pictures"] == [PICTURES[2]]
