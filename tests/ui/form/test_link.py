"""Settings in the query of a link, as written by the page or by others."""

from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

import pytest

from tests.models import MODEL
from ui.form import link
from ui.form.fields import Fields
from ui.samples.model_kind import Kind
from ui.samples.styles import NONE, styles_for

STYLES = styles_for(Kind.SDXL)
SMALL = replace(MODEL, name="small", width=64, height=48, more_sizes=())
USUAL = Fields(
    prompt="", style=NONE, negative_prompt="", guidance_scale=5.0, steps=25, randomise=True, seed=0
)


def read(query: str) -> tuple[Fields, list[str]]:
    found = link.from_query(dict(parse_qsl(query.removeprefix("?"))), MODEL, STYLES)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "fields",
    [
        Fields(
            prompt="a star",
            style="Watercolour",
            negative_prompt="dull & grey",
            guidance_scale=7.25,
            steps=30,
            randomise=False,
            seed=2**32 - 1,
        ),
        Fields(
            prompt="a",
            style=NONE,
            negative_prompt="",
            guidance_scale=5.0,
            steps=25,
            randomise=False,
            seed=7,
            several=False,
            guidance_until=0.5,
            variation_strength=0.25,
            variation_seed=9,
        ),
        USUAL._replace(scheduler="dpmsolver++", sigma_schedule="karras"),
        USUAL._replace(scheduler="lcm", timesteps="999,749,499", eta=None),
        USUAL._replace(scheduler="ddim", timestep_spacing="trailing", eta=0.5),
        Fields(
            prompt="one\ntwo",
            style=NONE,
            negative_prompt="",
            guidance_scale=0.0,
            steps=1,
            randomise=False,
            seed=0,
            several=True,
        ),
        Fields(
            prompt='<b>"100 %" = 星 + 😀?#&amp;',
            style=NONE,
            negative_prompt="",
            guidance_scale=1 / 3,
            steps=50,
            randomise=True,
            seed=0,
        ),
    ],
)
def test_settings_survive_a_link(fields: Fields):
    assert read(link.to_query(fields)) == (fields, [])


def test_a_link_is_short_and_can_be_read():
    query = link.to_query(
        Fields(
            prompt="a red star",
            style=NONE,
            negative_prompt="",
            guidance_scale=5.0,
            steps=25,
            randomise=False,
            seed=7,
        )
    )
    assert query == "?prompt=a%20red%20star&guidance_scale=5&steps=25&seed=7"


def test_settings_missing_from_a_link_have_their_defaults():
    assert read("?prompt=a+star") == (USUAL._replace(prompt="a star"), [])


def test_a_seed_of_minus_one_is_random():
    assert read("?prompt=star&seed=-1") == (USUAL._replace(prompt="star"), [])


def test_unknown_parameters_are_ignored():
    assert link.from_query({"utm_source": "x", "__theme": "dark"}, MODEL, STYLES) is None


@pytest.mark.parametrize(
    ("query", "changes", "said"),
    [
        ("steps=many&prompt=x", {"prompt": "x"}, "Steps: many is not a valid number"),
        ("steps=2.5", {}, "Steps: 2.5 is not a valid number"),
        ("steps=99", {"steps": 50}, "Steps: 99 isn’t possible here, using 50."),
        ("guidance_scale=nan", {}, "Guidance scale: nan is not a valid number"),
        ("guidance_scale=1e999", {"guidance_scale": 20.0}, "Guidance scale: inf"),
        ("variation_strength=2", {"variation_strength": 1.0}, "Variation strength: 2.0"),
        ("size=8x8", {}, "Size: 8x8 is unknown. Choose from 256x256."),
        ("seed=-2", {"seed": 0, "randomise": False}, "Seed: -2"),
        ("seed=" + "9" * 9999, {}, "Seed: 999"),
        ("seed=" + "9" * 400, {"seed": 2**32 - 1, "randomise": False}, "Seed: 999"),
        ("variation_of=12", {}, "Earlier variations: can’t read 12"),
        ("scheduler=deis", {}, "Sampler: deis is unknown. Choose from Euler, Euler a,"),
        ("timesteps=5,9", {}, "Timesteps: can’t use 5,9. Write up to 50 falling numbers between"),
        ("eta=much", {}, "Eta: much is not a valid number"),
        ("images=9", {}, "Pictures: 9 is unknown. Choose from 1, 2, 3, 4"),
        ("style=<b>", {}, "Style: <b> is unknown. Choose from (none), Photograph"),
        ("several=perhaps", {}, "One picture per line: perhaps is unknown"),
        ("prompt=" + "x" * 3000, {"prompt": "x" * 2000}, "the first 2000 characters"),
    ],
)
def test_unusable_values_are_reported(query: str, changes: dict[str, Any], said: str):
    fields, notes = read(query)
    assert fields == USUAL._replace(**changes)
    assert len(notes) == 1
    assert said in notes[0]


def test_a_link_leaves_the_schedule_to_the_model():
    karras = replace(MODEL, scheduler="euler", sigma_schedule="karras")
    for link_, chosen in (("scheduler=heun", ("heun", "")), ("scheduler=euler", ("", ""))):
        found = link.from_query(dict(parse_qsl(link_)), karras, STYLES)
        assert found is not None
        assert (found[0].scheduler, found[0].sigma_schedule) == chosen


def test_a_sampler_in_another_programs_words():
    fields, notes = read("scheduler=DPM%2B%2B+2M+Karras&prompt=x")
    assert (fields.scheduler, fields.sigma_schedule) == ("dpmsolver++", "karras")
    assert notes == []


def test_a_size_in_a_link():
    wide = replace(MODEL, more_sizes=((384, 256),))
    query = link.to_query(USUAL._replace(prompt="a", size="384x256"))
    assert query.endswith("&size=384x256")
    assert link.from_query({"size": "384x256"}, wide, STYLES) == (
        USUAL._replace(size="384x256"),
        [],
    )
    assert link.from_query({"size": "256x256"}, wide, STYLES) == (USUAL, [])


def test_a_choice_that_is_not_here_is_reported() -> None:
    fields, [decoder, recipe] = read("?prompt=a&decoder=tiny&recipe=lightning-4")
    assert (fields.decoder, fields.recipe) == ("", "")
    assert decoder == "Decoder: tiny is unknown. Choose from full."
    assert recipe == "Quality: lightning-4 isn’t available here. Choose another."


def test_a_size_is_one_of_the_model_that_the_link_names():
    both = replace(MODEL, others=(SMALL,))
    found = link.from_query({"model": "small", "size": "64x48"}, both, STYLES)
    assert found is not None
    fields, notes = found
    assert (fields.model, fields.size, notes) == ("small", "", [])
    found = link.from_query({"size": "64x48"}, both, STYLES)
    assert found is not None
    assert "64x48" in found[1][0]
