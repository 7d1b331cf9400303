"""The syntaxes of prompts: plain text, and AUTOMATIC1111's."""

from typing import NamedTuple

from pipeline.errors import InputError
from pipeline.text import prompt_editing
from pipeline.text.emphasis import Fragment, Section, read_emphasis

PLAIN, A1111 = "plain", "a1111"
SYNTAXES = (PLAIN, A1111)
MAX_TEXTS = 4  # different texts that a prompt may have during a run


class Reading(NamedTuple):
    """A prompt as it is read for the steps after the reading before, up to step `until`."""

    until: int
    sections: tuple[Section, ...]


def read_prompt(prompt: str, syntax: str, steps: int) -> tuple[Reading, ...]:
    """Return how any prompt is read during a run of `steps` steps, in order.

    Odd brackets are read as AUTOMATIC1111 reads them, and are no error.

    Args:
        prompt: the prompt, without the tags of LoRAs.
        syntax: one of `SYNTAXES`.
        steps: the number of steps, at least 1.

    Raises:
        InputError: if the prompt has more than `MAX_TEXTS` different texts during the run.
    """
    if syntax == PLAIN:
        return (Reading(steps, ((Fragment(prompt, 1.0),),)),)
    spans = prompt_editing.read_spans(prompt, steps)
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


def after_run(prompt: str, syntax: str, steps: int) -> str:
    """Return the prompt of a second run: its changes go on after a first run of `steps` steps."""
    return prompt if syntax == PLAIN else prompt_editing.after_run(prompt, steps)


def _text(reading: Reading) -> str:
    return "\n".join("".join(text for text, _ in section) for section in reading.sections)
