"""The things that the miniature knows, from `names.txt`."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

NAMES = Path(__file__).parent / "names.txt"


@dataclass(frozen=True)
class Thing:
    """Something that can be drawn.

    Attributes:
        kind: what reports group it under: "animal", "food" and so on.
        icon: its icon's name in all icon sets.
        signs: its emoji, with and without the selector of coloured signs, which many leave out.
        words: what people call it, the usual word first.
    """

    kind: str
    icon: str
    signs: tuple[str, ...]
    words: tuple[str, ...]


@cache
def all_things() -> tuple[Thing, ...]:
    """Return all things, in the order in which they are learnt."""
    lines = NAMES.read_text(encoding="utf-8").splitlines()
    return tuple(_thing(line) for line in lines if line and not line.startswith("#"))


def _thing(line: str) -> Thing:
    kind, icon, emoji, words = line.split(" ", 3)
    signs = dict.fromkeys((emoji, emoji.replace("\ufe0f", "")))
    return Thing(kind, icon, tuple(signs), tuple(words.split(", ")))
