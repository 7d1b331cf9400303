"""Long prompts in chunks, each of as many tokens as a text encoder takes.

The rules are AUTOMATIC1111's, `tokenize_line` in
https://github.com/AUTOMATIC1111/stable-diffusion-webui/blob/master/modules/sd_hijack_clip.py
"""

from collections.abc import Sequence
from dataclasses import dataclass

BACKTRACK = 20  # tokens after the last comma that move to the next chunk with the word that is cut


@dataclass(frozen=True)
class Run:
    """Token ids of one weight, in order.

    Attributes:
        ids: the ids.
        weight: how much each of them counts.
        is_whole: whether they stay together, as the vectors of an embedding do.
    """

    ids: Sequence[int]
    weight: float = 1.0
    is_whole: bool = False


@dataclass(frozen=True)
class Break:
    """The beginning of a new chunk."""


# Ids with their weights.
Chunk = list[tuple[int, float]]


def arrange(
    runs: Sequence[Run | Break], room: int, most: int, comma: int | None
) -> tuple[list[Chunk], int]:
    """Distribute tokens over chunks.

    A chunk that is full ends after its last comma, if at most `BACKTRACK` tokens follow it. The
    last of `most` chunks is filled, and no break ends it.

    Args:
        runs: the tokens.
        room: the number of tokens in a chunk, without start and end.
        most: the number of chunks that there may be.
        comma: the id of a comma; None if there is none.

    Returns:
        The chunks, at least one, and the number of tokens in them.
    """
    chunks: list[Chunk] = [[]]
    last_comma: int | None = None

    def begin(tokens: Chunk) -> None:
        nonlocal last_comma
        chunks.append(tokens)
        last_comma = None

    for run in runs:
        is_last = len(chunks) == most
        if isinstance(run, Break):
            if not is_last:
                begin([])
            continue
        if run.is_whole and not is_last and chunks[-1] and len(chunks[-1]) + len(run.ids) > room:
            begin([])
        for token in run.ids:
            chunk = chunks[-1]
            if len(chunk) == room:
                if len(chunks) == most:
                    return chunks, sum(map(len, chunks))
                near = last_comma is not None and room - last_comma <= BACKTRACK
                start = room if last_comma is None or not near or token == comma else last_comma + 1
                tokens = chunk[start:]
                del chunk[start:]
                begin(tokens)
            if token == comma:
                last_comma = len(chunks[-1])
            chunks[-1].append((token, run.weight))
    return chunks, sum(map(len, chunks))
