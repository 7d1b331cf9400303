"""People are told which words of a prompt a model does not know, and of no others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InputError
from pipeline.text.explanation import explain
from pipeline.text.prompt_syntax import A1111, PLAIN
from pipeline.text.unknown_words import unknown_words

WORDS = [
    "red",
    "star",
    "medium",
    "sized",
    "fox",
    "t-shirt",
    "🦊",
    "❤️",
    "🐻‍❄️",
    "狐狸",
    "红",
    "naïve",
]
ODD = st.text(alphabet="ab ()[]{}:|\\<>_,15.$'-🦊🇩\u200d\ufe0f\u0301狐", max_size=40)


def unknown(prompt: str, syntax: str = A1111) -> list[str]:
    return unknown_words([explain(prompt, syntax, 10)], WORDS)


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "A RED star, fox.Fox;the fox's t-shirt (with) it",
        "a medium-sized red_fox, 16:9 100% -- :) 1/2 360° ©",
        "(red:1.3) [fox] [red:star:0.5] [fox|red] BREAK <lora:sofa:0.8> __animal/big__",
        "{red|star|{2$$fox|red}} {(red:1.2) BREAK star|fox}",
        r"a \(red\) (fox",
        "🦊🦊 ❤️ 🐻‍❄️ 1️⃣",
        "红狐狸，红",
        "nai\u0308ve",
    ],
)
def test_known_words_and_signs_of_the_syntax_are_not_told(prompt: str):
    assert unknown(prompt) == []


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        ("a Sofa, a sofa and (SOFA:1.3)", ["Sofa"]),
        ("[desk:lamp:0.5] [x|y]", ["desk", "x", "y", "lamp"]),
        ("{red|desk|{lamp|chair bed}}", ["chair", "bed", "desk", "lamp"]),
        ("8k sci-fi red-haired", ["8k", "sci-fi", "red-haired"]),
        ("it's the fox, don't", ["don't"]),
        ("一只狗, 红狗 soleil d’été", ["一只狗", "红狗", "soleil", "d’été"]),
        ("हिन्दी кошка", ["हिन्दी", "кошка"]),
        ("🍎🍏 👍🏽 🇩🇪🇫🇷 ❤️‍🔥 ★", ["🍎", "🍏", "👍🏽", "🇩🇪", "🇫🇷", "❤️‍🔥", "★"]),
    ],
)
def test_other_words_and_signs_are_told_once(prompt: str, told: list[str]):
    assert unknown(prompt) == told


def test_plain_text_has_no_syntax():
    assert unknown("(red:1.3) BREAK", PLAIN) == ["BREAK"]


@given(ODD)
def test_any_prompt_can_be_read(prompt: str):
    try:
        told = unknown(prompt)
    except InputError:  # too many texts in turn
        return
    assert len({word.lower() for word in told}) == len(told)
    assert not {"🦊", "狐"} & set(told)
