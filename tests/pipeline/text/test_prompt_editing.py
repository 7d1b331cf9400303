"""Prompts change during a run as AUTOMATIC1111's do, and any text is read in bounded time."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.text.prompt_editing import after_run, read_spans

ALTERNATING = ["a", "(b:1.1)"] * 5
FOREST = (
    "fantasy landscape with a [mountain:lake:0.25] and [an oak:a christmas tree:0.75]"
    "[ in foreground::0.6][ in background:0.25] [shoddy:masterful:0.5]"
)
# The cases that AUTOMATIC1111's source documents, as facts: of 10 steps, where a stage ends.
DOCUMENTED = {
    "test": [(10, "test")],
    "a [b:3]": [(3, "a "), (10, "a b")],
    "a [b: 3]": [(3, "a "), (10, "a b")],
    "a [[[b]]:2]": [(2, "a "), (10, "a [[b]]")],
    "[(a:2):3]": [(3, ""), (10, "(a:2)")],
    "a [b : c : 1] d": [(1, "a b  d"), (10, "a  c  d")],
    "a[b:[c:d:2]:1]e": [(1, "abe"), (2, "ace"), (10, "ade")],
    "a [unbalanced": [(10, "a [unbalanced")],
    "a [b:.5] c": [(5, "a  c"), (10, "a b c")],
    "((a][:b:c [d:3]": [(3, "((a][:b:c "), (10, "((a][:b:c d")],
    "[a|(b:1.1)]": list(enumerate(ALTERNATING, start=1)),
    "[fe|]male": list(enumerate(["female", "male"] * 5, start=1)),
    "[fe|||]male": [
        *((1, "female"), (4, "male"), (5, "female"), (8, "male"), (9, "female"), (10, "male"))
    ],
}
# The prompts of a second run, after 10 steps.
SECOND = {
    "a [b:c:0.9] d": "a [b:c:0] d",
    "[b:c:1.5]": "[b:c:0.5]",
    "[b:[c:d:12]:3]e": "[b:[c:d:2]:0]e",
    "[b:: 14 ]": "[b::4]",
    "[b:1e999]": "[b:1000]",
    "{x|y} [b:.5]": "{x|y} [b:0]",
    "a (b:1.5) [c|d] [e:f]": "a (b:1.5) [c|d] [e:f]",
}
ODD = st.lists(
    st.sampled_from([*"()[]:|\\", "a", " ", "3", ".5", "[b:2]", "[c|d]", "\n"]), max_size=40
).map("".join)


@pytest.mark.parametrize("prompt", DOCUMENTED)
def test_documented_cases(prompt):
    assert read_spans(prompt, 10) == DOCUMENTED[prompt]


@pytest.mark.parametrize("prompt", SECOND)
def test_a_second_run_goes_on_with_changes(prompt):
    assert after_run(prompt, 10) == SECOND[prompt]


@given(ODD)
def test_a_second_run_after_no_steps_reads_the_same_steps(prompt):
    if "." not in prompt:
        assert read_spans(after_run(prompt, 0), 4) == read_spans(prompt, 4)


def test_the_documented_landscape():
    assert read_spans(FOREST, 100) == [
        (25, "fantasy landscape with a mountain and an oak in foreground shoddy"),
        (50, "fantasy landscape with a lake and an oak in foreground in background shoddy"),
        (60, "fantasy landscape with a lake and an oak in foreground in background masterful"),
        (75, "fantasy landscape with a lake and an oak in background masterful"),
        (100, "fantasy landscape with a lake and a christmas tree in background masterful"),
    ]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("[a::2]", [(2, "a"), (4, "")]),
        ("[a:b:0]", [(4, "b")]),
        ("[a:b:-3]", [(4, "b")]),
        ("[a:b:9]", [(4, "a")]),
        ("[a:b:1e999]", [(4, "a")]),
        ("[a:b:1.]", [(4, "a")]),
        ("[a:b: 2 ]", [(2, "a"), (4, "b")]),
        ("[[a|b]:c:2]", [(1, "a"), (2, "b"), (4, "c")]),
        (r"[a\:b:2]", [(2, ""), (4, r"a\:b")]),
        ("(x [a:2]:1.3)", [(2, "(x :1.3)"), (4, "(x a:1.3)")]),
        # Texts for `emphasis`:
        ("[a]", [(4, "[a]")]),
        ("[a:b]", [(4, "[a:b]")]),
        ("[a:b:c:3]", [(4, "[a:b:c:3]")]),
        ("[a (b:3]", [(4, "[a (b:3]")]),
        ("[x (a:b:c):3]", [(4, "[x (a:b:c):3]")]),
        ("[a (b] c) :3]", [(4, "[a (b] c) :3]")]),
        # The grammar does not take these:
        ("a | b [c:2]", [(4, "a | b [c:2]")]),
        ("[a|b:3] [c:2]", [(4, "[a|b:3] [c:2]")]),
        ("[c:2] \\", [(4, "[c:2] \\")]),
    ],
)
def test_brackets(prompt, expected):
    assert read_spans(prompt, 4) == expected


@given(ODD | st.text(), st.integers(1, 12))
def test_any_text_is_read(prompt, steps):
    stages = read_spans(prompt, steps)
    ends = [until for until, _ in stages]
    assert ends == sorted({*ends})
    assert ends[-1] == steps


@pytest.mark.parametrize(
    "piece", ["[", "(", "]", "[a:", "[a|", ":", "|", "\\", "[a:b:1]", "[(", " "]
)
def test_long_texts_take_bounded_time(piece):
    began = time.thread_time()
    read_spans(piece * 10_000, 50)
    assert time.thread_time() - began < 5


def test_deep_nesting_takes_bounded_time():
    began = time.thread_time()
    depth = 10_000
    assert read_spans("[" * depth + "a" + ":1]" * depth, 2) == [(1, ""), (2, "a")]
    read_spans("(" * depth + "a" + ")" * depth, 2)
    assert time.thread_time() - began < 5
