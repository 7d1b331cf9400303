"""Networks that guide the denoiser, traced under `jit`: their hints, and their residuals.

A picture's residuals are in its slot, like its latents, and the program `step` adds them. Those of
pictures that follow nothing are zeros.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from pipeline.families.halves import joined, split
from pipeline.runtime import sampler
from pipeline.runtime.looping import along, for_each, put, put_at, put_rows, take, take_one
from pipeline.runtime.sampler import Context, Embeds
from pipeline.runtime.work import Task
from pipeline.schedulers import stepping
from pipeline.schedulers.table import A

# For each place in the denoiser `[H, B, h, w, C]`.
Residuals: TypeAlias = tuple[Array, ...]
# Returns residuals `[N, h, w, C]` for latents, timesteps, a context and hints.
Predict: TypeAlias = Callable[[Array, Array, Context, Array], Residuals]


class Prompts(NamedTuple, Generic[A]):
    """The prompts of pictures, as a network reads them; see `sampler.condition`.

    `types` are `[B, T]` float32, what the hints show; see `Control.condition`.
    """

    texts: Sequence[Embeds]
    numbers: A
    chunks: A
    types: A


class Following(NamedTuple):
    """What B pictures follow in an evaluation.

    Attributes:
        latents: `[B, h, w, C]` float32.
        tasks: the evaluations, arrays `[B]`.
        prompts: the prompts.
        hints: `[B, h, w, C]`, from `Control.hint`.
        scales: `[H, B, R]` float32, the weight of each of R residuals in a half of guidance. If all
            of a half's are 0, the network does not run for it.
        adds: `[B]` bool, whether the residuals are added to those that are there.
    """

    latents: Array
    tasks: Task[Array]
    prompts: Prompts[Array]
    hints: Array
    scales: Array
    adds: Array


_AXES: Any = Following(0, 0, Prompts(1, 1, 1, 0), 0, 1, 0)  # type: ignore[arg-type]
# Returns the context `[H, B, ...]` of prompts.
Condition: TypeAlias = Callable[[Prompts[Array]], Context]
Form: TypeAlias = Callable[[Predict, Condition, Residuals, Following, Array], Residuals]


def hint(
    embed: Callable[[Array, Array, Array], Array],
    hints: Array,
    images: Array,
    kinds: Array,
    weights: Array,
    adds: Array,
    new_slots: Array,
) -> Array:
    """Return the hints of all slots with those of new pictures.

    Args:
        embed: `Control.hint` with its network, for a batch.
        hints: the hints before, `[B, h, w, C]`.
        images: the pictures to follow, `[B, H, W, 3]` float32.
        kinds, weights: see `Control.hint`.
        adds: `[B]` bool, whether a hint is added to the one that is there.
        new_slots: `[B]` bool, the slots of the new pictures.
    """

    def write(slot: Array, hints: Array) -> Array:
        new = embed(*(take_one(array, slot) for array in (images, kinds, weights)))[0]
        return put(hints, new + jnp.where(take(adds, slot), take(hints, slot), 0), slot)

    return for_each(new_slots, write, hints)


def clear(residuals: Residuals, slot_mask: Array) -> Residuals:
    """Return residuals with zeros in the slots of a mask, `[B]` bool."""

    def write(slot: Array, residuals: Residuals) -> Residuals:
        return jax.tree.map(lambda leaf: put(leaf, jnp.zeros_like(leaf[:, 0]), slot, 1), residuals)

    return for_each(slot_mask, write, residuals)


def context(
    condition_chunk: Callable[[Embeds, Prompts[Array], int], Context],
    prompts: Prompts[Array],
    count: int,
    halves: int,
) -> Context:
    """Return the context `[halves, B, ...]` of pictures' prompts.

    Args:
        condition_chunk: returns the context `[H, B, ...]` of a chunk of prompts, from its
            embeddings, with room for a number of chunks.
        prompts: the prompts.
        count: the most chunks of a prompt.
        halves: the number of halves of guidance that are needed, the last ones.
    """
    places = tuple(map(jnp.arange, prompts.numbers.shape))
    half, picture = places[0][:, None], places[1]

    def part(chunk: int, room: int) -> Context:
        def pick(*leaves: Array) -> Array:
            return jnp.stack([leaf[:, :, chunk] for leaf in leaves])[prompts.numbers, half, picture]

        return condition_chunk(jax.tree.map(pick, *prompts.texts), prompts, room)

    last, *others = reversed(range(count))  # the first chunk has what is not of tokens
    whole = part(last, count)
    for chunk in others:
        put_chunk = partial(put_at, starts=(0, 0, chunk))
        whole = jax.tree.map(put_chunk, whole, part(chunk, 1))
    return jax.tree.map(lambda leaf: leaf[-halves:], whole)


def _in_turn(
    predict: Predict,
    condition: Condition,
    residuals: Residuals,
    following: Following,
    slot_mask: Array,
) -> Residuals:
    """Compute the residuals of one half of one picture at a time."""
    halves = len(residuals[0])

    def work(slot: Array, residuals: Residuals) -> Residuals:
        one = along(_AXES, lambda leaf, axis: take_one(leaf, slot, axis), following)
        before = jax.tree.map(lambda leaf: take_one(leaf, slot, 1), residuals)
        before = jax.tree.map(lambda leaf: jnp.where(one.adds[0], leaf, 0), before)
        context, inputs = condition(one.prompts), _inputs(one)
        is_on = (one.scales != 0).any((1, 2))
        first = jnp.where(is_on[0], 0, jnp.where(is_on[-1], halves - 1, halves))

        def add(half: Array, residuals: Residuals) -> Residuals:
            half_context = jax.tree.map(lambda leaf: take(leaf, half), context)
            outputs, scales = predict(*inputs, half_context, one.hints), take(one.scales, half)
            return tuple(
                put(leaf, take(leaf, half) + _scaled(output, scales[:, i]), half)
                for i, (leaf, output) in enumerate(zip(residuals, outputs, strict=True))
            )

        needless = halves - one.tasks.halves[0]
        after = jax.lax.fori_loop(jnp.maximum(first, needless), halves, add, before)
        return jax.tree.map(lambda leaf, part: put(leaf, part[:, 0], slot, 1), residuals, after)

    return for_each(slot_mask, work, residuals)


def _by_occupied(
    predict: Predict,
    condition: Condition,
    residuals: Residuals,
    following: Following,
    slot_mask: Array,
) -> Residuals:
    """Compute all residuals in the smallest batch of 1, 2, 4, ... pictures that holds them."""
    halves, slots = len(residuals[0]), len(slot_mask)
    order = jnp.argsort(~slot_mask, stable=True)

    def batch(size: int) -> Residuals:
        rows = order[:size]
        some = along(_AXES, lambda leaf, axis: jnp.take(leaf, rows, axis), following)
        context = jax.tree.map(joined, condition(some.prompts))
        latents, timesteps, hints = (
            joined(jnp.broadcast_to(leaf, (halves, *leaf.shape)))
            for leaf in (*_inputs(some), some.hints)
        )
        outputs = predict(latents, timesteps, context, hints)
        adds, counts = some.adds[:, None, None, None], slot_mask[rows][:, None, None, None]
        after = []
        for i, (leaf, output) in enumerate(zip(residuals, outputs, strict=True)):
            before = jnp.take(leaf, rows, 1)
            new = _scaled(split(output, halves), some.scales[..., i])
            after.append(jnp.where(counts, jnp.where(adds, before, 0) + new, before))
        return tuple(
            put_rows(leaf, part, rows, 1) for leaf, part in zip(residuals, after, strict=True)
        )

    sizes = sampler.batch_sizes(slots)
    choice = jnp.searchsorted(jnp.array([0, *sizes]), slot_mask.sum())
    branches = [lambda size=size: batch(size) for size in sizes]
    return jax.lax.switch(choice, [lambda: residuals, *branches])


def _inputs(following: Following) -> tuple[Array, Array]:
    """Return scaled latents `[B, h, w, C]` and timesteps `[B]`."""
    row = following.tasks.row
    return jax.vmap(stepping.scale_model_input)(following.latents, row), row.timesteps


def _scaled(residual: Array, scales: Array) -> Array:
    """Multiply residuals `[..., h, w, C]` by scales `[...]`; those with scale 0 become 0."""
    weights = scales[..., None, None, None].astype(residual.dtype)
    return jnp.where(weights != 0, residual * weights, 0)


# By the names that `Platform.forward` has.
FORMS: dict[str, Form] = {"picture": _in_turn, "half": _in_turn, "slots": _by_occupied}
