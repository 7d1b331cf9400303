"""English texts of messages, as clients of the APIs get them."""

from typing import Any

import pytest

from serving.messages import ENGLISH, Code, Message, untranslated


def test_every_code_has_a_text():
    assert ENGLISH.keys() == set(Code)


@pytest.mark.parametrize(
    ("code", "params", "text"),
    [
        (Code.FULL, {"wait_s": None}, "The queue is full. Try again in a moment."),
        (Code.FULL, {"wait_s": 1.9}, "The queue is full. Try again in a moment."),
        (Code.FULL, {"wait_s": 29.6}, "The queue is full. Try again in about 30 seconds."),
        (
            Code.OUT_OF_RANGE,
            {"field": "guidance_scale", "value": 99.5, "low": 0, "high": 50.0},
            "guidance_scale is 99.5; expected 0 to 50",
        ),
        (
            Code.OUT_OF_RANGE,
            {"field": "seed", "value": 1e10, "low": 0, "high": 2**32 - 1},
            "seed is 10000000000; expected 0 to 4294967295",
        ),
        (
            Code.UNKNOWN_CHOICE,
            {"field": "size", "value": "9x9", "choices": ["8x8", "16x8"]},
            "size is 9x9; here it can only be 8x8 or 16x8",
        ),
    ],
)
def test_parameters_are_written_into_the_text(code: Code, params: dict[str, Any], text: str):
    assert str(Message(code, params)) == text


def test_a_long_value_is_shortened():
    params: Any = {"field": "size", "value": "9" * 1000, "choices": []}
    assert len(str(Message(Code.UNKNOWN_CHOICE, params))) < 100


def test_braces_in_a_value_are_text():
    assert str(untranslated("{code} {0}")) == "{code} {0}"
    assert str(Message(Code.BLOCKED, {"word": "{word.__class__}"})).startswith('"{word.__class__}"')


def test_a_missing_parameter_is_an_error():
    with pytest.raises(KeyError, match="seconds"):
        str(Message(Code.NOT_FINISHED))
