"""The page's texts, in the language of the visitor whose event is being answered.

Each language is a JSON file, and all have the same keys: `i18n.GENERATE` is a text or a table of
them, and `i18n.text("pictures", count=2)` a message with values. A message is a template, or
several forms of one: `by` names the value that chooses, and the form of a value precedes `other`.

The language is the first one that the visitor's browser asks for, which Gradio uses for its own
texts as well. It is English if there is no file for that language, or no visitor.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple

from pipeline.schedulers.names import SAMPLERS
from serving.messages import ENGLISH, Message, is_soon, plain, short
from ui.gradio_compat.context import current_request
from ui.i18n.numbers import duration
from ui.i18n.numbers import per_cent as per_cent
from ui.i18n.numbers import size as size

_ENGLISH = "en"


class Words(NamedTuple):
    """The label of a setting, and an explanation, if it has one."""

    label: str
    info: str = ""


def _catalog(language: str) -> dict[str, Any]:
    file = Path(__file__).with_name(f"{language}.json")
    texts = json.loads(file.read_text(encoding="utf-8"))
    texts["SETTINGS"] = {name: Words(*words) for name, words in texts["SETTINGS"].items()}
    # Many texts of the APIs are the page's, too.
    shared = ENGLISH if language == _ENGLISH else {}
    return {str(code): text for code, text in shared.items()} | texts


def _form(text: Any) -> Any:
    """Return what a text must share with its translations: its keys, its forms and its values."""
    if isinstance(text, dict):
        return {name: part if name == "by" else _form(part) for name, part in text.items()}
    if isinstance(text, str):
        return {name for _, name, _, _ in Formatter().parse(text) if name}
    return [*map(bool, text)]


def check(catalogs: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that all languages have the same texts, with the same values in them.

    Raises:
        ValueError: if one differs from English.
    """
    english = _form(catalogs[_ENGLISH])
    for language, texts in catalogs.items():
        forms = _form(texts)
        wrong = [key for key in forms | english if forms.get(key) != english.get(key)]
        if wrong:
            names = ", ".join(wrong)
            raise ValueError(f"{language}.json differs from {_ENGLISH}.json in {names}")


LANGUAGES = {language: _catalog(language) for language in (_ENGLISH, "de", "es", "fr")}
check(LANGUAGES)

_speaking: ContextVar[str | None] = ContextVar("speaking", default=None)


@contextmanager
def speaking(language: str) -> Iterator[None]:
    """Use one of `LANGUAGES` for all texts, whatever the visitor's language."""
    token = _speaking.set(language)
    try:
        yield
    finally:
        _speaking.reset(token)


def language() -> str:
    """Return the one of `LANGUAGES` that is in use now."""
    visitor = current_request()
    headers = getattr(visitor, "headers", {})
    return _speaking.get() or preferred(headers.get("accept-language", ""))


def preferred(accept_language: str) -> str:
    """Return the one of `LANGUAGES` for a browser's header, such as "de-CH, fr;q=0.9"."""
    first_tag = accept_language.partition(",")[0].partition(";")[0]
    code = first_tag.strip().partition("-")[0].lower()
    return code if code in LANGUAGES else _ENGLISH


def __getattr__(name: str) -> Any:
    try:
        return LANGUAGES[language()][name]
    except KeyError:
        raise AttributeError(f"There is no text {name}.") from None


def text(key: str, **values: Any) -> str:
    """Return a message with values, in the language that is in use now.

    Some values are written in a way of their own, which their names in `_WRITERS` decide.
    """
    template = LANGUAGES[language()][key]
    while isinstance(template, dict):
        form = str(values[template["by"]]).lower()
        template = template.get(form, template["other"])
    return template.format_map(
        {name: _WRITERS.get(name, written)(value) for name, value in values.items()}
    )


def translate(message: Message) -> str:
    """Return a message of `serving` in the language that is in use now."""
    return text(message.code, **message.params)


def translate_for(message: Message, accept_language: str) -> str:
    """Return a message in the language of a browser's header."""
    with speaking(preferred(accept_language)):
        return translate(message)


def label(field: str) -> str:
    """Return the page's label of a request's field; a field without one keeps its name."""
    words = LANGUAGES[language()]["SETTINGS"].get(field)
    return words.label if words else field


def written(value: object) -> str:
    """Return a value as text; a float has the language's decimal mark."""
    if not isinstance(value, float):
        return plain(value)
    return plain(value).replace(".", LANGUAGES[language()]["decimal_mark"])


def _number(number: float) -> str:
    return written(int(number) if number == int(number) else float(number))


def _quoted(value: object) -> str:
    return LANGUAGES[language()]["NOTHING"] if value is None else short(written(value))


def _soon(wait_s: float | None) -> str:
    return text("soon", left_s=None if is_soon(wait_s) else wait_s)


def _sampler(name: str) -> str:
    """Return the page's name of a scheduler; every other text stays as it is."""
    return SAMPLERS.get(name, name)


_WRITERS: dict[str, Callable[[Any], str]] = {
    "field": label,
    "other": label,
    "its": _sampler,
    **dict.fromkeys(("value", "name", "here"), _quoted),
    **dict.fromkeys(("low", "high", "used"), _number),
    "names": lambda names: ", ".join(map(_quoted, names)),
    "choices": lambda choices: ", ".join(map(_sampler, choices)),
    "files": ", ".join,
    "sizes": lambda sizes: text("or").join(map(size, sizes)),
    "seconds": lambda seconds: written(round(seconds or 0.0, 1)),
    "left_s": lambda seconds: duration(seconds or 0.0),
    "wait_s": _soon,
}
