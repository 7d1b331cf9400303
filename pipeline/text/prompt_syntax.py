"""The syntaxes of prompts: plain text, and AUTOMATIC1111's.

In AUTOMATIC1111's a `#` begins a comment, which ends with its line. `a AND b :0.5` is two prompts,
whose predictions AUTOMATIC1111 adds with weights. Here, a step predicts for one prompt: the parts
are read as one, with a break between them, and a part's weight is that of its words. Sources:
https://github.com/AUTOMATIC1111/stable-diffusion-webui/blob/master/modules/processing_scripts/comments.py
https://github.com/AUTOMATIC1111/stable-diffusion-webui/blob/master/modules/prompt_parser.py
"""

import re
from typing import NamedTuple

from pipeline.errors import InputError
from pipeline.text import prompt_editing
from pipeline.text.emphasis import Fragment, Section, read_emphasis
from pipeline.text.loras import drop_tags

PLAIN, A1111 = "plain", "a1111"
SYNTAXES = (PLAIN, A1111)
MAX_TEXTS = 4  # different texts that a prompt may have during a run
_COMMENT = re.compile(r"(?:(?<!\s)\s++)?#[^\n]*")
_AND = re.compile(r"\bAND\b")
_PART_WEIGHT = re.compile(r":\s*+([+-]?(?:[0-9]++\.?+[0-9]*+|\.[0-9]++))\s*+\Z")


class Reading(NamedTuple):
    """A prompt as it is read for the steps after the reading before, up to step `until`."""

    until: int
    sections: tuple[Section, ...]


def read_prompt(prompt: str, syntax: str, steps: int) -> tuple[Reading, ...]:
    """Return how any prompt is read during a run of `steps` steps, in order.

    Odd brackets are read as AUTOMATIC1111 reads them, and are no error.

    Args:
        prompt: the prompt, without tags, comments and lists.
        syntax: one of `SYNTAXES`.
        steps: the number of steps, at least 1.

    Raises:
        InputError: if the prompt has more than `MAX_TEXTS` different texts during the run.
    """
    if syntax == PLAIN:
        return (Reading(steps, ((Fragment(prompt, 1.0),),)),)
    spans = prompt_editing.read_spans(_joined(prompt)[0], steps)
    texts = {span.text for span in spans}
    if len(texts) > MAX_TEXTS:
        raise InputError(
            f"the prompt changes between {len(texts)} different texts in {steps} steps; expected"
            f" at most {MAX_TEXTS}, with fewer [from:to:when] and [a|b]"
        )
    sections_of = {text: read_emphasis(text) for text in texts}
    return tuple(Reading(span.until, sections_of[span.text]) for span in spans)


def texts_of(prompt: str, syntax: str, steps: int) -> list[str]:
    """Return the different texts that a prompt has in a run, without the signs of its syntax.

    Raises:
        InputError: as `read_prompt`.
    """
    return [*dict.fromkeys(map(_text, read_prompt(prompt, syntax, steps)))]


def comments(prompt: str) -> list[str]:
    """Return the comments of a prompt in AUTOMATIC1111's syntax, as they are written."""
    return [comment.strip() for comment in _COMMENT.findall(prompt)]


def without_comments(prompt: str) -> str:
    """Return a prompt in AUTOMATIC1111's syntax without its comments."""
    return _COMMENT.sub("", prompt).strip() if "#" in prompt else prompt


def ignored_parts(prompt: str) -> tuple[str, list[str]]:
    """Return a prompt in AUTOMATIC1111's syntax without tags, and all that has no effect in it.

    That is the tags, `AND`, and parts between `AND` with a weight of 0 or less.
    """
    rest, tags = drop_tags(prompt)
    return rest, [*tags, *_joined(rest)[1]]


def _joined(prompt: str) -> tuple[str, list[str]]:
    """Return the parts between `AND` as one prompt, and what is left out of it."""
    parts = _AND.split(prompt)
    if len(parts) == 1:
        return prompt, []
    weighted = [(part, *[*_PART_WEIGHT.split(part), "1"][:2]) for part in parts]
    texts = [
        text.strip() if weight == "1" else f"({text.strip()}:{weight})"
        for _, text, weight in weighted
        if float(weight) > 0
    ]
    ignored = [part.strip() for part, _, weight in weighted if float(weight) <= 0]
    return " BREAK ".join(texts), ["AND", *ignored]


def after_run(prompt: str, syntax: str, steps: int) -> str:
    """Return the prompt of a second run: its changes go on after a first run of `steps` steps."""
    return prompt if syntax == PLAIN else prompt_editing.after_run(prompt, steps)


def _text(reading: Reading) -> str:
    return "\n".join("".join(text for text, _ in section) for section in reading.sections)
