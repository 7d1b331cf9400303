"""The page tells how a prompt is read, and how long it is."""

import asyncio
import inspect
import json
import re
from dataclasses import replace
from html import unescape
from typing import Any
from urllib.parse import parse_qsl

import pytest

from pipeline.facts import EmbeddingFacts, LoraFacts
from pipeline.text.prompt_syntax import PLAIN
from serving.generator import Length
from serving.requests.readers import MOST_READING_EACH
from tests.pages import MODEL, StandIn
from ui import i18n
from ui.form import link, requests
from ui.form.fields import Fields, Visitor
from ui.page import reading
from ui.page.generation import Drawing
from ui.samples.model_kind import Kind
from ui.samples.styles import styles_for

STYLES = styles_for(Kind.SDXL)


def told(prompt: str, generator: Any = None, **fields: Any) -> tuple[str, str]:
    asked = Fields(prompt=prompt, **fields)
    return asyncio.run(reading.told(asked, "", generator or StandIn(), STYLES))


def read(prompt: str, **fields: Any) -> str:
    """Return how the prompt is read where there are lists in files, without the markup."""
    generator = StandIn()
    generator.facts = replace(MODEL, lists="digest")
    html, _ = told(prompt, generator, **fields)
    return html.removeprefix('<p class="read">').removesuffix("</p>")


@pytest.mark.parametrize(
    ("prompt", "several", "said"),
    [
        ("red " * 57, False, ""),
        ("red " * 58, False, '<p class="length">60 of 77 tokens</p>'),
        ("a\n" + "red " * 59, True, '<p class="length">61 of 77 tokens</p>'),
        ("", False, ""),
        ("away", False, ""),
        ("x" * 2001, False, ""),
    ],
)
def test_length(prompt: str, several: bool, said: str):
    assert told(prompt, several=several) == (said, "")


def test_an_address_that_asks_too_often_is_told_nothing():
    class Held(StandIn):
        async def measure(
            self, prompt: str, prompt_syntax: str = PLAIN, steps: int | None = None
        ) -> Length | None:
            await may_end.wait()
            return Length(60, 77, "")

    async def ask_often() -> None:
        def asked(address: str) -> asyncio.Task[tuple[str, str]]:
            asking = reading.told(Fields(prompt="a fox"), address, Held(), STYLES)
            return asyncio.create_task(asking)

        async with asyncio.timeout(60):
            others = [asked("a") for _ in range(MOST_READING_EACH)]
            assert await asked("a") == ("", "")
            others.append(asked("b"))
            may_end.set()
            for other in others:
                assert "60 of 77 tokens" in (await other)[0]

    may_end = asyncio.Event()
    asyncio.run(ask_often())


def test_the_cut_part_is_shown_as_you_type():
    said, _ = told("red " * 75 + "<b>")
    assert "Too long: only the first 77 tokens count. Left out: “&lt;b&gt;”" in said
    styled, _ = told("red " * 70, style="Anime")
    assert "background" in styled


def test_the_cut_part_is_quoted_once_and_not_in_full():
    html, _ = told("red " * 75 + "x" * 1000)
    said = re.sub('data-left-out="x*"', "", html)  # for the prompt itself
    assert said.count("x" * 20) > 0
    assert 0 < said.count("x") <= 60


def test_signs_of_the_syntax_are_not_counted():
    assert "75 of 77 tokens" in told("(red:1.3) " * 73)[0]
    # The longest of a prompt's texts counts.
    assert "63 of 77 tokens" in told("[a:" + "b " * 61 + ":3]")[0]


def test_the_negative_prompt_has_a_line_of_its_own():
    assert told("a", negative_prompt="(blurry)") == ("", '<p class="read">Read as: blurry ×1.1</p>')
    said = told("a", negative_prompt="bad " * 70, style="Anime")[1]
    assert "tokens" in said
    assert told("(a", negative_prompt="  ", style="Anime")[1] == ""


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("a red fox, with commas: and :) signs", ""),
        ("(red:1.3) cube", "Read as: red ×1.3"),
        ("a (((house:1.3)) [on]", "Read as: house ×1.57"),
        ("a [dim] (light", "Read as: dim ×0.91 · light ×1.1"),
        ("(a:2), (a:2) (,:3)", "Read as: a ×2"),
        ("a [cat:dog:10] in a hat", "Read as: steps 1–10: cat · steps 11–25: dog"),
        ("a [cat::1]", "Read as: step 1: cat"),
        ("a [(dog:1.2):0.8]", "Read as: dog ×1.2 · steps 21–25: dog"),
        ("a [cat|dog|] here", "Read as: in turn: cat, dog, nothing"),
        ("a BREAK b BREAK c", "Read as: 3 parts"),
        ("fox <lora:pixel:0.8> <lora:glow:0.3:1>", "Read as: LoRA glow 1 / 0.3 · LoRA pixel 0.8"),
        (
            "{red|{dark|light} blue} __animal__",
            "Read as: one of: red, {dark|light} blue · one of: __animal__",
        ),
        ("{2$$red|blue|} [a]", "Read as: a ×0.91 · 2 of: red, blue, nothing"),
        ("{a|b|c|d|e|f|g|h|i}", "Read as: one of: a, b, c, d, e, f, g, h, …"),
        ("[a|b|c|d|e]", ""),  # refused
    ],
)
def test_how_a_prompt_is_read(prompt: str, said: str):
    assert read(prompt) == said
    assert read(prompt, prompt_syntax="plain") == ""


def test_parts_without_effect_are_named_and_marked():
    html, negative = told(
        'a <hypernet:b:1> AND <c:"> # <lora:d:1>', negative_prompt="<lora:e:1> x", style="Anime"
    )
    assert "Read as: 2 parts · without effect: &lt;hypernet:b:1&gt;, &lt;c:&quot;&gt;, AND" in html
    marked = [json.loads(unescape(found)) for found in re.findall('data-ignored="(.*?)"', html)]
    assert marked == [["<hypernet:b:1>", '<c:">', "AND"], ["# <lora:d:1>"]]
    assert "without effect: &lt;lora:e:1&gt;" in negative
    assert "data-ignored" not in told("a # b", prompt_syntax="plain")[0]


def test_comments_are_no_prompts_and_end_before_the_words_of_the_style():
    fields = Fields(prompt="# one\na # two", negative_prompt="x # y", style="Anime")
    request = requests.to_request(MODEL, STYLES, fields._replace(several=True), Visitor("", ""))
    assert (len(request.prompt), request.images) == (1, 1)
    assert request.prompt == (STYLES["Anime"].apply("a", "x")[0],)
    assert request.negative_prompt == STYLES["Anime"].apply("a", "x")[1]
    plain = requests.to_request(
        MODEL, STYLES, fields._replace(prompt_syntax="plain"), Visitor("", ""), tags=True
    )
    assert "# one" in plain.prompt
    assert "# y" in (plain.negative_prompt or "")


def test_how_many_options_are_chosen():
    assert read("{1-2$$ and $$0.5::a|b}") == "Read as: 1–2 of: a, b"
    assert read("{2-$$a|b|c}") == "Read as: 2–3 of: a, b, c"
    assert read("{2$$__a__}") == "Read as: 2 of: __a__"


def test_names_of_lists_are_words_where_there_are_none():
    assert told("__a__ {2$$__b__}")[0] == ""
    assert "Read as: one of: __a__, c" in told("{__a__|c}")[0]


def test_a_bracket_that_is_not_closed_holds_for_the_words_of_the_style():
    assert read("a (fox", style="Anime").startswith("Read as: fox, ")


def test_each_line_is_read():
    assert read("(a)\n(b)\nc", several=True) == "Read as: a ×1.1 · b ×1.1"
    assert read("(a)\n(b:2)\nc") == "Read as: a ×1.1 · b ×2"


def test_the_steps_are_those_of_the_request():
    assert read("[a:b:0.5]", steps=10) == "Read as: steps 1–5: a · steps 6–10: b"
    assert read("[a:b:0.5]", timesteps="999,500") == "Read as: step 1: a · step 2: b"
    model = replace(MODEL, loras=(LoraFacts("lcm-lora-sdxl", "LCM"),), family="Stable Diffusion XL")
    generator = StandIn()
    generator.facts = model
    (recipe,) = model.recipe_names
    said, _ = told("[a:b:0.5]", generator, recipe=recipe, steps=8)
    assert "steps 3–4: b" in said
    for steps in (0, 10**9):
        assert "Read as" in told("[a:b:0.5] (c)", steps=steps)[0]


def test_texts_are_escaped_and_short():
    assert read("(<b>:2)") == "Read as: &lt;b&gt; ×2"
    many = read(" ".join(f"({'x' * 50}:1.{i})" for i in range(11, 30)) + " <lora:pixel:1>")
    assert many.count("…") == 8 + 1
    assert many.endswith(" · … · LoRA pixel 1")


@pytest.mark.parametrize(
    ("language", "said"),
    [
        ("de", "Gelesen als: rot ×1,3 · Schritte 1–10: a · Schritte 11–25: b"),
        ("fr", "Lu comme\u00a0: rot ×1,3 · étapes 1–10\u00a0: a · étapes 11–25\u00a0: b"),
        ("es", "Leído así: rot ×1,3 · pasos 1–10: a · pasos 11–25: b"),
    ],
)
def test_other_languages(language: str, said: str):
    with i18n.speaking(language):
        assert read("(rot:1.3) [a:b:10]") == said
        assert unknown("sofa").endswith(": sofa")


# --- words that the model does not know ---


def unknown(prompt: str, **fields: Any) -> str:
    """Return what is said of words that a model with a list of them does not know."""
    generator, words = StandIn(), ("a", "red", "star", "🦊")
    loras = (LoraFacts("pixel", "Pixel", words=("pixel style, dots",)),)
    embeddings = (EmbeddingFacts("bad_hands-5", 1, 8),)
    generator.facts = replace(MODEL, words=words, loras=loras, embeddings=embeddings)
    html, _ = told(prompt, generator, **fields)
    found = re.search('<span hidden data-unknown="([^"]*)" data-words="[^"]*"></span>$', html)
    return found[1] if found else ""


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("a red star", ""),
        ("a Sofa, (a sofa:1.3) 🦊", "Not known to this model: Sofa"),
        ("狐狸 and 🦁", "Not known to this model: 狐狸, 🦁"),
        ("a Pixel style star, Bad_Hands-5, <lora:pixel:1>", ""),
        ("b c e f g h", "Not known to this model: b, c, e, f, g, h"),
        ("b c e f g h i", "Not known to this model: b, c, e, f, g and 2 more"),
        ("x" * 100, f"Not known to this model: {'x' * 23}…"),
        ("[a|b|c|e|f]", ""),  # refused
    ],
)
def test_words_that_the_model_does_not_know_are_told(prompt: str, said: str):
    assert unknown(prompt) == said


def test_only_what_was_typed_is_told():
    assert unknown("star", style="Anime") == ""
    assert unknown("star\nsofa", several=True).endswith(": sofa")
    assert unknown("sofa <lora:pixel:1>", prompt_syntax="plain").endswith(": sofa")
    assert "data-unknown" not in told("a sofa")[0]  # this model brings no list


def test_unknown_words_of_the_negative_prompt_are_told_below_it():
    generator = StandIn()
    generator.facts = replace(MODEL, words=("star",))
    prompt, negative = told("star", generator, negative_prompt="blurry", style="Anime")
    assert "unknown" not in prompt
    assert 'data-unknown="Not known to this model: blurry"' in negative


def test_all_unknown_words_are_told_for_the_prompt_itself():
    generator = StandIn()
    generator.facts = replace(MODEL, words=("star",))
    html, _ = told("b c e f g h i, (sofa:1.3) star", generator)
    assert 'data-words="b c e f g h i sofa"' in html


def test_what_is_left_out_is_told_with_the_words_of_the_style():
    prompt = " ".join(f"w{i}" for i in range(80))
    html, _ = told(prompt, style="Anime")
    [left_out] = re.findall('data-left-out="([^"]*)"', html)
    [added] = re.findall('data-added="([^"]*)"', html)
    assert left_out.startswith("w75 w76")
    assert added
    assert left_out.endswith(added)
    assert 'data-added=""' in told(prompt)[0]


# --- the page's own syntax ---


def test_the_page_asks_for_a_syntax_only_where_it_matters():
    def asked(prompt: str, **fields: Any) -> str:
        values, visitor = Fields(prompt=prompt, **fields), Visitor("", "")
        return requests.to_request(MODEL, STYLES, values, visitor, tags=True).prompt_syntax

    assert asked("(red:1.3) cube") == "a1111"
    assert asked("a cube", negative_prompt="[red]") == "a1111"
    assert asked("a cube <lora:pixel:1>", style="Anime") == "plain"
    assert asked("(red:1.3) cube", prompt_syntax="plain") == "plain"


def test_programs_ask_for_plain_text():
    syntax = inspect.signature(Drawing.for_programs).parameters["prompt_syntax"]
    assert syntax.default == "plain"


def linked(**query: str) -> str:
    found = link.from_query(query, MODEL, STYLES)
    assert found is not None
    return found[0].prompt_syntax


def test_links_without_a_syntax_are_of_plain_text():
    assert Fields().prompt_syntax == "a1111"
    assert linked(prompt="(red:1.3) cube") == "plain"
    assert linked(prompt="(red:1.3) cube", prompt_syntax="a1111") == "a1111"
    assert linked(prompt="a fox", negative_prompt="[b]") == "plain"
    # Where both syntaxes mean the same, visitors can go on with the page's own.
    assert linked(prompt="a fox <lora:pixel:1>", negative_prompt="blurry") == "a1111"
    for syntax in ("plain", "a1111"):
        fields = Fields(prompt="(red:1.3) cube", prompt_syntax=syntax)
        assert linked(**dict(parse_qsl(link.to_query(fields)[1:]))) == syntax
    assert "prompt_syntax" not in link.to_query(Fields(prompt="a fox <lora:pixel:1>"))
