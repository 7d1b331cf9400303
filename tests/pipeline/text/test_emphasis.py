"""Weights and breaks are read as AUTOMATIC1111 reads them, and any text is read in bounded time."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.text.emphasis import MAX_DEPTH, MAX_EMPHASIS, Fragment, read_emphasis

# The cases that AUTOMATIC1111's source documents, as facts.
DOCUMENTED = {
    "normal text": [("normal text", 1)],
    "an (important) word": [("an ", 1), ("important", 1.1), (" word", 1)],
    "(unbalanced": [("unbalanced", 1.1)],
    r"\(literal\]": [("(literal]", 1)],
    "(unnecessary)(parens)": [("unnecessaryparens", 1.1)],
    "a (((house:1.3)) [on] a (hill:0.5), sun, (((sky))).": [
        ("a ", 1),
        ("house", 1.573),
        (" ", 1.1),
        ("on", 1),
        (" a ", 1.1),
        ("hill", 0.55),
        (", sun, ", 1.1),
        ("sky", 1.4641),
        (".", 1.1),
    ],
}
# Texts of signs that mean something, in any order.
ODD = st.lists(
    st.sampled_from([*"()[]:|\\", "a", " ", "1.3", ":1.3)", "BREAK", "é"]), max_size=40
).map("".join)


@pytest.mark.parametrize("prompt", DOCUMENTED)
def test_documented_cases(prompt):
    (section,) = read_emphasis(prompt)
    assert [text for text, _ in section] == [text for text, _ in DOCUMENTED[prompt]]
    expected = [weight for _, weight in DOCUMENTED[prompt]]
    assert [weight for _, weight in section] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("(a:-0.5)", [("a", -0.5)]),
        ("(a : .7 )", [("a ", 0.7)]),
        ("a:1.3)", [("a:1.3)", 1)]),
        ("(a:1.2.3)", [("a:1.2.3", 1.1)]),
        ("a)b]", [("a)b]", 1)]),
        ("(a [b) c]", [("a ", 1.1), ("b", 1), (" c", 1 / 1.1)]),
        (r"\(\)\[\]\\ a\b", [(r"()[]\ ab", 1)]),
        ("(a:1e5)", [("a:1e5", 1.1)]),
        ("(a:99999)", [("a", MAX_EMPHASIS)]),
        ("()", []),
    ],
)
def test_brackets(prompt, expected):
    (section,) = read_emphasis(prompt)
    assert [text for text, _ in section] == [text for text, _ in expected]
    assert [weight for _, weight in section] == pytest.approx([weight for _, weight in expected])


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a BREAK b", [["a"], ["b"]]),
        ("a\nBREAK\nb BREAK c", [["a"], ["b"], ["c"]]),
        ("BREAK a BREAK", [[], ["a"], []]),
        ("(a BREAK b:1.5) c", [["a"], ["b", " c"]]),
        ("BREAKFAST break", [["BREAKFAST break"]]),
    ],
)
def test_breaks(prompt, expected):
    assert [[text for text, _ in section] for section in read_emphasis(prompt)] == expected


def test_a_text_without_signs_is_one_fragment():
    assert read_emphasis("a fox, 8k <x> {y}") == ((Fragment("a fox, 8k <x> {y}", 1.0),),)


def test_only_so_many_nested_brackets_weigh():
    deepest = read_emphasis("[" * MAX_DEPTH + "a")
    assert deepest[0][0].weight > 0
    assert read_emphasis("[" * (MAX_DEPTH + 50) + "a" + "]" * 20) == deepest


@given(ODD | st.text())
def test_any_text_is_read(prompt):
    for section in read_emphasis(prompt):
        for text, weight in section:
            assert text
            assert abs(weight) <= MAX_EMPHASIS


@pytest.mark.parametrize(
    "piece", ["(", "[", ")", "(a", "(a[b", ":", ": ", ":1", "\\", " ", "BREAK "]
)
def test_long_texts_take_bounded_time(piece):
    began = time.thread_time()
    read_emphasis(piece * 5_000)
    read_emphasis("(" + piece * 5_000 + ":1)")
    assert time.thread_time() - began < 2
