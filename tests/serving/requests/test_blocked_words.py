"""Blocked words: which prompts contain them, and that no route bypasses the check."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gradio as gr
import pytest

from serving.messages import Code, Message
from serving.metrics import Observer
from serving.requests import blocked_words
from serving.requests.blocked_words import BlockedWords
from serving.requests.registry import Limits
from tests.calls import BODY, generate, metric, post
from tests.fake_pipeline import FakePipeline
from tests.generators import local_generator
from tests.web import serve
from ui import i18n
from ui.form.fields import Fields
from ui.page.generation import Drawing
from ui.samples.model_kind import Kind
from ui.wiring import Call

LINES = ["# a comment", "", "Gun", "two  words", "/kni(fe|ves)/", "血"]

BLOCKED = Message(Code.BLOCKED, {"word": "gun"})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a GUN on a table", "gun"),
        ("a ｇｕｎ", "gun"),
        ("a gu\u200bn", "gun"),
        ("a gún", "gun"),
        ("begun, gunshot", ""),
        ("gun", "gun"),
        ("two\nwords", "two words"),
        ("two other words", ""),
        ("penKNIVES", "knives"),
        ("鮮血の海", "血"),
        ("# a comment", ""),
        ("", ""),
    ],
)
def test_blocked_words_are_found(text: str, found: str):
    assert " ".join(BlockedWords(LINES).find(text).split()) == found


@pytest.mark.parametrize(
    "text",
    [
        "nude_woman",
        "nude1 2nude",
        "a nudе",  # Cyrillic
        "a ηοde, a nυde",  # Greek
        "a 𝐍𝐔𝐃𝐄",
        "a n\u20ddu\u3164de",
        "a nud3",
        "a n.u.d.e",
        "n u d 3",
        "a n u d e",
        "N_U_D_E",
    ],
)
def test_words_in_disguise_are_found(text: str):
    assert BlockedWords(["nude"]).find(text) == "nude"


@pytest.mark.parametrize("text", ["a55", "@ss", "a$$", "a.$.$"])
def test_characters_written_for_letters(text: str):
    assert bool(BlockedWords(["ass"]).find(text)) == (text != "a.$.$")


@pytest.mark.parametrize("text", ["he11", "HE1L"])
def test_a_1_is_an_i_or_an_l(text: str):
    assert BlockedWords(["hell"]).find(text) == "hell"


@pytest.mark.parametrize(
    "text",
    [
        "analysis of Scunthorpe's classic nudel",
        "a 455 mm lens, 455, 4 5 5",
        "area 51, area512, area51b",
        "a.n.alysis",
        "U.S. Navy, a b. c",
    ],
)
def test_other_words_are_not_found(text: str):
    assert BlockedWords(["anal", "cunt", "ass", "nude", "area51"]).find(text) == ""


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("/stra(ß|x)e/", "eine STRAßE"),
        ("/caf[é]/", "a Cafe\u0301"),
        ("/cafe/", "a café"),
        ("/caf(e\u0301|x)/", "a café"),
        ("/\\bгора/", "Гора"),
        ("/гора/", "го\u0301ра"),
    ],
)
def test_expressions_match_texts_as_they_are_written_and_compared(line: str, text: str):
    assert BlockedWords([line]).find(text)


@pytest.mark.lasting
def test_long_texts_take_linear_time():
    blocked = BlockedWords(["nude", "/nude/"])
    for text in ("a.", "a", "1", "@", "a1", "n.u.d.", "nud", "1.", "e\u0301"):
        assert blocked.find(text * 200_000) == ("nude" if text == "none" else "")


def test_no_words_are_blocked_by_default():
    assert BlockedWords().find("a gun") == ""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"fine\n/(/\n", "line 2: /(/ is not a regular expression"),
        (b"\xff", "cannot be used"),
        ("\u200b".encode(), "line 1: it contains no word"),
    ],
)
def test_a_file_that_cannot_be_used(content: bytes, said: str, tmp_path: Path):
    file = tmp_path / "blocked"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="cannot be used") as raised:
        blocked_words.read(file)
    assert said in str(raised.value)
    assert str(file) in str(raised.value)


def test_over_http_nothing_is_drawn():
    message = str(BLOCKED)
    with serve(limits=Limits(blocked=BlockedWords(["gun"]))) as site:
        for path, prompt in (
            ("/v1/generate", "a gun"),
            ("/v1/generate", ["a moon", "a gun"]),
            ("/v1/images/generations", "a gun"),
        ):
            refused = post(site, BODY | {"prompt": prompt}, path)
            assert refused.status_code == 400
            error = refused.json()["error"]
            assert (error["code"], error["param"]) == ("blocked", "prompt")
            assert error["message"] == message
        assert site.pipe.calls == []
        assert metric(site, 'sdxl_requests_total{outcome="blocked"}') == 3
        # A negative prompt may name blocked words.
        assert generate(site, negative_prompt="a gun")[-1][0] == "done"


def test_signs_of_a_syntax_hide_no_word():
    with serve(limits=Limits(blocked=BlockedWords(["gun"]))) as site:
        for prompt in ("a g(u:1.2)n", "a g[u|o]n", r"a [moon:g\un:3]"):
            refused = post(site, BODY | {"prompt": prompt, "prompt_syntax": "a1111"})
            assert refused.json()["error"]["code"] == "blocked"
            assert generate(site, prompt=prompt)[-1][0] == "done"
        name, ended = generate(site, prompt="a g{u|u}n", prompt_syntax="a1111")[-1]
        assert (name, ended["code"]) == ("error", "blocked")
        many = {"prompt": "[a|b|c|d|e]", "prompt_syntax": "a1111", "num_inference_steps": 8}
        refused = post(site, BODY | many)
        assert refused.json()["error"]["param"] == "prompt"
        assert "at most 4 different texts" in refused.json()["error"]["message"]


def test_on_the_page_and_for_programs_nothing_is_drawn():
    pipe = FakePipeline()
    limits = Limits(blocked=BlockedWords(["gun"]))
    sender = cast(Any, SimpleNamespace(session_hash="a", client=None))

    async def ask() -> str:
        generator = local_generator(pipe.as_pipeline(), limits, Observer())
        drawing = Drawing(generator, Kind.MINIATURE)
        shown = await drawing.for_page(Call(sender, Fields(prompt="a gun", steps=2).shown()))
        with pytest.raises(gr.Error) as raised:
            await drawing.for_programs(sender, "a gun", steps=2)
        assert raised.value.message == i18n.translate(BLOCKED)
        await generator.close(1)
        return shown["status"]["text"]

    assert asyncio.run(ask()) == i18n.translate(BLOCKED)
    assert pipe.calls == []


def test_accents_are_read_in_linear_time() -> None:
    """Sorting the accents of a letter takes quadratic time; these would take minutes."""
    text = "n" + "\u0344\u0334" * 50_000 + "ude"
    assert BlockedWords(["nude"]).find(text) == "nude"
    assert BlockedWords(["/nude/"]).find(text) == "nude"
