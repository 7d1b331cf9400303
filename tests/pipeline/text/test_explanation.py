"""People are told how a prompt is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InputError
from pipeline.text.emphasis import Fragment
from pipeline.text.explanation import Explanation, Text, explain, reads_as_plain
from pipeline.text.prompt_syntax import A1111, PLAIN, read_prompt
from pipeline.text.wildcards import MAX_TEXT

ODD = st.text(alphabet="ab ()[]{}:|\\<>_,15.$", max_size=40)


def text(*fragments: tuple[str, float], steps: tuple[int, ...] = (1, 2, 3, 4)) -> Text:
    return Text(steps, (tuple(Fragment(*each) for each in fragments),))


def test_plain_text_has_nothing_to_explain():
    prompt = "(a:1.3) [b:c:2] BREAK {x|y} <lora:b>"
    assert explain(prompt, PLAIN, 4) == Explanation((text((prompt, 1.0)),), {}, ())


def test_weights():
    # The example of AUTOMATIC1111's own tests.
    prompt = "a (((house:1.3)) [on] a (hill:0.5), sun, (((sky)))."
    (found,) = explain(prompt, A1111, 4).texts
    (fragments,) = found.sections
    weights = {each.text.strip(): round(each.weight, 4) for each in fragments}
    assert weights["house"] == 1.573
    assert weights["hill"] == 0.55
    assert weights["sky"] == 1.4641
    assert weights["on"] == 1.0


def test_changes_have_their_steps():
    found = explain("a [cat:(dog:1.2):2]", A1111, 4).texts
    assert found == (text(("a cat", 1), steps=(1, 2)), text(("a ", 1), ("dog", 1.2), steps=(3, 4)))
    assert [each.steps for each in explain("[a|b]", A1111, 5).texts] == [(1, 3, 5), (2, 4)]
    with pytest.raises(InputError, match="changes between 5 different texts"):
        explain("[a|b|c|d|e]", A1111, 5)


def test_loras():
    found = explain("a <lora:pixel:0.8> b <lora:glow:0.3:0.5>", A1111, 4)
    assert found.texts == (text(("a b", 1.0)),)
    assert found.loras == {"pixel": (0.8, 0.8), "glow": (0.5, 0.3)}


def test_parts_without_effect():
    prompt = "a <hypernet:b:1> AND <lora:gone:1> <lora:c:5> b # <lora:d:1>"
    found = explain(prompt, A1111, 4, {"c", "d"})
    assert found.ignored == ("<hypernet:b:1>", "<lora:gone:1>", "<lora:c:5>", "AND")
    assert found.loras == {}
    assert found.texts == explain("a BREAK b", A1111, 4).texts


def test_lists_are_shown_as_they_are_written_and_read_with_the_longest_options():
    found = explain("a {red|{dark|light} green} {2$$x|yy|zz} __file__ {b} {(c:1.5)|d}", A1111, 4)
    assert found.lists == (
        *("{red|{dark|light} green}", "{2$$x|yy|zz}", "{(c:1.5)|d}"),
        "__file__",
    )
    expected = text(("a light green yy, zz __file__ {b} ", 1.0), ("c", 1.5))
    assert found.texts == (expected,)


def test_an_unknown_syntax_is_refused():
    with pytest.raises(InputError, match="prompt_syntax is 'compel'; expected 'plain' or 'a1111'"):
        explain("a", "compel", 4)


@given(ODD)
def test_prompts_that_read_as_plain_are_drawn_alike(prompt: str):
    if reads_as_plain(prompt) and prompt:
        assert read_prompt(prompt, A1111, 4) == read_prompt(prompt, PLAIN, 4)


@pytest.mark.parametrize(
    ("prompt", "is_plain"),
    [
        ("", True),
        (" a fox, red: yes :) ", True),
        ("a | b", True),
        ("(a)", False),
        ("a (b", False),
        (r"a \(b\)", False),
        ("[a:b:3]", False),
        ("a BREAK b", False),
        ("{a|a}", False),
        ("__a__", False),
        ("a <lora:b>", False),
        ("a <b:c>", False),
        ("a #b", False),
        ("a AND b", False),
        ("a" * MAX_TEXT, True),
        ("a" * (MAX_TEXT + 1), False),
    ],
)
def test_which_prompts_read_as_plain(prompt: str, is_plain: bool):
    assert reads_as_plain(prompt) == is_plain
