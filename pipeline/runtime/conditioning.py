"""The prompts' embeddings and contexts of pictures in slots, traced under `jit`.

Prompts are encoded when their pictures enter. A prompt with several texts in turn has embeddings
for each of them, and its context is made from those that it has at the moment.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pipeline.runtime import looping
from pipeline.runtime.sampler import Context

A = TypeVar("A", np.ndarray, Array)
# A structure of arrays with the axes `[halves, B, chunks, ...]`.
Embeds = Any


class Tokens(NamedTuple, Generic[A]):
    """The tokens of the prompts in B slots.

    Attributes:
        ids: for each text encoder `[H, B, C * L]` int32 for up to C chunks; see
            `Architecture.encode`.
        weights: how much each counts, likewise float32.
        zeroed: `[H, B]` bool; see `Architecture.encode`.
        chunks: the number of chunks of each prompt, `[H, B]` int32.
    """

    ids: tuple[A, ...]
    weights: tuple[A, ...]
    zeroed: A
    chunks: A


def encode(
    encode_chunk: Callable[[Tokens[Array]], Embeds],
    embeds: Embeds,
    sources: Array,
    tokens: Tokens[Array],
    count: int,
) -> Embeds:
    """Return the embeddings of all slots with those of new pictures.

    Args:
        encode_chunk: returns the embeddings `[H, 1, ...]` of one chunk of a picture's prompts.
        embeds: the embeddings before.
        sources: `[B]` int32: each new slot's own number if its prompts have to be encoded, or that
            of a slot with the same prompts; -1 for a slot that is not new.
        tokens: the tokens of the new pictures' prompts.
        count: the most chunks of a prompt.
    """

    def write(slot: Array, embeds: Embeds) -> Embeds:
        slot_tokens = jax.tree.map(lambda leaf: looping.take_one(leaf, slot, 1), tokens)

        def write_chunk(chunk: Array, embeds: Embeds) -> Embeds:
            chunk_embeds = encode_chunk(chunk_of(slot_tokens, chunk, count))
            return jax.tree.map(
                lambda all_, leaf: looping.put_at(all_, leaf[:, :, None], (0, slot, chunk)),
                embeds,
                chunk_embeds,
            )

        return jax.lax.fori_loop(0, _longest(slot_tokens.chunks), write_chunk, embeds)

    def copy(slot: Array, embeds: Embeds) -> Embeds:
        source = looping.take(sources, slot)
        return jax.tree.map(
            lambda all_: looping.put(all_, looping.take(all_, source, 1), slot, 1), embeds
        )

    is_source = sources == jnp.arange(len(sources))
    embeds = looping.for_each(is_source, write, embeds)
    return looping.for_each((sources >= 0) & ~is_source, copy, embeds)


def chunk_of(tokens: Tokens[Array], i: Array | int, count: int) -> Tokens[Array]:
    """Return the tokens of chunk i of `count`."""
    ids, weights = jax.tree.map(
        lambda part: looping.chunk(part, i, count), (tokens.ids, tokens.weights)
    )
    return tokens._replace(ids=ids, weights=weights)


def condition(
    condition_chunk: Callable[[Embeds, Array, Array], Context],
    context: Context,
    new_slots: Array,
    texts: Sequence[Embeds],
    text_numbers: Array,
    guidance: Array,
    chunks: Array,
) -> Context:
    """Return the context of all slots with that of some pictures.

    Args:
        condition_chunk: returns the context `[H, 1, ...]` of one chunk of a picture's prompts, from
            its embeddings, the guidance `[1]` and the numbers of chunks `[H, 1]`.
        context: the context before.
        new_slots: `[B]` bool, the slots of these pictures.
        texts: the embeddings of V texts in all slots.
        text_numbers: `[H, B]` int32, which of the V texts each prompt has.
        guidance: `[B]` float32, the guidance scales minus 1.
        chunks: `[H, B]` int32, the number of chunks of each prompt.
    """

    def write(slot: Array, context: Context) -> Context:
        slot_chunks, slot_guidance = (
            looping.take_one(chunks, slot, 1),
            looping.take_one(guidance, slot),
        )
        slot_numbers, count = looping.take(text_numbers, slot, 1), _longest(slot_chunks)

        def write_chunk(i: Array, context: Context) -> Context:
            chunk = count - 1 - i  # the first chunk comes last: it has what is not of tokens

            def pick(*leaves: Array) -> Array:
                rows = [looping.take(looping.take_one(leaf, slot, 1), chunk, 2) for leaf in leaves]
                return jnp.stack(rows)[slot_numbers, jnp.arange(len(slot_numbers))]

            chunk_context = condition_chunk(jax.tree.map(pick, *texts), slot_guidance, slot_chunks)
            return jax.tree.map(
                lambda all_, leaf: looping.put_at(all_, leaf, (0, slot, chunk)),
                context,
                chunk_context,
            )

        return jax.lax.fori_loop(0, count, write_chunk, context)

    return looping.for_each(new_slots, write, context)


def _longest(chunks: Array) -> Array:
    """Return the number of chunks that a picture's prompts have to be read for, at least 1."""
    return jnp.maximum(chunks.max(), 1)
