"""Lists in prompts, from which a seed chooses: `{red|blue}`, `{2$$a|b|c}` and `__colour__`.

`{a|b}` becomes one of its options and `{2$$a|b|c}` two different ones, with a comma between them.
`__colour__` becomes a line of the file colour.txt in a folder. Lists may be nested, and lines may
name other files. The syntax is that of https://github.com/adieyal/sd-dynamic-prompts
"""

import hashlib
import json
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from random import Random
from threading import Event

from pipeline.errors import InputError, raise_if_cancelled
from pipeline.file_versions import Version, version_of

MAX_FILE = 2**20  # bytes
MAX_FILES = 10_000  # of a folder, in its digest
MAX_TEXT = 20_000  # characters of a resolved prompt
MAX_DEPTH = 10  # files that name others
MAX_LINES = 1000  # lines that the prompts of a request take from files
KEPT_FILES = 128  # whose lines are kept in memory
_TOKEN = re.compile(r"[^\\{}\[\]|]++|\\[\s\S]?|[\s\S]")
_COUNT = re.compile(r"([0-9]{1,2})\$\$")
_COUNT_SIZE = 4  # characters that it matches at most
_NAME = re.compile(r"[\w-]++(?:/[\w-]++)*+")
# A name begins and ends with no underscore or space, so that "____" is text.
WILDCARD = re.compile(r"__(?=[^\s_])((?:(?!__)\S){1,100}+)__")


@dataclass
class _List:
    """An open bracket: the place of its first part, and those of the bars directly inside it."""

    kind: str
    start: int
    bars: list[int] = field(default_factory=list)


def line_budget(cancelled: Event | None = None) -> Iterator[bool]:
    """Yield True for each line that the prompts of a request may take from files.

    Raises:
        Cancelled: if the request was cancelled.
    """
    for _ in range(MAX_LINES):
        raise_if_cancelled(cancelled)
        yield True


class Resolver:
    """Chooses from lists for one seed.

    Args:
        seed: decides all choices.
        folder: the folder of the files; None for none.
        budget: the lines that it may take from files, with other seeds of the request.
    """

    def __init__(self, seed: int, folder: Path | None, budget: Iterator[bool] | None = None):
        self._random = Random(seed)
        self._folder = folder
        self._budget = line_budget() if budget is None else budget

    def resolve(self, text: str, depth: int = 0) -> str:
        """Return a text with a choice in place of each list.

        Brackets that enclose no list stay as they are.

        Raises:
            InputError: if a file cannot be used, or the text becomes too long.
        """
        if depth and len(text) > MAX_TEXT:
            raise _too_long()
        chosen = "".join(_replaced(text, self._choose))
        result = WILDCARD.sub(lambda match: self._line(match[1], depth), chosen)
        if len(result) > max(MAX_TEXT, len(text)):
            raise _too_long()
        return result

    def _choose(self, _: list[str], options: list[str], count: int) -> str:
        return ", ".join(options.pop(self._draw(len(options))) for _ in range(count))

    def _draw(self, count: int) -> int:
        """Return a place among `count`, in a way that Python's versions share."""
        return int(self._random.random() * count)

    def _line(self, name: str, depth: int) -> str:
        if depth >= MAX_DEPTH or not next(self._budget, False):
            raise InputError(
                f"the list __{name}__ is nested more than {MAX_DEPTH} files deep, or the prompts"
                f" take more than {MAX_LINES} lines from files; use fewer lists, and let no file"
                " lead back to itself"
            )
        lines = read_lines(self._folder, name)
        return self.resolve(lines[self._draw(len(lines))], depth + 1)


class _Choices(str):
    """A list as it is written, with its options and how many of them to choose."""

    options: list[str]
    chosen: int


def _replaced(text: str, choose: Callable[[list[str], list[str], int], str]) -> list[str]:
    """Return the parts of a text, with what `choose` returns in place of each list.

    Inner lists come before those around them. `choose` gets the parts of a list, its options, and
    how many of them to choose. Brackets that enclose no list stay as they are.
    """
    parts: list[str] = []
    brackets: list[_List] = []
    lists = 0  # of the open brackets, those that may enclose a list
    for token in _TOKEN.findall(text):
        if token in "{[":
            lists += token == "{"
            brackets.append(_List(token, len(parts)))
        elif token == "|" and brackets:
            brackets[-1].bars.append(len(parts))
        parts.append(token)
        if token == "]" and brackets and brackets[-1].kind == "[":
            brackets.pop()
        elif token == "}" and lists:
            lists -= 1
            while (bracket := brackets.pop()).kind != "{":
                pass
            options, count = _options(parts, bracket)
            if options:
                parts[bracket.start :] = [choose(parts[bracket.start :], options, count)]
    return parts


def longest_choice(text: str) -> str:
    """Return a text with the longest options of its lists; lists in files stay as they are."""

    def longest(_: list[str], options: list[str], count: int) -> str:
        return ", ".join(sorted(options, key=len, reverse=True)[:count])

    return "".join(_replaced(text, longest))


def _as_written(parts: list[str], options: list[str], count: int) -> _Choices:
    choices = _Choices("".join(parts))
    choices.options = options
    choices.chosen = count
    return choices


def find_lists(text: str) -> list[str]:
    """Return the lists of a text as they are written, without those inside other ones."""
    parts = _replaced(text, _as_written)
    lists = [str(part) for part in parts if isinstance(part, _Choices)]
    rest = "".join(" " if isinstance(part, _Choices) else part for part in parts)
    return [*lists, *(match[0] for match in WILDCARD.finditer(rest))]


def options_of(text: str) -> tuple[list[str], int]:
    """Return the options of a list that `find_lists` found, and how many of them to choose.

    A list in a file is its own only option.
    """
    for part in _replaced(text, _as_written):
        if isinstance(part, _Choices):
            return part.options, part.chosen
    return [text], 1


def _count(parts: list[str], bracket: _List) -> re.Match[str] | None:
    """Match the number of choices that a list may begin with, such as `2$$`.

    Only as many parts are joined as can hold it. Joining all parts after each bracket would take
    quadratic time for deeply nested brackets.
    """
    beginning, place = "", bracket.start + 1
    while len(beginning) < _COUNT_SIZE and place < len(parts):
        beginning = (beginning + parts[place]).lstrip()
        place += 1
    return _COUNT.match(beginning)


def _options(parts: list[str], bracket: _List) -> tuple[list[str], int]:
    """Return the options between a bracket and the last part, and how many of them to choose.

    There are none if the bracket encloses no list.
    """
    count = _count(parts, bracket)
    if count is None and not bracket.bars:
        return [], 0
    ends = [bracket.start, *bracket.bars, len(parts) - 1]
    options = ["".join(parts[a + 1 : b]) for a, b in pairwise(ends)]
    if count is not None:
        options[0] = options[0].lstrip()[count.end() :]
    return options, min(1 if count is None else int(count[1]), len(options))


def _too_long() -> InputError:
    return InputError(
        f"the lists in a prompt make it longer than {MAX_TEXT} characters; use shorter ones"
    )


def digest_of_lists(folder: Path) -> str:
    """Return a digest of the lists in a folder, the same for the same lists.

    They are read again only if one of the files has changed.
    """
    files = sorted(file for file in folder.rglob("*.txt") if file.is_file())[:MAX_FILES]
    return _digest_of(folder, tuple((file, version_of(file.stat())) for file in files))


@lru_cache(maxsize=1)
def _digest_of(folder: Path, files: tuple[tuple[Path, Version], ...]) -> str:
    digests: list[tuple[str, str]] = []
    for name in [file.relative_to(folder).with_suffix("").as_posix() for file, _ in files]:
        with suppress(InputError):
            lines = "\n".join(read_lines(folder, name))
            digests.append((name, hashlib.sha256(lines.encode()).hexdigest()))
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()


def read_lines(folder: Path | None, name: str) -> Sequence[str]:
    """Return the lines of a list's file without blank ones and those that begin with #.

    Raises:
        InputError: if the list has no file that can be used; the message says why.
    """
    if folder is None:
        raise InputError(
            f"the prompt names the list __{name}__, but there is no folder of lists; set"
            " wildcard_dir, or leave the list out"
        )
    if _NAME.fullmatch(name) is None:
        raise InputError(
            f"__{name}__ cannot name a list; expected letters, digits, - and _, with / between"
            " folders"
        )
    reason, lines = "is not there", ()
    try:
        file = (folder / f"{name}.txt").resolve(strict=True)
        status = file.stat()
        if not file.is_relative_to(folder.resolve()):
            reason = "is outside of the folder of lists"
        elif not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE:
            reason = f"is not a text file of at most {MAX_FILE >> 20} MB"
        else:
            reason, lines = "has no lines of text", _lines(file, version_of(status))
    except FileNotFoundError:
        pass
    except (OSError, ValueError):
        reason = "cannot be read as text in UTF-8"
    if not lines:
        raise InputError(f"the file {name}.txt of the list __{name}__ {reason}")
    return lines


@lru_cache(maxsize=KEPT_FILES)
def _lines(file: Path, _: Version) -> tuple[str, ...]:
    """Return the lines of a version of a file; a file that holds NUL is no text, and has none."""
    with file.open("rb") as stream:
        text = stream.read(MAX_FILE).decode("utf-8-sig")
    lines = [] if "\0" in text else map(str.strip, text.splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))
