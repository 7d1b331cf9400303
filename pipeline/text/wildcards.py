"""Lists in prompts, from which a seed chooses: `{red|blue}`, `{2$$a|b|c}` and `__colour__`.

`{a|b}` becomes one of its options and `{2$$a|b|c}` two different ones, with a comma between them.
`{1-2$$ and $$a|b}` becomes one or two, with " and " between them. In `{3::a|b}`, a is three times
as likely as b. `__colour__` becomes a line of the file colour.txt in a folder, and
`{2$$__colour__}` two different lines. Lists may be nested, and lines may name other files. A name
without a file is text. The syntax is that of
https://github.com/adieyal/sd-dynamic-prompts/blob/main/docs/SYNTAX.md
"""

import hashlib
import json
import re
import stat
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, pairwise
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
# How many options to choose, and what comes between them.
_COUNT = re.compile(r"(?:([0-9]{1,2})|([0-9]{0,2})-([0-9]{0,2}))\$\$(?:([^$|{}]{0,20})\$\$)?")
_COUNT_SIZE = 29  # characters that it matches at most
_MOST = 99  # options that it can ask for
_NEVER = 1e-9  # in place of a weight of 0, so that there is always something to choose
_WEIGHT = re.compile(r"\s*+([0-9]{1,9}+(?:\.[0-9]{0,9}+)?|\.[0-9]{1,9}+)\s*+::")
_NAME = re.compile(r"[\w-]++(?:/[\w-]++)*+")
# A name begins and ends with no underscore or space, so that "____" is text.
WILDCARD = re.compile(r"__(?=[^\s_])((?:(?!__)\S){1,100}+)__")
# Lists that are not there, and variables, which there are none of: both are read as text.
UNRESOLVED = re.compile(rf"{WILDCARD.pattern}|\$\{{[^{{}}]*+\}}")


@dataclass(frozen=True)
class Choice:
    """The options of a list, and how to choose from them.

    Attributes:
        options: the options. The only option of a list in a file is its name.
        ends: for each option the sum of its weight and of those before it; more weight is likelier.
        low, high: how many to choose at least, and at most; there may be fewer.
        separator: what comes between them.
    """

    options: Sequence[str]
    ends: Sequence[float]
    low: int = 1
    high: int = 1
    separator: str = ", "

    @property
    def file(self) -> str | None:
        """The name of the file that has the options; None if they are here."""
        match = WILDCARD.fullmatch(self.options[0].strip()) if len(self.options) == 1 else None
        return match and match[1]


@dataclass
class _List:
    """An open bracket: the place of its first part, and those of the bars directly inside it."""

    kind: str
    start: int
    bars: list[int] = field(default_factory=list)


def line_budget(cancelled: Event | None = None) -> Iterator[bool]:
    """Yield True for each line that the prompts of a request may take, and each list in them.

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
        chosen = "".join(_replaced(text, lambda _, choice: self._choose(choice, depth)))
        result = WILDCARD.sub(lambda match: self._choose(Choice([match[0]], [1]), depth), chosen)
        if len(result) > max(MAX_TEXT, len(text)):
            raise _too_long()
        return result

    def _choose(self, choice: Choice, depth: int) -> str:
        if choice.file is None:
            return choice.separator.join(self._pick(choice))
        lines = read_lines(self._folder, choice.file)
        if not lines:
            return choice.options[0]
        chosen = self._pick(replace(choice, options=lines, ends=range(1, len(lines) + 1)))
        return choice.separator.join(self._line(line, choice.file, depth) for line in chosen)

    def _pick(self, choice: Choice) -> list[str]:
        """Return different options, in a way that Python's versions share."""
        low, high = (min(count, len(choice.options)) for count in (choice.low, choice.high))
        count = low + int(self._random.random() * (high - low + 1)) if low < high else low
        ends, places = choice.ends, list[int]()
        for _ in range(count):
            weights = {place: ends[place] - (ends[place - 1] if place else 0) for place in places}
            point = self._random.random() * (ends[-1] - sum(weights.values()))
            for place in sorted(places):  # steps over those that were chosen
                if point >= ends[place] - weights[place]:
                    point += weights[place]
            places.append(min(bisect_right(ends, point), len(ends) - 1))
        return [choice.options[place] for place in places]

    def _line(self, line: str, name: str, depth: int) -> str:
        costs = range(1 + line.count("{"))
        if depth >= MAX_DEPTH or not all(next(self._budget, False) for _ in costs):
            raise InputError(
                f"the list __{name}__ is nested more than {MAX_DEPTH} files deep, or the prompts"
                f" take more than {MAX_LINES} lines from files, with the lists in them; use fewer"
                " lists, and let no file lead back to itself"
            )
        return self.resolve(line, depth + 1)


class WrittenList(str):
    """A list as it is written, with the choice that it is."""

    choice: Choice


def _replaced(text: str, choose: Callable[[list[str], Choice], str]) -> list[str]:
    """Return the parts of a text, with what `choose` returns in place of each list.

    Inner lists come before those around them. `choose` gets the parts of a list, and the choice
    that it is. Brackets that enclose no list stay as they are.
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
            if choice := _choice(parts, bracket):
                parts[bracket.start :] = [choose(parts[bracket.start :], choice)]
    return parts


def longest_choice(text: str) -> str:
    """Return a text with the longest options of its lists; lists in files stay as they are."""

    def longest(_: list[str], choice: Choice) -> str:
        return choice.separator.join(sorted(choice.options, key=len, reverse=True)[: choice.high])

    return "".join(_replaced(text, longest))


def _as_written(parts: list[str], choice: Choice) -> WrittenList:
    text = WrittenList("".join(parts))
    text.choice = choice
    return text


def find_lists(text: str) -> list[WrittenList]:
    """Return the lists of a text, without those inside other ones."""
    parts = _replaced(text, _as_written)
    lists = [part for part in parts if isinstance(part, WrittenList)]
    rest = "".join(" " if isinstance(part, WrittenList) else part for part in parts)
    names = [match[0] for match in WILDCARD.finditer(rest)]
    return [*lists, *(_as_written([name], Choice([name], [1])) for name in names)]


def _count(parts: list[str], bracket: _List) -> re.Match[str] | None:
    """Match the number of choices that a list may begin with, such as `2$$` or `1-2$$ and $$`.

    Only as many parts are joined as can hold it. Joining all parts after each bracket would take
    quadratic time for deeply nested brackets.
    """
    beginning, place = "", bracket.start + 1
    while len(beginning) < _COUNT_SIZE and place < len(parts):
        beginning = (beginning + parts[place]).lstrip()
        place += 1
    return _COUNT.match(beginning)


def _choice(parts: list[str], bracket: _List) -> Choice | None:
    """Return the choice between a bracket and the last part; None if they enclose no list."""
    count = _count(parts, bracket)
    if count is None and not bracket.bars:
        return None
    ends = [bracket.start, *bracket.bars, len(parts) - 1]
    texts = ["".join(parts[a + 1 : b]) for a, b in pairwise(ends)]
    exact, lowest, highest, separator = count.groups() if count else ("1", None, None, None)
    texts[0] = texts[0].lstrip()[count.end() :] if count else texts[0]
    low, high = sorted((int(exact or lowest or 1), int(exact or highest or _MOST)))
    options, weights = zip(*map(_weighed, texts), strict=True)
    return Choice(
        options, [*accumulate(weights)], low, high, ", " if separator is None else separator
    )


def _weighed(option: str) -> tuple[str, float]:
    """Return an option without its weight, and the weight: 1 where there is none."""
    match = _WEIGHT.match(option)
    return (option, 1.0) if match is None else (option[match.end() :], float(match[1]) or _NEVER)


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
            if lines := "\n".join(read_lines(folder, name)):
                digests.append((name, hashlib.sha256(lines.encode()).hexdigest()))
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()


def read_lines(folder: Path | None, name: str) -> Sequence[str]:
    """Return the lines of a list's file without blank ones and those that begin with #.

    There are none if the folder, or the file, is not there, or if no file can have this name.

    Raises:
        InputError: if the file cannot be used; the message says why.
    """
    if folder is None or _NAME.fullmatch(name) is None:
        return ()
    lines = ()
    try:
        file = (folder / f"{name}.txt").resolve(strict=True)
        status = file.stat()
        if not file.is_relative_to(folder.resolve()):
            reason = "is outside of the folder of lists"
        elif not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE:
            reason = f"is not a text file of at most {MAX_FILE >> 20} MB"
        else:
            reason, lines = "has no lines of text", _lines(file, version_of(status))
    except (FileNotFoundError, NotADirectoryError):
        return ()
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
