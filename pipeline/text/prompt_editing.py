"""Prompts that change during a run, in AUTOMATIC1111's syntax.

`[from:to:when]` changes after a step, or after a share of all steps if `when` has a point;
`[to:when]` adds and `[from::when]` removes. `[a|b]` alternates from step to step. Source: the
grammar in https://github.com/AUTOMATIC1111/stable-diffusion-webui/blob/master/modules/prompt_parser.py

Brackets that do not fit this syntax are text, which `emphasis` reads. A text that the grammar does
not take at all, with a `|` outside of square brackets or a backslash at its end, does not change.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import NamedTuple, TypeAlias

_TOKEN = re.compile(r"[^\\\[\]():|]++|\\.|[\s\S]")
_WHEN = re.compile(r"\s*+([+-]?(?:[0-9]++\.?+[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?+)\s*+")
MAX_STEPS = 1000  # a change after so many steps never comes
_OPENER = {")": "(", "]": "["}


class Span(NamedTuple):
    """The text of a prompt for the steps after the span before, up to step `until`."""

    until: int
    text: str


@dataclass(frozen=True)
class _Edit:
    """`[before:after:when]`: the parts up to step `until`, and those after it."""

    before: "_Parts"
    after: "_Parts"
    until: int

    def at(self, step: int) -> "_Parts":
        return self.before if step <= self.until else self.after


@dataclass(frozen=True)
class _Alternation:
    """`[a|b]`: the parts for the first step, the second and so on."""

    options: Sequence["_Parts"]

    def at(self, step: int) -> "_Parts":
        return self.options[(step - 1) % len(self.options)]


_Parts: TypeAlias = Sequence[str | _Edit | _Alternation]


@dataclass
class _Bracket:
    """A bracket that is open.

    Attributes:
        kind: "(" or "[".
        start: its place among the parts.
        colons, bars: the places of these signs directly inside it.
        is_odd: whether another bracket inside it does not fit.
    """

    kind: str
    start: int
    colons: list[int] = field(default_factory=list)
    bars: list[int] = field(default_factory=list)
    is_odd: bool = False


class _Reader:
    """The state of reading.

    Attributes:
        parts: the parts so far.
        fits: whether the grammar takes the text.
        changes: the places, among the tokens, of the steps or shares at which the prompt changes.
    """

    def __init__(self, steps: int) -> None:
        self.parts: list[str | _Edit | _Alternation] = []
        self.fits = True
        self.changes: list[int] = []
        self._open: list[_Bracket] = []
        self._steps = steps

    def read(self, prompt: str) -> None:
        for place, token in enumerate(_TOKEN.findall(prompt)):
            if token in _OPENER.values():
                self._open.append(_Bracket(token, len(self.parts)))
            bracket = self._open[-1] if self._open else None
            if token == ":" and bracket:
                bracket.colons.append(len(self.parts))
            elif token == "|":
                self.fits &= bracket is not None
                if bracket:
                    bracket.bars.append(len(self.parts))
            self.fits &= token != "\\"
            self.parts.append(token)
            if token in _OPENER and bracket:
                self._close(bracket, token)
                if isinstance(self.parts[-1], _Edit):
                    self.changes.append(place - 1)
        self.fits &= not any(bracket.bars for bracket in self._open)

    def _close(self, bracket: _Bracket, token: str) -> None:
        """Replace the parts from a bracket on by what they mean, or leave them as text."""
        if bracket.kind != _OPENER[token]:
            bracket.is_odd = True
            return
        self._open.pop()
        meaning = None if bracket.is_odd or token == ")" else self._meaning(bracket)
        if meaning is not None:
            self.parts[bracket.start :] = [meaning]
            return
        fits = not bracket.is_odd and not bracket.bars and len(bracket.colons) <= (token == ")")
        self.fits &= not bracket.bars
        if not fits and self._open:
            self._open[-1].is_odd = True

    def _meaning(self, bracket: _Bracket) -> _Edit | _Alternation | None:
        signs = bracket.colons or bracket.bars
        if (bracket.colons and bracket.bars) or not signs:
            return None
        ends = [bracket.start, *signs, len(self.parts) - 1]
        segments = [self.parts[start + 1 : end] for start, end in pairwise(ends)]
        if bracket.bars:
            return _Alternation(segments)
        *prompts, last = segments
        match = _WHEN.fullmatch(last[0]) if len(last) == 1 and isinstance(last[0], str) else None
        if match is None or len(prompts) > 2:
            return None
        return _Edit(prompts[0] if len(prompts) == 2 else (), prompts[-1], self._step(match[1]))

    def _step(self, moment: str) -> int:
        number = float(moment) * (self._steps if "." in moment else 1)
        return int(min(max(number, 0), self._steps))


def read_spans(prompt: str, steps: int) -> list[Span]:
    """Return the texts that a prompt has during a run of `steps` steps, in order."""
    reader = _Reader(steps)
    reader.read(prompt)
    if not reader.fits or all(isinstance(part, str) for part in reader.parts):
        return [Span(steps, prompt)]
    texts = [(step, _text(reader.parts, step)) for step in range(1, steps + 1)]
    groups = [[*group] for _, group in groupby(texts, key=lambda pair: pair[1])]
    return [Span(*group[-1]) for group in groups]


def after_run(prompt: str, steps: int) -> str:
    """Return the prompt of a second run, which goes on with the changes of a run of `steps` steps.

    As in AUTOMATIC1111, shares of 1 and more, and steps after the first run's, are in the second.
    """
    reader, tokens = _Reader(steps), _TOKEN.findall(prompt)
    reader.read(prompt)
    for place in reader.changes:
        is_share = "." in tokens[place]
        later = min(max(float(tokens[place]) - (1 if is_share else steps), 0), MAX_STEPS)
        tokens[place] = str(round(later, 4) if is_share else int(later))
    return "".join(tokens)


def _text(parts: _Parts, step: int) -> str:
    """Return the text of parts at a step, counted from 1; without recursion, however deep."""
    pieces: list[str] = []
    stack = [iter(parts)]
    while stack:
        part = next(stack[-1], None)
        if part is None:
            stack.pop()
        elif isinstance(part, str):
            pieces.append(part)
        else:
            stack.append(iter(part.at(step)))
    return "".join(pieces)
