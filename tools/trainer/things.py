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
        emoji: its character.
        words: what people call it, the usual word first.
    """

    kind: str
    icon: str
    emoji: str
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        """The usual word for it."""
        return self.words[0]


@cache
def all_things() -> tuple[Thing, ...]:
    """Return all things, in the order in which they are learnt."""
    lines = NAMES.read_text(encoding="utf-8").splitlines()
    return tuple(_thing(line) for line in lines if line and not line.startswith("#"))


def _thing(line: str) -> Thing:
    kind, icon, emoji, words = line.split(" ", 3)
    return Thing(kind, icon, emoji, tuple(words.split(", ")))
