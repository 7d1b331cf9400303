"""The page's texts, in the language of the visitor whose event is being answered.

Each language is a module, and all have the same names: `i18n.PROMPT`, `i18n.progress(...)`. The
language is the first one that the visitor's browser asks for, which Gradio uses for its own texts
as well. It is English if there is no module for that language, or no visitor.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ui.gradio_compat.context import current_request
from ui.i18n import de, en, es, fr
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
    first = accept_language.partition(",")[0].partition(";")[0]
    asked = first.strip().partition("-")[0].lower()
    return asked if asked in LANGUAGES else _ENGLISH


if TYPE_CHECKING:
    from ui.i18n.en import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        return getattr(LANGUAGES[language()], name)
