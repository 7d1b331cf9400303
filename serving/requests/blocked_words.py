"""Words that an operator does not want drawn."""

import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path


class BlockedWords:
    """Words and patterns that no prompt may contain.

    Letters are compared without case, accents and invisible marks.

    Args:
        lines: one entry each: a word or several words, which match only where they stand alone, or
            a regular expression between slashes. Blank lines and lines that begin with # are
            skipped.

    Raises:
        ValueError: if a line has no word or an invalid regular expression; the message says which.
    """

    def __init__(self, lines: Iterable[str] = ()) -> None:
        self._patterns = [
            _pattern(line.strip(), number)
            for number, line in enumerate(lines, start=1)
            if line.strip() and not line.startswith("#")
        ]

    def find(self, text: str) -> str:
        """Return the part of a text that an entry matches, as it is compared, or ""."""
        plain = _plain(text)
        found = (pattern.search(plain) for pattern in self._patterns)
        return next((match[0] for match in found if match), "")


def read(file: Path) -> BlockedWords:
    """Read the blocked words in a file, one entry per line.

    Raises:
        ValueError: if the file cannot be read or a line is wrong; the message says where.
    """
    try:
        return BlockedWords(file.read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be used: {error}") from error


def _pattern(line: str, number: int) -> re.Pattern[str]:
    if len(line) > 2 and line.startswith("/") and line.endswith("/"):
        try:
            return re.compile(line[1:-1], re.IGNORECASE)
        except re.error as error:
            message = f"line {number}: {line} is not a regular expression: {error}"
            raise ValueError(message) from error
    words = _plain(line).split()
    if not words:
        raise ValueError(f"line {number}: it contains no word")
    pattern = r"\s+".join(map(re.escape, words))
    return re.compile(_edge(words[0][0], r"(?<!\w)") + pattern + _edge(words[-1][-1], r"(?!\w)"))


def _edge(letter: str, boundary: str) -> str:
    """Return the boundary that a word needs next to `letter`, a regular expression or "".

    Scripts without capitals may be written without spaces, so their words need not stand alone.
    """
    return boundary if letter.lower() != letter.upper() or letter.isdigit() else ""


def _plain(text: str) -> str:
    """Return a text as it is compared: without case, accents and invisible marks."""
    apart = unicodedata.normalize("NFKD", text.casefold())
    return "".join(c for c in apart if unicodedata.category(c) not in ("Mn", "Cf"))
