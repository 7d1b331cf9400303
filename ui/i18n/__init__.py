"""The page's texts, in the language of the visitor whose event is being answered.

Each language is a module, and all have the same names: `i18n.GENERATE`, `i18n.progress(...)`. The
language is the first one that the visitor's browser asks for, which Gradio uses for its own texts
as well. It is English if there is no module for that language, or no visitor.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pipeline.schedulers.names import SAMPLERS
from serving.messages import Message, Param, render, short
from ui.gradio_compat.context import current_request
from ui.i18n import de, en, es, fr
from ui.i18n.numbers import per_cent as per_cent
from ui.i18n.numbers import size as size

LANGUAGES: dict[str, ModuleType] = {"en": en, "de": de, "es": es, "fr": fr}
_ENGLISH = "en"

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


def translate(message: Message) -> str:
    """Return a message of `serving` in the language that is in use now."""
    words = LANGUAGES[language()]

    def quote(value: Param) -> str:
        return words.NOTHING if value is None else short(words.written(value))

    def bound(number: float) -> str:
        return words.written(int(number) if number == int(number) else number)

    writers: dict[str, Callable[..., str]] = {
        "field": label,
        "other": label,
        "its": _sampler,
        "value": quote,
        "low": bound,
        "high": bound,
        "choices": lambda choices: ", ".join(map(_sampler, choices)),
        "files": ", ".join,
        "wait_s": words.soon,
    }
    return render(words.MESSAGES[message.code], message.params, writers, words.written)


def translate_for(message: Message, accept_language: str) -> str:
    """Return a message in the language of a browser's header."""
    with speaking(preferred(accept_language)):
        return translate(message)


def label(field: str) -> str:
    """Return the page's label of a request's field; a field without one keeps its name."""
    words = LANGUAGES[language()].SETTINGS.get(field)
    return words.label if words else field


def _sampler(name: str) -> str:
    """Return the page's name of a scheduler; every other text stays as it is."""
    return SAMPLERS.get(name, name)


if TYPE_CHECKING:
    from ui.i18n.en import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        return getattr(LANGUAGES[language()], name)
