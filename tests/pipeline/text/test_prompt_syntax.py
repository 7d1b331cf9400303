"""A prompt is read in its syntax."""

import pytest

from pipeline.errors import InputError
from pipeline.text.emphasis import Fragment
from pipeline.text.prompt_syntax import A1111, PLAIN, Reading, read_prompt


def test_plain_text_is_read_as_it_is():
    prompt = "(a:1.3) [b:c:2] BREAK {x|y}"
    assert read_prompt(prompt, PLAIN, 5) == (Reading(5, ((Fragment(prompt, 1.0),),)),)


def test_each_stage_has_its_weights():
    first, second = read_prompt("a [(b:2):3] BREAK c", A1111, 5)
    assert first == Reading(3, ((Fragment("a", 1.0),), (Fragment("c", 1.0),)))
    assert second == Reading(5, ((Fragment("a ", 1.0), Fragment("b", 2.0)), (Fragment("c", 1.0),)))


def test_four_texts_at_most():
    assert len(read_prompt("[a|b|c|d]", A1111, 8)) == 8
    with pytest.raises(InputError, match="changes between 5 different texts in 8 steps; expected"):
        read_prompt("[a|b|c|d|e]", A1111, 8)
    assert len(read_prompt("[a|b|c|d|e]", A1111, 4)) == 4
