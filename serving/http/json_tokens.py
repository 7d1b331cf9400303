"""Limit on the tokens of JSON bodies, which are counted before a body is parsed.

A body of many small values takes many times its bytes once it is parsed, and every wrong value in
it would become an error of its own.
"""

import json
from typing import Any

from serving.generator import RequestError
from serving.messages import untranslated

# Quotes, commas and opening brackets of a body, also within its strings; the largest bodies of
# clients have hundreds. A file in base64 has none.
MOST_TOKENS = 20_000
_TOKENS = b'"', b",", b"[", b"{"


class JsonTokens:
    """Counter of the tokens of a body that comes in pieces; `count` has those so far."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, piece: bytes) -> None:
        """Count the tokens of the next piece.

        Raises:
            RequestError: if the body has too many, or is no JSON in UTF-8.
        """
        # Only JSON in UTF-16 and UTF-32 has zeros.
        if b"\0" in piece:
            raise RequestError(untranslated("The body is not JSON in UTF-8"))
        self.count += sum(map(piece.count, _TOKENS))
        if self.count > MOST_TOKENS:
            text = f"The body has more than {MOST_TOKENS} values and commas; send fewer"
            raise RequestError(untranslated(text))


def encoded(value: Any) -> bytes:
    """Return a value as JSON. Lone surrogates are replaced: no answer could repeat them."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
