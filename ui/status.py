"""The strip above the pictures: how far the drawing is, how it ended, what went wrong.

Everything that comes from outside is escaped here: it is shown as text, never as HTML.
"""

from base64 import b64encode
from collections.abc import Sequence
from html import escape

from serving.generator import Length
from ui import i18n

EMPTY = ""
RUNNING = '<div class="running"'  # how whatever is under way begins


def progress(done: int, total: int, left_s: float | None) -> str:
    """A bar and its number, and how much longer it takes if that is known."""
    text = i18n.progress(done, total, left_s)
    return (
        f'{RUNNING}><progress value="{done}" max="{total}" aria-label="{text}">'
        f"</progress><span>{text}</span></div>"
    )


def busy(text: str) -> str:
    """A bar that does not yet know how far it is."""
    return (
        f'{RUNNING} role="status"><progress aria-label="{escape(text)}"></progress>'
        f"<span>{escape(text)}</span></div>"
    )


def looks(jpegs: Sequence[bytes]) -> str:
    """How the pictures look so far, in their places."""
    if not jpegs:
        return EMPTY
    sources = (f"data:image/jpeg;base64,{b64encode(jpeg).decode()}" for jpeg in jpegs)
    images = "".join(f'<img src="{source}" alt="" decoding="sync">' for source in sources)
    return f'<div role="img" aria-label="{escape(i18n.LOOKS)}">{images}</div>'


def length(length: Length | None) -> str:
    """How long the prompt is, and what of it is too much."""
    if length is None:
        return EMPTY
    over = "over" if length.left_out else ""
    text = i18n.length(length.tokens, length.limit)
    count = f'<p class="length {over}">{escape(text)}</p>'
    return count + (warning(i18n.truncated(length.left_out)) if length.left_out else EMPTY)


def note(text: str) -> str:
    """A calm remark."""
    return f'<p class="note" role="status">{escape(text)}</p>'


def taken_over(notes: Sequence[str]) -> str:
    """That settings are in place, and what of them could not be."""
    return note(i18n.TAKEN_OVER) + (warning(" ".join(notes)) if notes else EMPTY)


def warning(text: str) -> str:
    """Something worth knowing."""
    return f'<p class="warning" role="status">{escape(text)}</p>'


def error(text: str) -> str:
    """Something that did not work."""
    return f'<p class="error" role="alert">{escape(text)}</p>'
