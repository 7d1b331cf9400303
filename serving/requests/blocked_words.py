"""Words that an operator does not want drawn."""

import re
import unicodedata
from collections.abc import Iterable
from itertools import chain, groupby, islice
from pathlib import Path

# Letters that look like Latin ones, and characters that cannot be seen.
_ALIKE = str.maketrans(
    "асеһіјорѕухԁ" + "αειονρυχ" + "ıøłđɑɡ",
    "acehijopsyxd" + "aeiovpux" + "ioldag",
    "\u115f\u1160\u2800",
)
# Characters that are written for letters; 1 may be an i or an l.
_WRITTEN_FOR = [str.maketrans("034571@$", f"oeast{letter}as") for letter in "il"]
_WRITTEN = re.compile(r"[\w@$]+")  # a word that may have them
# Three or more letters or digits that are written apart, such as "n.u.d.e".
_APART = re.compile(r"(?<![^\W_])[^\W_]([\W_]{1,2})[^\W_](?:\1[^\W_])+(?![^\W_])")
_MOST_ACCENTS = 10  # of a letter
_LETTER, _LETTER_OR_DIGIT = r"[^\W\d_]", r"[^\W_]"


class BlockedWords:
    """Words and patterns that no prompt may contain.

    Letters are compared without case, accents and invisible marks, and letters that look alike are
    equal. Words are also found if digits stand for letters, or if their letters are written apart.

    Args:
        lines: one entry each: a word or several words, which match only where they stand alone, or
            a regular expression between slashes, which is searched for in the text as it is written
            and as it is compared. Blank lines and lines that begin with # are skipped.

    Raises:
        ValueError: if a line has no word or an invalid regular expression; the message says which.
    """

    def __init__(self, lines: Iterable[str] = ()) -> None:
        self._words: list[tuple[str, re.Pattern[str]]] = []  # with the first word of each entry
        self._expressions: list[re.Pattern[str]] = []
        for number, line in enumerate(map(str.strip, lines), start=1):
            if len(line) > 2 and line.startswith("/") and line.endswith("/"):
                self._expressions.append(_expression(line, number))
            elif line and not line.startswith("#"):
                self._words.append(_words(line, number))

    def find(self, text: str) -> str:
        """Return the part of a text that an entry matches, as it is compared, or ""."""
        if not (self._words or self._expressions):
            return ""
        plain_text = _plain(text)
        of_words = (
            pattern.search(reading)
            for reading in (_readings(plain_text) if self._words else ())
            for word, pattern in self._words
            if word in reading  # which is quicker than a search
        )
        of_expressions = (
            pattern.search(reading)
            for reading in (plain_text, _folded(text), _composed(text))
            for pattern in self._expressions
        )
        return next((match[0] for match in chain(of_words, of_expressions) if match), "")


def read(file: Path) -> BlockedWords:
    """Read the blocked words in a file, one entry per line.

    Raises:
        ValueError: if the file cannot be read or a line is wrong; the message says where.
    """
    try:
        return BlockedWords(file.read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be used: {error}") from error


def _expression(line: str, number: int) -> re.Pattern[str]:
    try:
        return re.compile(unicodedata.normalize("NFC", line[1:-1]), re.IGNORECASE)
    except re.error as error:
        message = f"line {number}: {line} is not a regular expression: {error}"
        raise ValueError(message) from error


def _words(line: str, number: int) -> tuple[str, re.Pattern[str]]:
    words = _plain(line).split()
    if not words:
        raise ValueError(f"line {number}: it contains no word")
    first, last = _edge(words[0][0]), _edge(words[-1][-1])
    pattern = r"\s+".join(map(re.escape, words))
    return words[0], re.compile((first and f"(?<!{first})") + pattern + (last and f"(?!{last})"))


def _edge(character: str) -> str:
    """Return what may not stand next to a word that begins or ends so, or "".

    Scripts without capitals may be written without spaces, so their words need not stand alone.
    """
    if character.isdigit():
        return _LETTER_OR_DIGIT
    return _LETTER if character.lower() != character.upper() else ""


def _plain(text: str) -> str:
    """Return a text as words are compared: folded, and with Latin letters for those alike."""
    return _folded(text).translate(_ALIKE)


def _folded(text: str) -> str:
    """Return a text without case, accents and invisible marks."""
    decomposed_text = unicodedata.normalize("NFKD", _without_marks(text))
    return _without_marks(unicodedata.normalize("NFKD", _without_marks(decomposed_text).casefold()))


def _without_marks(text: str) -> str:
    return "".join(c for c in text if unicodedata.category(c) not in ("Mn", "Me", "Cf"))


def _composed(text: str) -> str:
    """Return a text with one sign for each letter with accents, of which none has many.

    To sort the accents of a letter takes quadratic time.
    """
    letters = (
        "".join(islice(signs, _MOST_ACCENTS if is_accent else None))
        for is_accent, signs in groupby(text, key=lambda c: unicodedata.combining(c) > 0)
    )
    return unicodedata.normalize("NFC", "".join(letters))


def _readings(plain_text: str) -> Iterable[str]:
    """Return the different ways in which a text may be meant, as it is written first."""
    joined_text = _APART.sub(lambda letters: _together(letters[0]), plain_text)
    texts = plain_text, joined_text
    variants = (
        _WRITTEN.sub(lambda word, table=table: _meant(word[0], table), text)
        for text in texts
        for table in _WRITTEN_FOR
    )
    return dict.fromkeys((*texts, *variants))


def _meant(word: str, written_for: dict[int, int]) -> str:
    """Return a word with the letters that others stand for, if it has a letter as well."""
    return word.translate(written_for) if any(map(str.isalpha, word)) else word


def _together(spelling: str) -> str:
    """Return letters that are written apart as a word, and without an article before it."""
    letters = re.sub(r"[\W_]", "", spelling)
    return f"{letters} {letters[1:]}" if letters.startswith("a") else letters
