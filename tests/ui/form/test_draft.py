"""The values that the page takes of those that a tab kept."""

import pytest

from tests.models import MODEL
from ui.form import components
from ui.form.fields import Fields
from ui.samples.model_kind import Kind
from ui.samples.styles import styles_for

POSSIBLE = components._possible(MODEL, styles_for(Kind.SDXL))


def test_every_field_is_kept_in_its_order():
    assert tuple(POSSIBLE) == Fields._fields


@pytest.mark.parametrize("name", Fields._fields)
def test_a_field_may_have_its_default(name: str):
    default, possible = getattr(Fields(), name), POSSIBLE[name]
    if "low" in possible:
        assert possible["low"] <= default <= possible["high"]
    assert default in possible.get("among", [default])


def test_whole_numbers_are_whole():
    assert [name for name, each in POSSIBLE.items() if each.get("whole")] == [
        *("steps", "seed", "variation_seed", "cache_interval", "clip_skip")
    ]


def test_choices_are_those_of_the_model():
    assert POSSIBLE["images"]["among"] == [0, 1, 2, 3]
    assert "Watercolour" in POSSIBLE["style"]["among"]
    assert POSSIBLE["steps"]["high"] == 50
    assert {"", "heun"} <= {*POSSIBLE["scheduler"]["among"]}
