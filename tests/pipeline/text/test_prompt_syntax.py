"""A prompt is read in its syntax."""

import pytest

from pipeline.errors import InputError
from pipeline.text.emphasis import Fragment
from pipeline.text.prompt_syntax import (
    A1111,
    PLAIN,
    Reading,
    comments,
    ignored_parts,
    read_prompt,
    without_comments,
)


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


@pytest.mark.parametrize(
    ("prompt", "rest", "notes"),
    [
        (" a ", " a ", []),
        ("a # note", "a", ["# note"]),
        ("# one\n#two\na, #ff0000\nb\n# three", "a,\nb", ["# one", "#two", "#ff0000", "# three"]),
        ("#", "", ["#"]),
    ],
)
def test_comments(prompt, rest, notes):
    assert without_comments(prompt) == rest
    assert comments(prompt) == notes


@pytest.mark.parametrize(
    ("prompt", "equal", "ignored"),
    [
        ("a AND b", "a BREAK b", ["AND"]),
        ("a cat :1.2 AND a dog:.5", "(a cat:1.2) BREAK (a dog:.5)", ["AND"]),
        ("a AND b :-0.5 AND c : 0", "a", ["AND", "b :-0.5", "c : 0"]),
        ("a:2 AND [b:c:2] :1", "(a:2) BREAK [b:c:2]", ["AND"]),
        ("a:0 AND b:0", "", ["AND", "a:0", "b:0"]),
        ("BRAND and AND_PERP b :0.5", "BRAND and AND_PERP b :0.5", []),
    ],
)
def test_parts_of_a_composition_are_drawn_as_one_prompt(prompt, equal, ignored):
    assert read_prompt(prompt, A1111, 4) == read_prompt(equal, A1111, 4)
    assert ignored_parts(prompt) == (prompt, ignored)


def test_tags_and_compositions_have_no_effect():
    found = ignored_parts("a <hypernet:b:1> AND <lora:gone>c")
    assert found == ("a AND c", ["<hypernet:b:1>", "<lora:gone>", "AND"])


@pytest.mark.parametrize("piece", ["AND ", ":", ": ", "1", "a :1 AND ", "#", "\n#a"])
def test_long_prompts_take_linear_time(piece):
    ignored_parts(piece * 50_000)
    without_comments(piece * 50_000)
