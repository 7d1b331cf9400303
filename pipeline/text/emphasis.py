"""Weights of a prompt's words and breaks between its chunks, in AUTOMATIC1111's syntax.

`(x)` weighs x by 1.1, `[x]` by 1 / 1.1 and `(x:1.3)` by 1.3; nested weights multiply. A backslash
makes a bracket literal, `BREAK` begins a new chunk, and a bracket that is not closed holds to the
end. Source: `parse_prompt_attention` in
https://github.com/AUTOMATIC1111/stable-diffusion-webui/blob/master/modules/prompt_parser.py
"""

import re
from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

STEP = 1.1  # the weight of round brackets; square ones divide by it
MAX_EMPHASIS = 100.0  # larger weights count as this, so that all numbers stay finite
MAX_DEPTH = 100  # brackets of one kind inside each other that weigh a text; more weigh nothing
# The quantifiers are possessive, so that no text takes more than linear time.
_TOKEN = re.compile(
    r"\\[()\[\]\\]?+|[(\[]|:\s*+([+-]?(?:[0-9]++\.?+[0-9]*+|\.[0-9]++))\s*+\)|[)\]]"
    r"|[^\\()\[\]:]++|:"
)


class Fragment(NamedTuple):
    """A part of a prompt, all of whose words have one weight."""

    text: str
    weight: float


# The fragments between two breaks; without a break, a prompt has one section.
Section: TypeAlias = tuple[Fragment, ...]


class _Reader:
    """The state of reading: texts in order, where breaks are, and the brackets so far."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.breaks: list[int] = [0]
        self.factors: list[tuple[slice, float]] = []  # by which texts' weights are multiplied
        self._open: dict[str, list[int]] = {"(": [], "[": []}  # the two kinds need not nest

    def read(self, prompt: str) -> None:
        for match in _TOKEN.finditer(prompt):
            token, weight = match[0], match[1]
            if token.startswith("\\"):
                self.texts.append(token[1:])
            elif token in "([":
                self._open[token].append(len(self.texts))
            elif weight is not None and self._open["("]:
                self._close("(", float(weight))
            elif token == ")" and self._open["("]:
                self._close("(", STEP)
            elif token == "]" and self._open["["]:
                self._close("[", 1 / STEP)
            else:
                self._write(token)
        for bracket, factor in (("(", STEP), ("[", 1 / STEP)):
            while self._open[bracket]:
                self._close(bracket, factor)

    def _close(self, bracket: str, factor: float) -> None:
        start = self._open[bracket].pop()
        if len(self._open[bracket]) < MAX_DEPTH:
            self.factors.append((slice(start, len(self.texts)), factor))

    def _write(self, token: str) -> None:
        first, *rest = re.split(r"\bBREAK\b", token)
        self.texts.append(first.rstrip() if rest else first)
        for i, text in enumerate(rest, start=1):
            self.breaks.append(len(self.texts))
            self.texts.append(text.strip() if i < len(rest) else text.lstrip())

    def weights(self) -> np.ndarray:
        """Return the weight of each text."""
        weights = np.ones(len(self.texts))
        with np.errstate(over="ignore", invalid="ignore"):
            for texts, factor in self.factors:
                weights[texts] *= factor
        return np.clip(np.nan_to_num(weights), -MAX_EMPHASIS, MAX_EMPHASIS)


def read_emphasis(prompt: str) -> tuple[Section, ...]:
    """Return the fragments of any text, in sections between its breaks.

    Neighbours of equal weight are joined, because words are tokenised together.
    """
    reader = _Reader()
    reader.read(prompt)
    fragments = [*map(Fragment, reader.texts, reader.weights().tolist())]
    ends = [*reader.breaks, len(fragments)]
    return tuple(tuple(_joined(fragments[start:end])) for start, end in pairwise(ends))


def _joined(fragments: list[Fragment]) -> Iterator[Fragment]:
    for weight, group in groupby(fragments, key=lambda fragment: fragment.weight):
        if text := "".join(fragment.text for fragment in group):
            yield Fragment(text, weight)
