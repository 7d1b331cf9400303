"""Every language has every text, with the same values in it as the other languages."""

import inspect
import re
from dataclasses import replace
from pathlib import Path
from string import Formatter
from types import ModuleType, SimpleNamespace
from typing import Any

import gradio
import pytest
from gradio.context import LocalContext

from serving.generator import Request, RequestError
from serving.messages import ENGLISH, Code, Message, untranslated
from serving.requests import admission
from tests import models
from ui import i18n
from ui.i18n import en
from ui.model_kind import Kind
from ui.styles import styles_for

MODEL = replace(
    models.MODEL,
    name="MODEL",
    device="DEVICE",
    num_devices=6,
    height=333,
    width=444,
    family="FAMILY",
    safety_checker=True,
)
RANGES = (Code.OUT_OF_RANGE, Code.NOT_WHOLE)
OTHERS = [language for language in i18n.LANGUAGES if language != "en"]
# Texts that may be the same in another language, or are no text.
ALIKE = {"LIVE", "RESTORE_HINT", "prompt", "sampler", "scheduler", "style", "vae"}
SAMPLES: dict[str, Any] = {
    "attempt": 12,
    "blurred": True,
    "done": 13,
    "field": "FIELD",
    "guidance_scale": 8.0,
    "height": 1111,
    "high": 5555,
    "kind": Kind.OTHER,
    "known": ["ONE", "OTHER"],
    "left_out": "LEFT OUT",
    "left_s": 21.0,
    "length": 6666,
    "limit": 77,
    "lines": 15,
    "missing": ["ONE", "OTHER"],
    "more": 23,
    "low": 16,
    "facts": MODEL,
    "name": "NAME",
    "number": 7.5,
    "chunks": 14,
    "count": 17,
    "own": "OWN",
    "position": 18,
    "prompt": "A STAR",
    "seconds": 19.5,
    "seed": 4711,
    "steps": 9999,
    "style": "Anime",
    "title": "TITLE",
    "tokens": 7777,
    "total": 88,
    "used": 2.5,
    "variation": 20,
    "value": 3333,
    "wait_s": 32.0,
    "width": 2222,
    "parts": ["ONE", "OTHER"],
    "texts": ["ONE", "OTHER"],
    "first": 21,
    "last": 22,
    "words": "WORDS",
    "options": "{ONE|OTHER}",
}


def names(language: ModuleType) -> dict[str, Any]:
    """Return the texts of a language module, without modules and imported names."""
    return {
        name: word
        for name, word in vars(language).items()
        if not name.startswith("_")
        and not inspect.ismodule(word)
        and getattr(word, "__module__", language.__name__) == language.__name__
    }


def sentences(language: ModuleType) -> dict[str, str]:
    found = {}
    for name, word in names(language).items():
        if inspect.isfunction(word):
            found[name] = word(
                **{each: SAMPLES[each] for each in inspect.signature(word).parameters}
            )
    return found


def wrong(code: Code, value: Any, low: float, high: float) -> str:
    """Return a message about a value that is out of range."""
    return i18n.translate(
        Message(code, {"field": "seed", "value": value, "low": low, "high": high})
    )


@pytest.mark.parametrize("language", OTHERS)
def test_a_language_has_every_text(language: str):
    own, english = names(i18n.LANGUAGES[language]), names(en)
    assert own.keys() == english.keys()
    for name, word in english.items():
        assert type(own[name]) is type(word), name
        if inspect.isfunction(word):
            assert inspect.signature(own[name]) == inspect.signature(word), name
        elif isinstance(word, dict):
            assert [*own[name]] == [*word]
            if name == "SETTINGS":
                for setting, words in word.items():
                    assert own[name][setting] != words or setting in ALIKE, setting
                    assert (own[name][setting].info == words.info) == (not words.info), setting
        elif name not in ALIKE:
            assert own[name] != word, name


def test_every_style_has_a_name():
    assert {style for kind in Kind for style in styles_for(kind)} == en.STYLES.keys()
    assert all(style == name for style, name in en.STYLES.items())


@pytest.mark.parametrize("language", OTHERS)
def test_a_text_has_the_same_values_in_every_language(language: str):
    own = sentences(i18n.LANGUAGES[language])
    for name, english in sentences(en).items():
        sample = [SAMPLES[each] for each in inspect.signature(getattr(en, name)).parameters]
        values = [str(each) for each in sample if isinstance(each, str | int)]
        values += ["MODEL", "DEVICE", "333", "444", "FAMILY", "ONE, OTHER", "21 s", "32 s"]
        for value in values:
            assert (value in own[name]) == (value in english), (name, value)
        assert own[name] != english, name


@pytest.mark.parametrize(
    ("language", "finished"),
    [
        ("en", "17 pictures in 19.5 s"),
        ("de", "17 Bilder in 19,5 s"),
        ("es", "17 imágenes en 19,5 s"),
        ("fr", "17 images en 19,5 s"),
    ],
)
def test_numbers_are_written_as_in_the_language(language: str, finished: str):
    with i18n.speaking(language):
        assert i18n.finished(17, 19.5) == finished
        assert i18n.finished(1, None).startswith("1 ")
        point = "." if language == "en" else ","
        assert f"7{point}5" in i18n.adjusted("FIELD", 7.5, 40)
        assert f"19{point}5" in i18n.adjusted("FIELD", 40, 19.5)
        assert f"0{point}5" in wrong(Code.OUT_OF_RANGE, -1, 0.5, 1)
        assert f"7{point}5" in wrong(Code.NOT_WHOLE, 7.5, 0, 1)
        assert "7.5" in wrong(Code.NOT_WHOLE, "7.5", 0, 1)  # a text is shown as it was sent


@pytest.mark.parametrize("language", i18n.LANGUAGES)
def test_large_whole_numbers_have_all_their_digits(language: str):
    with i18n.speaking(language):
        most = i18n.adjusted("FIELD", 2**32, 2**32 - 1)
        assert " 4294967296 " in most
        assert " 4294967295" in most
        assert "e+" not in most
        not_whole = Code.NOT_WHOLE
        assert " 10000000000 " in wrong(not_whole, 1e10, 0, 2**32 - 1)
        assert " 1" + 22 * "0" + " " in wrong(not_whole, 1e22, 0, 2**32 - 1)
        assert len(wrong(not_whole, 1e300, 0, 1)) < 150
        for code in RANGES:
            assert re.search(r"\b4294967295\b", wrong(code, 2**32, 0, 2**32 - 1))
        assert " 20" in i18n.adjusted("FIELD", 50.0, 20.0)
        assert i18n.written(5.0) in ("5.0", "5,0")


@pytest.mark.parametrize("seed", [2**32, 1e10, 1e22])
def test_a_seed_out_of_range_is_quoted_with_all_its_digits(seed: float):
    request = Request("a red star", None, 5.0, 4, seed)  # type: ignore[arg-type]
    with pytest.raises(RequestError) as refused:
        admission.check_fields(admission.expand(request, MODEL), MODEL)
    assert str(refused.value) == f"seed is {seed:.0f}; expected 0 to 4294967295"


def params_of(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name}


@pytest.mark.parametrize("code", Code)
def test_all_languages_have_a_text_with_the_same_parameters_for_a_code(code: Code):
    english = en.MESSAGES[code]
    assert params_of(english) <= params_of(ENGLISH[code])
    for language in OTHERS:
        text = i18n.LANGUAGES[language].MESSAGES[code]
        assert params_of(text) == params_of(english), language
        assert text != english or code is Code.UNTRANSLATED, language


@pytest.mark.parametrize("language", i18n.LANGUAGES)
def test_no_language_has_a_text_without_a_code(language: str):
    assert set(i18n.LANGUAGES[language].MESSAGES) == set(Code)


@pytest.mark.parametrize(
    ("language", "in_30_s", "soon"),
    [
        ("en", "again in about 30 s.", "again in a moment."),
        ("de", "es in etwa 30 s noch", "es gleich noch"),
        ("es", "nuevo en unos 30 s.", "nuevo en un momento."),
        ("fr", "Réessayez dans 30 s environ.", "Réessayez dans un instant."),
    ],
)
def test_a_message_says_when_to_try_again(language: str, in_30_s: str, soon: str):
    with i18n.speaking(language):
        for code in (Code.FULL, Code.TOO_MANY_REQUESTS):
            assert in_30_s in i18n.translate(Message(code, {"wait_s": 30.0}))
            for wait_s in (None, 1.5):
                assert soon in i18n.translate(Message(code, {"wait_s": wait_s}))


@pytest.mark.parametrize("language", i18n.LANGUAGES)
def test_a_message_names_a_field_as_the_page_does(language: str):
    params = {"field": "guidance_scale", "value": 99.5, "low": 0, "high": 50.0}
    with i18n.speaking(language):
        text = i18n.translate(Message(Code.OUT_OF_RANGE, params))
        assert text.startswith(i18n.SETTINGS["guidance_scale"].label)
        assert "50" in text
        assert "50.0" not in text
        assert "50,0" not in text


@pytest.mark.parametrize("language", i18n.LANGUAGES)
def test_a_message_quotes_what_was_sent(language: str):
    with i18n.speaking(language):
        word = 'a "WORD" {prompt} '
        assert word in i18n.translate(Message(Code.BLOCKED, {"word": word}))
        assert i18n.translate(untranslated("a {b} c")) == "a {b} c"
        params: Any = {"field": "style", "value": None, "choices": ["ONE", "OTHER"]}
        unknown = i18n.translate(Message(Code.UNKNOWN_CHOICE, params))
        assert i18n.NOTHING in unknown
        assert "ONE, OTHER" in unknown


@pytest.mark.parametrize(
    ("asked", "language"),
    [
        ("de", "de"),
        ("fr-CH, de;q=0.9, en;q=0.8", "fr"),
        ("ES-419;q=1", "es"),
        ("ja, de", "en"),
        ("", "en"),
        ("*", "en"),
        (",;q=de-", "en"),
    ],
)
def test_the_first_language_asked_for_counts(asked: str, language: str):
    assert i18n.preferred(asked) == language
    visitor: Any = SimpleNamespace(headers={"accept-language": asked})
    token = LocalContext.request.set(visitor)
    assert language == i18n.LANGUAGE
    LocalContext.request.reset(token)
    assert i18n.LANGUAGE == "en"


@pytest.mark.parametrize("language", OTHERS)
def test_gradio_has_the_language_too(language: str):
    """A browser chooses only among Gradio's own languages."""
    assets = Path(gradio.__file__).parent / "templates" / "frontend" / "assets"
    assert list(assets.glob(f"{language}-*.js"))
