"""The prompts of a drawing as token ids and weights, for every text that they have in a run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pipeline.request import Request
from pipeline.setting_kinds import MAX_SEED
from pipeline.text.chunks import Break
from pipeline.text.embeddings import Placement
from pipeline.text.emphasis import Section
from pipeline.text.prompt_syntax import A1111, read_prompt
from pipeline.text.tokenizer import Part, Tokenizers, Tokens, longest_end
from pipeline.text.wildcards import Resolver

# A negative prompt and a prompt, as they are read for some steps.
_Pair = tuple[tuple[Section, ...], tuple[Section, ...]]


@dataclass(frozen=True)
class Prompts:
    """The prompts of n pictures, each with up to V different pairs of texts in turn.

    Attributes:
        input_ids: `[V, 2, n, E, C * L]` int32, the negative prompts first.
        weights: how much each token counts, `[V, 2, n, E, C * L]` float32.
        blank: `[V, 2, n]` bool, whether a text is blank.
        chunks: `[V, 2, n]` int32, the number of chunks of a text, at most C.
        of_step: `[n, steps]`, which of the V texts each step uses.
        truncated, negative_truncated: for each picture the end that does not fit, or "".
    """

    input_ids: np.ndarray
    weights: np.ndarray
    blank: np.ndarray
    chunks: np.ndarray
    of_step: np.ndarray
    truncated: list[str]
    negative_truncated: list[str]


def resolved(request: Request, folder: Path | None) -> Request:
    """Return a request with a choice in place of each list in its prompts, by the pictures' seeds.

    Args:
        request: a checked request; one in plain syntax stays as it is.
        folder: the folder of the lists that prompts name; None for none.

    Raises:
        InputError: if a list cannot be used, or a prompt becomes too long.
    """
    if request.prompt_syntax != A1111:
        return request

    def each(prompts: Sequence[str], stream: int) -> tuple[str, ...]:
        pairs = zip(prompts, request.seeds, strict=True)
        return tuple(Resolver(stream + seed, folder).resolve(prompt) for prompt, seed in pairs)

    # The choices in negative prompts are independent of those in prompts.
    prompts, negative = each(request.prompts, 0), each(request.negative_prompts, MAX_SEED + 1)
    return replace(request, prompt=prompts, negative_prompt=negative)


def read_prompts(
    request: Request, steps: int, tokenizers: Tokenizers, placement: Placement, chunks: int = 1
) -> Prompts:
    """Read and tokenise a checked request's prompts for a run of some steps.

    `placement` notes the embeddings that they name. A prompt may have up to `chunks` chunks.

    Raises:
        InputError: if a prompt has too many different texts, or too many embeddings.
    """
    tokens: dict[tuple[Section, ...], list[Tokens]] = {}

    def tokens_of(sections: tuple[Section, ...]) -> list[Tokens]:
        if sections not in tokens:
            tokens[sections] = tokenizers.tokens(placed(sections, placement), chunks)
        return tokens[sections]

    both = zip(request.negative_prompts, request.prompts, strict=True)
    runs = [_pairs(pair, request.prompt_syntax, steps) for pair in both]
    texts = [[*dict.fromkeys(run)] for run in runs]
    most = max(map(len, texts))
    padded = [each + each[-1:] * (most - len(each)) for each in texts]
    found = [[[tokens_of(one) for one in pair] for pair in each] for each in padded]

    def arranged(name: str) -> np.ndarray:
        values = [
            [[[getattr(one, name) for one in half] for half in pair] for pair in each]
            for each in found
        ]  # [n, V, 2, E, L]
        return np.moveaxis(np.array(values), 0, 2)

    blank = np.array([[[*map(_is_blank, pair)] for pair in each] for each in padded])
    # Text encoders with different tokenizers may need different numbers.
    counts = arranged("chunks").max(-1).astype(np.int32)
    ends = [
        [max((longest_end(pair[half]) for pair in each), key=len) for each in found]
        for half in range(2)
    ]
    return Prompts(
        input_ids=arranged("input_ids"),
        weights=arranged("weights"),
        blank=np.moveaxis(blank, 0, 2),
        chunks=counts,
        of_step=np.array([[*map(own.index, run)] for own, run in zip(texts, runs, strict=True)]),
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


def _pairs(prompts: tuple[str, str], syntax: str, steps: int) -> list[_Pair]:
    """Return how a picture's two prompts are read for each step."""

    def of_steps(prompt: str) -> list[tuple[Section, ...]]:
        found: list[tuple[Section, ...]] = []
        for until, sections in read_prompt(prompt, syntax, steps):
            found += [sections] * (until - len(found))
        return found

    negative, positive = map(of_steps, prompts)
    return [*zip(negative, positive, strict=True)]


def _is_blank(sections: Sequence[Section]) -> bool:
    return not any(fragment.text.strip() for section in sections for fragment in section)
