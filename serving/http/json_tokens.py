"""Limit on the tokens of JSON bodies, which are counted before a body is parsed.

A body of many small values takes many times its bytes once it is parsed, and every wrong value in
it would become an error of its own. Values nested deeply end many parsers with an error.
"""

import json
import re
from typing import Any

from serving.generator import RequestError
from serving.messages import untranslated

# Strings, commas and opening brackets of a body; the largest bodies of clients have hundreds.
MOST_TOKENS = 10_000
# Lists and objects inside each other; the bodies of clients have fewer than ten.
MOST_DEPTH = 100

# The inside of a string up to its end, which a later piece may have. Nothing is read twice.
_INSIDE = rb'(?:[^"\\]++|\\.)*+(?P<end>"?)'
_REST = re.compile(_INSIDE, re.DOTALL)
_TOKEN = re.compile(rb'[\[\]{},]|"' + _INSIDE, re.DOTALL)


class JsonTokens:
    """Counter of the tokens of a body that comes in pieces; `count` has those so far."""

    def __init__(self) -> None:
        self.count = 0
        self._depth = 0
        self._in_string = False
        self._escape = b""  # a backslash at the end of the last piece

    def add(self, piece: bytes) -> None:
        """Count the tokens of the next piece.

        Raises:
            RequestError: if the body has too many, is nested too deeply, or is no JSON in UTF-8.
        """
        # Only JSON in UTF-16 and UTF-32 has zeros. Its strings would not be recognised here.
        if b"\0" in piece:
            raise RequestError(untranslated("The body is not JSON in UTF-8"))
        piece = self._escape + piece
        self._escape = b""
        if self._in_string and b'"' not in piece and b"\\" not in piece:
            return
        at = 0
        if self._in_string:
            rest = _REST.match(piece)
            assert rest is not None
            at = self._ended(rest)
        for token in _TOKEN.finditer(piece, at):
            self._nest(token[0])
            self.count += token[0] not in b"]}"
            if self.count > MOST_TOKENS:
                text = f"The body has more than {MOST_TOKENS} values and commas; send fewer"
                raise RequestError(untranslated(text))
            self._ended(token)

    def _nest(self, token: bytes) -> None:
        if token in b"[{":
            self._depth += 1
        elif token in b"]}":
            self._depth -= 1
        if self._depth > MOST_DEPTH:
            raise RequestError(untranslated("The body is not JSON: it is nested too deeply"))
        if self._depth < 0:
            raise RequestError(untranslated("The body is not JSON: a bracket closes nothing"))

    def _ended(self, token: re.Match[bytes]) -> int:
        """Note whether a string goes on in the next piece; return where the token ends."""
        self._in_string = token["end"] == b""
        if self._in_string:
            self._escape = token.string[token.end() :]
        return token.end()


def encoded(value: Any) -> bytes:
    """Return a value as JSON. Lone surrogates are replaced: no answer could repeat them."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
