"""How prompts are read, for people: their texts with weights, LoRAs and lists."""

from collections.abc import Collection
from dataclasses import dataclass

from pipeline.errors import InputError
from pipeline.text.emphasis import Section
from pipeline.text.loras import parse_loras, take_tags
from pipeline.text.prompt_syntax import (
    A1111,
    PLAIN,
    SYNTAXES,
    ignored_parts,
    read_prompt,
    without_comments,
)
from pipeline.text.wildcards import MAX_TEXT, WrittenList, find_lists, longest_choice


@dataclass(frozen=True)
class Text:
    """One of the texts that a prompt has during a run.

    Attributes:
        steps: the steps that use it, counted from 1.
        sections: its fragments with their weights, in the sections between its breaks.
    """

    steps: tuple[int, ...]
    sections: tuple[Section, ...]


@dataclass(frozen=True)
class Explanation:
    """How a prompt is read.

    Attributes:
        texts: the different texts of a run, in the order in which they come first. They have the
            longest options of lists, whose choice is the seed's.
        loras: the weights in the UNet and in the text encoders of the LoRAs that it names.
        lists: the lists that it has, as they are written.
        ignored: its parts that have no effect, as they are written, apart from comments.
    """

    texts: tuple[Text, ...]
    loras: dict[str, tuple[float, float]]
    lists: tuple[WrittenList, ...]
    ignored: tuple[str, ...] = ()


def explain(
    prompt: str, prompt_syntax: str, steps: int, lora_names: Collection[str] | None = None
) -> Explanation:
    """Return how any prompt is read in a run of `steps` steps, at least 1. No file is read.

    Args:
        prompt: the prompt.
        prompt_syntax: its syntax.
        steps: the number of steps.
        lora_names: the names of the LoRAs that there are; None if they are not known.

    Raises:
        InputError: if there is no such syntax, or the prompt has too many different texts.
    """
    if prompt_syntax not in SYNTAXES:
        syntaxes = " or ".join(map(repr, SYNTAXES))
        raise InputError(f"prompt_syntax is {prompt_syntax!r}; expected {syntaxes}")
    loras, lists, ignored = "", [], []
    if prompt_syntax == A1111:
        prompt, loras = take_tags(without_comments(prompt), lora_names)
        prompt, ignored = ignored_parts(prompt)
        lists, prompt = find_lists(prompt), longest_choice(prompt)
    steps_of_sections: dict[tuple[Section, ...], list[int]] = {}
    step = 0
    for until, sections in read_prompt(prompt, prompt_syntax, steps):
        steps_of_sections.setdefault(sections, []).extend(range(step + 1, until + 1))
        step = until
    texts = tuple(Text(tuple(numbers), sections) for sections, numbers in steps_of_sections.items())
    return Explanation(texts, parse_loras(loras), tuple(lists), tuple(ignored))


def reads_as_plain(prompt: str) -> bool:
    """Return whether a prompt means the same in all syntaxes.

    One of more than `MAX_TEXT` characters is not read, and counts as one that does not.
    """
    if len(prompt) > MAX_TEXT:
        return False
    return not prompt or explain(prompt, A1111, 1) == explain(prompt, PLAIN, 1)
