"""Blocked words: which prompts contain them, and that no route bypasses the check."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gradio as gr
import pytest

from serving.generators.local import LocalGenerator
from serving.messages import Code, Message
from serving.metrics import Observer
from serving.requests import blocked_words
from serving.requests.blocked_words import BlockedWords
from serving.requests.rate_limits import RateLimits
from serving.requests.registry import Limits
from tests.fake_pipeline import FakePipeline
from tests.serving.http.test_app import BODY, generate, metric, post
from tests.web import serve
from ui.form import Fields
from ui.generation import Drawing
from ui.model_kind import Kind

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
        generator = LocalGenerator(pipe.as_pipeline(), limits, RateLimits(None, None), Observer())
        drawing = Drawing(generator, Kind.MINIATURE)
        shown = drawing.for_page(sender, None, None, *Fields(prompt="a gun", steps=2).shown())
        strips = [each.strip async for each in shown]
        with pytest.raises(gr.Error) as raised:
            await drawing.for_programs(sender, "a gun", steps=2)
        assert raised.value.message == str(BLOCKED)
        await generator.close(1)
        return strips[-1]

    assert str(BLOCKED) in asyncio.run(ask()).replace("&quot;", '"')
    assert pipe.calls == []
