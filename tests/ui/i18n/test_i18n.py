"""Every language has every text, with the same values in it as the other languages."""

import re
from pathlib import Path
from string import Formatter
from types import SimpleNamespace
from typing import Any

import gradio
import pytest
from gradio.context import LocalContext

from serving.generator import Request, RequestError
from serving.messages import ENGLISH, Code, Message, untranslated
from serving.requests import admission
from tests import models
from ui import i18n
from ui.samples.model_kind import Kind
from ui.samples.styles import styles_for

MODEL = models.MODEL
RANGES = (Code.OUT_OF_RANGE, Code.NOT_WHOLE)
OTHERS = [language for language in i18n.LANGUAGES if language != "en"]
# Texts that may be the same in another language.
ALIKE = {
    *("LIVE", "RESTORE_HINT", "prompt", "sampler", "scheduler", "style", "vae"),
    *("KINDS", "decimal_mark", "finished", "passphrase", "untranslated"),
}
NAMES = re.compile(r"\bi18n\.([A-Z]\w+)|\bi18n\.text\(\s*\"(\w+)\"")


def adjusted(value: float, used: float) -> str:
    return i18n.text("adjusted", field="FIELD", value=value, used=used)


def wrong(code: Code, value: Any, low: float, high: float) -> str:
    """Return a message about a value that is out of range."""
    return i18n.translate(
        Message(code, {"field": "seed", "value": value, "low": low, "high": high})
    )


@pytest.mark.parametrize("language", OTHERS)
def test_a_language_has_texts_of_its_own(language: str):
    for key, text in i18n.LANGUAGES["en"].items():
        translation = i18n.LANGUAGES[language][key]
        assert type(translation) is type(text), key
        if isinstance(text, dict) and key in ("SETTINGS", "START"):
            for name, words in text.items():
                assert translation[name] != words or name in ALIKE, name
        assert translation != text or key in ALIKE, key


def lines_of(text: Any) -> list[str]:
    """Return all lines of a text, or of a table of texts."""
    if isinstance(text, str):
        return text.splitlines()
    parts = text.values() if isinstance(text, dict) else text
    return [line for part in parts for line in lines_of(part)]


def test_french_has_no_break_spaces_at_its_signs():
    lines = lines_of(i18n.LANGUAGES["fr"])
    assert [line for line in lines if re.search(r" [:;?!»]|« |«(?!\u00a0)|[^\u00a0]»", line)] == []


@pytest.mark.parametrize("language", i18n.LANGUAGES)
def test_texts_name_no_setting_of_the_server_but_to_its_operator(language: str):
    for key, text in i18n.LANGUAGES[language].items():
        named = any(re.search(r"\b[A-Z]+_[A-Z]+\b", line) for line in lines_of(text))
        assert named == (key in (Code.LOOP, Code.WRONG_HOST, Code.WRONG_ORIGIN)), key


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"GENERATE": None}, "GENERATE"),
        ({"MORE": "more"}, "MORE"),
        ({"unfinished": "{done}"}, "unfinished"),
        ({"pictures": "{count}"}, "pictures"),
        ({"STYLES": {}}, "STYLES"),
        ({"STRENGTHS": ["Off"]}, "STRENGTHS"),
    ],
)
def test_a_catalog_that_differs_is_refused(changes: dict[str, Any], wrong: str):
    texts = i18n.LANGUAGES["de"] | changes
    texts = {key: text for key, text in texts.items() if text is not None}
    with pytest.raises(ValueError, match=f"de.json differs from en.json in {wrong}"):
        i18n.check({"en": i18n.LANGUAGES["en"], "de": texts})


def test_the_page_asks_only_for_texts_that_there_are():
    """Type checkers do not know the names."""
    files = Path(i18n.__file__).parents[1].rglob("*.py")
    names = {name for file in files for pair in NAMES.findall(file.read_text()) for name in pair}
    names -= {"", "LANGUAGES"}
    assert len(names) > 80
    assert names <= i18n.LANGUAGES["en"].keys()
    with pytest.raises(AttributeError, match="NO_SUCH"):
        _ = i18n.NO_SUCH


def test_every_style_has_a_name():
    styles = i18n.LANGUAGES["en"]["STYLES"]
    assert {style for kind in Kind for style in styles_for(kind)} == styles.keys()
    assert all(style == name for style, name in styles.items())


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
        count = i18n.text("pictures", count=17)
        assert i18n.text("finished", pictures=count, seconds=19.5) == finished
        assert i18n.text("pictures", count=1).startswith("1 ")
        point = "." if language == "en" else ","
        assert f"7{point}5" in adjusted(7.5, 40)
        assert f"19{point}5" in adjusted(40, 19.5)
        assert f"0{point}5" in wrong(Code.OUT_OF_RANGE, -1, 0.5, 1)
        assert f"7{point}5" in wrong(Code.NOT_WHOLE, 7.5, 0, 1)
        assert "7.5" in wrong(Code.NOT_WHOLE, "7.5", 0, 1)  # a text is shown as it was sent


@pytest.mark.parametrize("language", i18n.LANGUAGES)
def test_large_whole_numbers_have_all_their_digits(language: str):
    with i18n.speaking(language):
        most = adjusted(2**32, 2**32 - 1)
        assert " 4294967296 " in most
        assert " 4294967295" in most
        assert "e+" not in most
        not_whole = Code.NOT_WHOLE
        assert " 10000000000 " in wrong(not_whole, 1e10, 0, 2**32 - 1)
        assert " 1" + 22 * "0" + " " in wrong(not_whole, 1e22, 0, 2**32 - 1)
        assert len(wrong(not_whole, 1e300, 0, 1)) < 150
        for code in RANGES:
            assert re.search(r"\b4294967295\b", wrong(code, 2**32, 0, 2**32 - 1))
        assert " 20" in adjusted(50.0, 20.0)
        assert i18n.written(5.0) in ("5.0", "5,0")


@pytest.mark.parametrize("seed", [2**32, 1e10, 1e22])
def test_a_seed_out_of_range_is_quoted_with_all_its_digits(seed: float):
    request = Request("a red star", None, 5.0, 4, seed)  # type: ignore[arg-type]
    with pytest.raises(RequestError) as refused:
        admission.check_fields(admission.expand(request, MODEL), MODEL)
    assert str(refused.value) == f"seed is {seed:.0f}; expected 0 to 4294967295"


def params_of(text: Any) -> set[str]:
    templates = text.values() if isinstance(text, dict) else [text]
    return {name for each in templates for _, name, _, _ in Formatter().parse(each) if name}


@pytest.mark.parametrize("code", Code)
def test_every_code_has_a_text_with_its_values(code: Code):
    assert params_of(i18n.LANGUAGES["en"][code]) <= params_of(ENGLISH[code])


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
    assert language == i18n.language()
    LocalContext.request.reset(token)
    assert i18n.language() == "en"


@pytest.mark.parametrize("language", OTHERS)
def test_gradio_has_the_language_too(language: str):
    """A browser chooses only among Gradio's own languages."""
    assets = Path(gradio.__file__).parent / "templates" / "frontend" / "assets"
    assert list(assets.glob(f"{language}-*.js"))
