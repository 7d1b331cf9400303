"""The prompts of a drawing as token ids and weights, for every text that they have in a run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

from pipeline.errors import raise_if_cancelled
from pipeline.request import Request
from pipeline.setting_kinds import MAX_SEED
from pipeline.text.chunks import Break
from pipeline.text.embeddings import Placement
from pipeline.text.emphasis import Section
from pipeline.text.prompt_syntax import A1111, read_prompt
from pipeline.text.tokenizer import Part, Tokenizers, Tokens, longest_end
from pipeline.text.wildcards import Resolver, line_budget

# A text that a prompt has for some steps.
_Text = tuple[Section, ...]


@dataclass(frozen=True)
class Prompts:
    """The prompts of n pictures, each with up to V different texts in turn.

    Attributes:
        input_ids: for each text encoder `[V, 2, n, C * L]` int32, the negative prompts first.
        weights: how much each token counts, likewise float32.
        blank: `[V, 2, n]` bool, whether a text is blank.
        chunks: `[V, 2, n]` int32, the number of chunks of a text, at most C.
        texts: `[n]`, the number of texts of each picture's prompt or negative prompt, at most V.
        of_step: `[n, steps, 2]`, which of the V texts each step uses for the negative prompt and
            for the prompt.
        truncated, negative_truncated: for each picture the end that does not fit, or "".
    """

    input_ids: tuple[np.ndarray, ...]
    weights: tuple[np.ndarray, ...]
    blank: np.ndarray
    chunks: np.ndarray
    texts: np.ndarray
    of_step: np.ndarray
    truncated: list[str]
    negative_truncated: list[str]


def resolved(request: Request, folder: Path | None, cancelled: Event | None = None) -> Request:
    """Return a request with a choice in place of each list in its prompts, by the pictures' seeds.

    Args:
        request: a checked request; one in plain syntax stays as it is.
        folder: the folder of the lists that prompts name; None for none.
        cancelled: an event; once it is set, no more is read.

    Raises:
        Cancelled: if `cancelled` is set.
        InputError: if a list cannot be used, or a prompt becomes too long.
    """
    if request.prompt_syntax != A1111:
        return request

    budget = line_budget(cancelled)

    def choose(prompt: str, seed: int) -> str:
        raise_if_cancelled(cancelled)
        return Resolver(seed, folder, budget).resolve(prompt)

    def each(prompts: Sequence[str], stream: int) -> tuple[str, ...]:
        return tuple(map(choose, prompts, (stream + seed for seed in request.seeds)))

    # The choices in negative prompts are independent of those in prompts.
    prompts, negative = each(request.prompts, 0), each(request.negative_prompts, MAX_SEED + 1)
    return replace(request, prompt=prompts, negative_prompt=negative)


def read_prompts(
    request: Request,
    steps: int,
    tokenizers: Tokenizers,
    placement: Placement,
    chunks: int = 1,
    cancelled: Event | None = None,
) -> Prompts:
    """Read and tokenise a checked request's prompts for a run of some steps.

    `placement` notes the embeddings that they name. A prompt may have up to `chunks` chunks. Once
    `cancelled` is set, no more is read.

    Raises:
        Cancelled: if `cancelled` is set.
        InputError: if a prompt has too many different texts, or too many embeddings.
    """
    tokens: dict[_Text, list[Tokens]] = {}

    def tokens_of(sections: _Text) -> list[Tokens]:
        if sections not in tokens:
            raise_if_cancelled(cancelled)
            tokens[sections] = tokenizers.tokens(placed(sections, placement), chunks)
        return tokens[sections]

    def texts_of(prompt: str) -> tuple[list[_Text], list[int]]:
        raise_if_cancelled(cancelled)
        return _texts(prompt, request.prompt_syntax, steps)

    runs = [
        [texts_of(prompt) for prompt in half]
        for half in (request.negative_prompts, request.prompts)
    ]
    texts = [[row for row, _ in half] for half in runs]
    of_step = np.array([[used for _, used in half] for half in runs])  # [2, n, steps]
    counts = np.array([[*map(len, half)] for half in texts]).max(0)
    padded_texts = [[row + row[-1:] * (counts.max() - len(row)) for row in half] for half in texts]
    all_tokens = [[[tokens_of(text) for text in row] for row in half] for half in padded_texts]

    def arranged(value: Callable[[Tokens], Any]) -> tuple[np.ndarray, ...]:
        """Return a value of all texts for each text encoder, `[V, 2, n, ...]`."""
        values = (
            np.array([[[value(text[i]) for text in row] for row in half] for half in all_tokens])
            for i in range(len(all_tokens[0][0][0]))
        )
        return tuple(np.moveaxis(array, 2, 0) for array in values)

    blank = np.array([[[*map(_is_blank, row)] for row in half] for half in padded_texts])
    ends = [[max(map(longest_end, row), key=len) for row in half] for half in all_tokens]
    return Prompts(
        input_ids=arranged(lambda tokens: tokens.input_ids),
        weights=arranged(lambda tokens: tokens.weights),
        blank=np.moveaxis(blank, 2, 0),
        # Text encoders with different tokenizers may need different numbers.
        chunks=np.max(arranged(lambda tokens: tokens.chunks), axis=0).astype(np.int32),
        texts=counts,
        of_step=np.moveaxis(of_step, 0, -1),
        truncated=ends[1],
        negative_truncated=ends[0],
    )


def placed(sections: Sequence[Section], placement: Placement) -> list[Part]:
    """Return the parts of a prompt, with a break between its sections."""
    parts: list[Part] = []
    for i, section in enumerate(sections):
        parts += [Break()] if i else []
        parts += [part for fragment in section for part in placement.place(*fragment)]
    return parts


def _texts(prompt: str, syntax: str, steps: int) -> tuple[list[_Text], list[int]]:
    """Return the different texts of a prompt, and which of them each step uses."""
    step_texts: list[_Text] = []
    for until, sections in read_prompt(prompt, syntax, steps):
        step_texts += [sections] * (until - len(step_texts))
    texts = [*dict.fromkeys(step_texts)]
    return texts, [*map(texts.index, step_texts)]


def _is_blank(sections: Sequence[Section]) -> bool:
    return not any(fragment.text.strip() for section in sections for fragment in section)
