"""The prompts of a drawing as token ids and weights, for every text that they have in a run."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.request import Request
from pipeline.text.embeddings import Placement
from pipeline.text.emphasis import Section
from pipeline.text.prompt_syntax import read_prompt
from pipeline.text.tokenizer import Tokenizers, Tokens, longest_end

# A negative prompt and a prompt, as they are read for some steps.
_Pair = tuple[tuple[Section, ...], tuple[Section, ...]]


@dataclass(frozen=True)
class Prompts:
    """The prompts of n pictures, each with up to V different pairs of texts in turn.

    Attributes:
        input_ids: `[V, 2, n, E, L]` int32, the negative prompts first.
        weights: how much each token counts, `[V, 2, n, E, L]` float32.
        blank: `[V, 2, n]` bool, whether a text is blank.
        of_step: `[n, steps]`, which of the V texts each step uses.
        truncated, negative_truncated: for each picture the end that does not fit, or "".
    """

    input_ids: np.ndarray
    weights: np.ndarray
    blank: np.ndarray
    of_step: np.ndarray
    truncated: list[str]
    negative_truncated: list[str]


def read_prompts(
    request: Request, steps: int, tokenizers: Tokenizers, placement: Placement
) -> Prompts:
    """Read and tokenise a checked request's prompts for a run of some steps.

    `placement` notes the embeddings that they name.

    Raises:
        InputError: if a prompt has too many different texts, or too many embeddings.
    """
    tokens: dict[tuple[Section, ...], list[Tokens]] = {}

    def tokens_of(sections: tuple[Section, ...]) -> list[Tokens]:
        if sections not in tokens:
            parts = [
                part
                for section in sections
                for fragment in section
                for part in placement.place(*fragment)
            ]
            tokens[sections] = tokenizers.tokens(parts)
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
    ends = [
        [max((longest_end(pair[half]) for pair in each), key=len) for each in found]
        for half in range(2)
    ]
    return Prompts(
        input_ids=arranged("input_ids"),
        weights=arranged("weights"),
        blank=np.moveaxis(blank, 0, 2),
        of_step=np.array([[*map(own.index, run)] for own, run in zip(texts, runs, strict=True)]),
        truncated=ends[1],
        negative_truncated=ends[0],
    )


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
