"""The status line, as data that `static/status.js` shows as text, and HTML beside it.

Text in HTML is escaped here, so that it is shown as text and never read as HTML.
"""

import json
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from typing import Any, TypeAlias

from serving.generator import Length
from serving.messages import short
from ui import i18n

EMPTY = ""
COUNTED_FROM = 60  # tokens; most models read 77
_QUOTED = 60  # characters of the text that the model does not read
_MOST_UNKNOWN, _LONGEST_UNKNOWN = 5, 24  # words, and characters of a word

# A line has a `kind`, by which the browser knows how long it is true, and a `text`.
Line: TypeAlias = dict[str, Any]


def progress(done: int, total: int, left_s: float | None) -> Line:
    """Return a bar with the number of the step and, if known, the time left."""
    return busy(i18n.text("progress", done=done, total=total, left_s=left_s or None)) | {
        "done": done,
        "total": total,
    }


def busy(text: str, request_id: str = "") -> Line:
    """Return a bar for work whose progress is not known yet.

    The page begins to follow the request that the line names.
    """
    return {"kind": "running", "text": text, "request": request_id}


def drawn(text: str, warning: str, request_id: str) -> Line:
    """Return the line beside the finished pictures of a request."""
    return {"kind": "drawn", "text": text, "warning": warning, "ends": request_id}


def stopped(text: str) -> Line:
    """Return the line of a request that was stopped, and can be finished."""
    return {"kind": "stopped", "text": text}


def note(text: str) -> Line:
    """Return a note, in a calm style."""
    return {"kind": "note", "text": text}


def taken_over(notes: Sequence[str]) -> Line:
    """Return a note that settings were put into the fields, and a warning with `notes`, if any."""
    return {"kind": "taken", "text": i18n.TAKEN_OVER, "warning": " ".join(notes)}


def warning(text: str) -> Line:
    """Return a warning."""
    return {"kind": "warning", "text": text}


def error(text: str, element: str | None = None) -> Line:
    """Return an error message, which screen readers read out at once.

    `element` is the id of the field that is wrong, which the browser marks.
    """
    return {"kind": "error", "text": text, "field": element}


def previews(jpegs: Sequence[bytes]) -> str:
    """Return previews of the pictures, each in its picture's place."""
    if not jpegs:
        return EMPTY
    sources = (f"data:image/jpeg;base64,{b64encode(jpeg).decode()}" for jpeg in jpegs)
    images = "".join(f'<img src="{source}" alt="" decoding="sync">' for source in sources)
    return f'<div role="img" aria-label="{escape(i18n.PREVIEWS)}">{images}</div>'


def length(length: Length | None, added: str = "") -> str:
    """Return the token count of a long prompt, or that it is too long and what is left out.

    `static/prompt.js` finds what is left out in the prompt, without the words that were `added`.
    """
    if length is None or not (length.left_out or length.tokens >= COUNTED_FROM):
        return EMPTY
    if not length.left_out:
        count = i18n.text("length", tokens=length.tokens, limit=length.limit, chunks=length.chunks)
        return f'<p class="length">{escape(count)}</p>'
    left_out = i18n.text("truncated", left_out=short(length.left_out, _QUOTED))
    message = f"{i18n.text('too_many_tokens', limit=length.limit)}. {left_out}"
    return (
        f'<p class="length over" role="status" data-left-out="{escape(length.left_out)}"'
        f' data-added="{escape(added)}">{escape(message)}</p>'
    )


def reading(parts: Sequence[str]) -> str:
    """Return how a prompt is read, if there is anything to say."""
    text = i18n.text("read_as", parts=" · ".join(parts))
    return f'<p class="read">{escape(text)}</p>' if parts else EMPTY


def unknown(words: Sequence[str]) -> str:
    """Return the words that the model does not know; `static/prompt.js` shows them soon."""
    if not words:
        return EMPTY
    # Not "and 1 more": the word itself takes as much room.
    count = len(words) if len(words) <= _MOST_UNKNOWN + 1 else _MOST_UNKNOWN
    word_list = ", ".join(short(word, _LONGEST_UNKNOWN) for word in words[:count])
    message = i18n.text("unknown", words=word_list, more=len(words) - count)
    return (
        f'<span hidden data-unknown="{escape(message)}"'
        f' data-words="{escape(" ".join(words))}"></span>'
    )


def ignored(parts: Sequence[str]) -> str:
    """Return the parts of a prompt without effect, which `static/prompt.js` dims."""
    return f'<span hidden data-ignored="{escape(json.dumps(parts))}"></span>' if parts else EMPTY


def as_note(text: str) -> str:
    """Return HTML with a note, in a calm style."""
    return f'<p class="note" role="status">{escape(text)}</p>'


def as_warning(text: str) -> str:
    """Return HTML with a warning."""
    return f'<p class="warning" role="status">{escape(text)}</p>'
