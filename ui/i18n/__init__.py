"""Every word the page says, in the language of the visitor whose event is being answered.

Each language is a file, and all have the same names: `words.PROMPT`, `words.progress(...)`. Which
one it is follows from the first language that the visitor's browser asks for, as Gradio does it for
the words that it shows itself. Where there is none, or no visitor, it is English.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gradio.context import LocalContext

from ui.i18n import de, en, es, fr
from ui.i18n.numbers import size as size

LANGUAGES: dict[str, ModuleType] = {"en": en, "de": de, "es": es, "fr": fr}
_ENGLISH = "en"

_speaking: ContextVar[str | None] = ContextVar("speaking", default=None)


@contextmanager
def speaking(language: str) -> Iterator[None]:
    """Has everything said in one of `LANGUAGES`, whoever asks."""
    token = _speaking.set(language)
    try:
        yield
    finally:
        _speaking.reset(token)


def language() -> str:
    """Which of `LANGUAGES` is spoken now."""
    visitor = LocalContext.request.get(None)
    headers = getattr(visitor, "headers", {})
    return _speaking.get() or preferred(headers.get("accept-language", ""))


def preferred(accept_language: str) -> str:
    """The one of `LANGUAGES` for what a browser asks for, such as "de-CH, fr;q=0.9"."""
    first = accept_language.partition(",")[0].partition(";")[0]
    asked = first.strip().partition("-")[0].lower()
    return asked if asked in LANGUAGES else _ENGLISH


if TYPE_CHECKING:
    from ui.i18n.en import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        return getattr(LANGUAGES[language()], name)
