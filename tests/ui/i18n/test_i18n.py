"""Every language has every text, with the same values in it as the other languages."""

import inspect
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from gradio.context import LocalContext

from serving import messages as said
from serving.generator import ErrorKind, Model, Request, RequestError
from serving.requests import admission
from serving.requests.blocked_words import BlockedWords
from ui import i18n
from ui.i18n import en
from ui.model_kind import Kind
from ui.styles import styles_for

MODEL = Model(
    "MODEL", None, False, "DEVICE", 6, 333, 444, 4, 25, 50, "FAMILY", True, "euler", "none"
)
OTHERS = [language for language in i18n.LANGUAGES if language != "en"]
# Texts that may be the same in another language, or are no text.
ALIKE = {"RESTORE_HINT", "STYLE"}
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
    "low": 16,
    "model": MODEL,
    "name": "NAME",
    "number": 7.5,
    "pictures": 17,
    "position": 18,
    "prompt": "A STAR",
    "seconds": 19.5,
    "seed": 4711,
    "steps": 9999,
    "style": "Anime",
    "tokens": 7777,
    "total": 88,
    "used": 2.5,
    "variation": 20,
    "value": 3333,
    "wait_s": 32.0,
    "width": 2222,
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
        if inspect.isfunction(word) and name != "problem":
            found[name] = word(
                **{each: SAMPLES[each] for each in inspect.signature(word).parameters}
            )
    return found


@pytest.mark.parametrize("language", OTHERS)
def test_it_has_every_word(language: str):
    own, english = names(i18n.LANGUAGES[language]), names(en)
    assert own.keys() == english.keys()
    for name, word in english.items():
        assert type(own[name]) is type(word), name
        if inspect.isfunction(word):
            assert inspect.signature(own[name]) == inspect.signature(word), name
        elif isinstance(word, dict):
            assert own[name].keys() == word.keys()
        elif name not in ALIKE:
            assert own[name] != word, name


def test_every_style_has_a_name():
    assert {style for kind in Kind for style in styles_for(kind)} == en.STYLES.keys()
    assert all(style == name for style, name in en.STYLES.items())


@pytest.mark.parametrize("language", OTHERS)
def test_it_says_as_much(language: str):
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
def test_numbers_are_written_as_there(language: str, finished: str):
    with i18n.speaking(language):
        assert i18n.finished(17, 19.5) == finished
        assert i18n.finished(1, None).startswith("1 ")
        point = "." if language == "en" else ","
        assert f"7{point}5" in i18n.adjusted("FIELD", 7.5, 40)
        assert f"19{point}5" in i18n.adjusted("FIELD", 40, 19.5)
        assert f"0{point}5" in i18n.out_of_range("FIELD", -1, 0.5, 1)
        for wrong in (i18n.out_of_range, i18n.not_whole):
            assert f"7{point}5" in wrong("FIELD", 7.5, 0, 1)
            assert "7.5" in wrong("FIELD", "7.5", 0, 1)  # a text is shown as it was sent


@pytest.mark.parametrize("language", i18n.LANGUAGES)
def test_large_whole_numbers_have_all_their_digits(language: str):
    with i18n.speaking(language):
        most = i18n.adjusted("FIELD", 2**32, 2**32 - 1)
        assert " 4294967296 " in most
        assert " 4294967295" in most
        assert "e+" not in most
        for wrong in (i18n.out_of_range, i18n.not_whole):
            assert " 10000000000 " in wrong("FIELD", 1e10, 0, 2**32 - 1)
            assert " 1" + 22 * "0" + " " in wrong("FIELD", 1e22, 0, 2**32 - 1)
            assert " 4294967295" in wrong("FIELD", 2**32, 0, 2**32 - 1)
            assert len(wrong("FIELD", 1e300, 0, 1)) < 150
        assert " 20" in i18n.adjusted("FIELD", 50.0, 20.0)
        assert i18n.written(5.0) in ("5.0", "5,0")


@pytest.mark.parametrize("seed", [2**32, 1e10, 1e22])
def test_so_has_a_seed_that_nobody_can_draw(seed: float):
    request = Request("a red star", None, 5.0, 4, seed)  # type: ignore[arg-type]
    with pytest.raises(RequestError) as refused:
        admission.check(request, MODEL, BlockedWords())
    assert str(refused.value) == f"seed is {seed:.0f}; expected 0 to 4294967295"


@pytest.mark.parametrize("language", OTHERS)
def test_what_becomes_of_a_request_is_said(language: str):
    meant_for_operators = {said.LOOP}
    messages = {word for name, word in vars(said).items() if name.isupper()} - meant_for_operators
    with i18n.speaking(language):
        for message in messages:
            assert i18n.problem(message, ErrorKind.FAILED, None) != message
        for kind in (ErrorKind.FULL, ErrorKind.TOO_MANY):
            assert "30 s" in i18n.problem("MESSAGE", kind, 30)
        assert i18n.problem("MESSAGE", ErrorKind.DEADLINE, None) != "MESSAGE"
        blocked = said.blocked('a "WORD" ')
        assert 'a "WORD" ' in i18n.problem(blocked, ErrorKind.BLOCKED, None) != blocked
        assert i18n.problem(i18n.BLANK_PROMPT, ErrorKind.INVALID, None) == i18n.BLANK_PROMPT
    assert i18n.problem(said.CANCELLED, ErrorKind.CANCELLED, None) == said.CANCELLED


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
