"""The sampler's pure functions, traced under `jit`: noise, steps over slots, pictures, prompts.

They do not depend on a network: a model's family supplies the functions that predict and decode.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pipeline.families.halves import joined, split
from pipeline.runtime.looping import along, chunk, for_each, put, put_at, put_rows, take, take_one
from pipeline.runtime.work import Task
from pipeline.schedulers import stepping
from pipeline.schedulers.table import A, Kept, State

Collective = Callable[[Array], Array]
# A structure of arrays with the axes `[halves, B, ...]`, or `[B, ...]` for a network.
Context = Any
# The same of prompts, `[halves, B, chunks, ...]`.
Embeds = Any
# Deep features of pictures, `[halves, B, h, w, C]`, or `[B, h, w, C]` for a network. They are None
# without step caching.
Deep = Array | None
# See `StepCache.predict`.
Predict = Callable[[Array, Array, Context, Deep, Array], tuple[Array, Deep]]
Stepped = tuple[State, Deep]
Decode = Callable[[Array], Array]
Form = Callable[[Predict, State, Context, Task[Array], Kept | None, Collective, Deep], Stepped]
# The axes of the slots in a state; in a state, a context, tasks, kept parts and deep features; and
# in what a step returns.
_AXES = State(0, 1)  # type: ignore[arg-type]
_GIVEN_AXES = _AXES, 1, 0, 0, 1
_STEPPED_AXES = _AXES, 1


def noise(seeds: Array, shape: tuple[int, int, int]) -> Array:
    """Return standard normal noise `[B, h, w, C]` float32, each picture's from its seed alone.

    `seeds` are `[B]` uint32; `shape` is `(h, w, C)`.
    """
    return jax.vmap(lambda seed: jax.random.normal(_key(seed), shape, jnp.float32))(seeds)


def vary(base_noise: Array, other_noise: Array, strength: Array) -> Array:
    """Return noise `[B, h, w, C]` turned towards other noise of the same deviation.

    `strength` is a float32 scalar: 0 gives `base_noise`, 1 gives `other_noise`. The interpolation
    is spherical (Shoemake 1985, "Animating rotation with quaternion curves"), so that the result
    has the norm of noise.
    """
    dot, *squares = (
        jnp.sum(a * b, axis=(1, 2, 3), keepdims=True)
        for a, b in (
            (base_noise, other_noise),
            (base_noise, base_noise),
            (other_noise, other_noise),
        )
    )
    angle = jnp.arccos(jnp.clip(dot / jnp.sqrt(squares[0] * squares[1]), -1, 1))
    between = jnp.sin((1 - strength) * angle) * base_noise + jnp.sin(strength * angle) * other_noise
    # If both are the same noise, the angle and its sine are 0.
    return jnp.where(angle > 0, between / jnp.sin(angle), base_noise)


def step_noise(seeds: Array, i: Array | int, shape: tuple[int, ...]) -> Array:
    """Return the noise that evaluation `i` adds, each picture's from its seed and `i` alone.

    Its shape and dtype are those of `noise`.
    """

    def draw(seed: Array) -> Array:
        return jax.random.normal(jax.random.fold_in(_key(seed), i), shape, jnp.float32)

    return jax.vmap(draw)(seeds)


def enter(
    state: State, kept: Kept, latents: Array, parts: Kept, new_slots: Array
) -> tuple[State, Kept]:
    """Let new pictures enter their slots.

    Args:
        state, kept: those of all slots.
        latents: the new pictures' first latents, `[B, h, w, C]`.
        parts: the parts of them that are kept.
        new_slots: `[B]` bool, the slots of the new pictures.

    Returns:
        The state and the kept parts of all slots; the new pictures have no history.
    """
    is_new = new_slots[:, None, None, None]
    after = State(jnp.where(is_new, latents, state.latents), jnp.where(is_new, 0, state.history))
    return after, jax.tree.map(partial(jnp.where, is_new), parts, kept)


def start(
    encoder: Callable[[Array], Array], image: Array, noise: Array, coefficients: Array
) -> tuple[Array, Array]:
    """Return a picture's latents `[h, w, C]`, and those with noise from which its run begins.

    Args:
        encoder: returns the latents `[1, h, w, C]` of pictures `[1, H, W, 3]` in 0..1.
        image: the picture `[H, W, 3]`.
        noise: standard normal noise `[h, w, C]`.
        coefficients: see `add_noise`.
    """
    x0 = encoder(image[None])[0]
    return x0, stepping.add_noise(x0, noise, coefficients)


def _key(seed: Array) -> Array:
    """Return the random key of a seed.

    The generator is named, so that a seed means the same picture whatever JAX's default is.
    """
    return jax.random.key(seed, impl="threefry2x32")


def uncached(predict: Callable[[Array, Array, Context], Array]) -> Predict:
    """Return a family's `predict` with its networks in the form that `step` takes."""

    def run(
        latents: Array, timesteps: Array, context: Context, _: Deep, __: Array
    ) -> tuple[Array, Deep]:
        return predict(latents, timesteps, context), None

    return run


def step(
    form: Form,
    predict: Predict,
    state: State,
    context: Context,
    tasks: Task[Array],
    kept: Kept | None = None,
    gather: Collective = lambda predictions: predictions,
    deep: Deep = None,
) -> Stepped:
    """Advance the pictures in B slots by one evaluation each; empty slots stay as they are.

    Args:
        form: the form of the forward passes, one of `FORMS`.
        predict: a family's `predict_cached` with its networks, or `uncached`, of the prediction
            type that the tables were made for.
        state: the state before the evaluation.
        context: the prompts' context; leaves `[2, B, ...]`, or `[1, B, ...]` where only one half is
            predicted here.
        tasks: the pictures' evaluations, arrays `[B]`.
        kept: the parts of the pictures that are kept; None for networks that take a mask.
        gather: turns the predictions `[1, ...]` of this device's half into those of both halves
            `[2, ...]`, where another device has the other half.
        deep: the deep features, with the halves of the context; None for `uncached`.

    Returns:
        The state and the deep features after the evaluation.
    """
    return form(predict, state, context, tasks, kept, gather, deep)


def _both_halves(
    predict: Predict, latents: Array, context: Context, task: Task[Array], deep: Deep
) -> tuple[Array, Deep]:
    """Predict for both halves of a picture in one batch, or for the prompt alone."""
    prompt, prompt_deep = jax.tree.map(lambda leaf: leaf[1:], (context, deep))

    def alone() -> tuple[Array, Deep]:
        predictions, after = _forward(predict, latents, prompt, task, prompt_deep)
        return jnp.repeat(predictions, 2, axis=0), _with_prompts(deep, after)

    predict_both = partial(_forward, predict, latents, context, task, deep)
    return jax.lax.cond(task.halves > 1, predict_both, alone)


def _half_by_half(
    predict: Predict, latents: Array, context: Context, task: Task[Array], deep: Deep
) -> tuple[Array, Deep]:
    """Predict for one half of a picture after the other."""

    def add(half: Array, carry: tuple[Array, Deep]) -> tuple[Array, Deep]:
        predictions, deep = carry
        half_context, half_deep = jax.tree.map(lambda leaf: take_one(leaf, half), (context, deep))
        of_half, after = _forward(predict, latents, half_context, task, half_deep)
        deep = jax.tree.map(lambda leaf, half_leaf: put(leaf, half_leaf[0], half), deep, after)
        return predictions.at[half].set(of_half[0]), deep

    # The prompt's half is the last one.
    blank = jnp.zeros((2, *latents.shape))
    return jax.lax.fori_loop(2 - task.halves, 2, add, (blank, deep))


def _in_turn(
    pair: Callable[[Predict, Array, Context, Task[Array], Deep], tuple[Array, Deep]],
    predict: Predict,
    state: State,
    context: Context,
    tasks: Task[Array],
    kept: Kept | None,
    gather: Collective,
    deep: Deep,
) -> Stepped:
    """Advance one picture at a time.

    `pair` returns the predictions of a picture's halves, `[2, h, w, C]`, and its deep features.
    """

    def work(slot: Array, carry: Stepped) -> Stepped:
        state, deep = carry
        arguments = state, context, tasks, kept, deep
        before, picture_context, task, part, picture_deep = along(
            _GIVEN_AXES, partial(take, i=slot), arguments
        )
        latents = stepping.scale_model_input(before.latents, task.row)
        arguments = predict, latents, picture_context, task, picture_deep
        if _halves(context) == 1:
            predictions, features = _forward(*arguments)
            predictions = gather(predictions)
        else:
            predictions, features = pair(*arguments)
        after = _advance(predictions, before, task, part)
        return along(_STEPPED_AXES, partial(put, i=slot), carry, (after, features))

    return for_each(tasks.halves > 0, work, (state, deep))


def by_slots(
    predict: Predict,
    state: State,
    context: Context,
    tasks: Task[Array],
    kept: Kept | None,
    gather: Collective,
    deep: Deep,
) -> Stepped:
    """Predict for all slots in one batch, with the negative prompts' halves if any is needed.

    The deep part of the network runs for all slots if any needs it.
    """
    scaled_latents = jax.vmap(stepping.scale_model_input)(state.latents, tasks.row)
    is_occupied = tasks.halves > 0

    def forward(context: Context, deep: Deep) -> tuple[Array, Deep]:
        halves = _halves(context)
        batch = jnp.broadcast_to(scaled_latents, (halves, *scaled_latents.shape))
        times, shallow = (
            jnp.broadcast_to(values, batch.shape[:2])
            for values in (tasks.row.timesteps, tasks.shallow | ~is_occupied)
        )
        joined_context, joined_deep = jax.tree.map(joined, (context, deep))
        outputs = predict(
            joined(batch), joined(times), joined_context, joined_deep, joined(shallow)
        )
        predictions, after = jax.tree.map(partial(split, count=halves), outputs)
        return predictions, after

    if _halves(context) == 1:
        pairs, deep = forward(context, deep)
        pairs = gather(pairs)
    else:

        def alone() -> tuple[Array, Deep]:
            predictions, after = forward(*jax.tree.map(lambda leaf: leaf[1:], (context, deep)))
            return jnp.repeat(predictions, 2, axis=0), _with_prompts(deep, after)

        predict_both = partial(forward, context, deep)
        pairs, deep = jax.lax.cond(jnp.any(tasks.halves > 1), predict_both, alone)
    advance = jax.vmap(_advance, in_axes=(1, _AXES, 0, 0), out_axes=_AXES)

    def keep_empty(axis: int, new_leaf: Array, old_leaf: Array) -> Array:
        shape = [1] * new_leaf.ndim
        shape[axis] = -1
        return jnp.where(is_occupied.reshape(shape), new_leaf, old_leaf)

    after = jax.tree.map(keep_empty, _AXES, advance(pairs, state, tasks, kept), state)
    return after, deep


def by_occupied(
    predict: Predict,
    state: State,
    context: Context,
    tasks: Task[Array],
    kept: Kept | None,
    gather: Collective,
    deep: Deep,
) -> Stepped:
    """Predict for the slots with work in the smallest batch of 1, 2, 4, ... that holds them.

    Every batch is a branch of its own, of which each device runs one.
    """
    slots, arguments = len(tasks.halves), (state, context, tasks, kept, deep)
    order = jnp.argsort(tasks.halves == 0, stable=True)
    sizes = batch_sizes(slots)

    def batch(size: int) -> Stepped:
        if size == slots:
            return by_slots(predict, state, context, tasks, kept, gather, deep)
        rows = order[:size]
        *batch_arguments, features = along(_GIVEN_AXES, partial(jnp.take, indices=rows), arguments)
        after = by_slots(predict, *batch_arguments, gather=gather, deep=features)
        return along(_STEPPED_AXES, partial(put_rows, rows=rows), (state, deep), after)

    choice = jnp.searchsorted(jnp.array([0, *sizes]), (tasks.halves > 0).sum())
    return jax.lax.switch(choice, [lambda: (state, deep), *(partial(batch, n) for n in sizes)])


def batch_sizes(slots: int) -> list[int]:
    """Return the sizes of batches of 1, 2, 4, ... pictures, up to all slots."""
    return [*(2**i for i in range((slots - 1).bit_length())), slots]


# The forms of the forward passes, by the names that `Platform.forward` has. In the first two forms
# the code that runs depends on the picture alone, so it has the same bits beside any others.
FORMS: dict[str, Form] = {
    "picture": partial(_in_turn, _both_halves),
    "half": partial(_in_turn, _half_by_half),
    "slots": by_occupied,
}


def _with_prompts(deep: Deep, after: Deep) -> Deep:
    """Return deep features `[2, ...]` with those of the prompts' half, `[1, ...]`, replaced."""
    return jax.tree.map(lambda leaf, half: leaf.at[1:].set(half), deep, after)


def _halves(context: Context) -> int:
    """Return how many halves of guidance a context has."""
    return len(jax.tree.leaves(context)[0])


def _forward(
    predict: Predict, latents: Array, context: Context, task: Task[Array], deep: Deep
) -> tuple[Array, Deep]:
    """Return predictions and deep features `[halves, h, w, C]` for the halves of a context."""
    halves = _halves(context)
    batch = jnp.broadcast_to(latents, (halves, *latents.shape))
    times, shallow = (jnp.broadcast_to(x, halves) for x in (task.row.timesteps, task.shallow))
    return predict(batch, times, context, deep, shallow)


def _advance(predictions: Array, state: State, task: Task[Array], kept: Kept | None) -> State:
    """Return a picture's state after an evaluation, with classifier-free guidance if it has two.

    `predictions` are those of its halves, `[2, h, w, C]` or `[1, h, w, C]`. Ho and Salimans 2022,
    "Classifier-free diffusion guidance".
    """
    *uncond, cond = predictions
    prediction = cond
    if uncond:
        prediction = _guided(uncond[0], cond, task.guidance_scale, task.guidance_rescale)
        prediction = jnp.where(task.halves > 1, prediction, cond)
    noise = jax.lax.cond(
        task.row.noise > 0,
        lambda: step_noise(task.seed[None], task.evaluation, cond.shape)[0],
        lambda: jnp.zeros_like(cond),
    )
    after = stepping.step(prediction, state, task.row, noise)
    if kept is None:
        return after
    return after._replace(latents=stepping.blend(after.latents, kept, task.noised))


def _guided(uncond: Array, cond: Array, scale: Array, rescale: Array) -> Array:
    """Return the guided prediction of a picture, `[h, w, C]`.

    `rescale` is the share in which it gets the standard deviation of `cond`, so that a high scale
    does not overexpose pictures: section 3.4 of Lin et al. 2023, "Common diffusion noise schedules
    and sample steps are flawed".
    """
    prediction = uncond + scale * (cond - uncond)
    return jax.lax.cond(
        rescale > 0, _rescaled, lambda prediction, *_: prediction, prediction, cond, rescale
    )


def _rescaled(prediction: Array, cond: Array, rescale: Array) -> Array:
    return rescale * (prediction * (cond.std() / prediction.std())) + (1 - rescale) * prediction


def decode_early(
    decoder: Decode, latents: Array, value: Array, coefficients: tuple[Array, Array], shrink: int
) -> tuple[Array, Array, Array]:
    """Decode a picture as an evaluation predicts it; it is finished after the last one.

    Args:
        decoder: returns pictures `[1, H, W, 3]` float32 in 0..1.
        latents: the latents `[h, w, C]` before the evaluation.
        value: its newest value, likewise; see `State`.
        coefficients: float32 scalars, those of the latents and the value in the prediction.
        shrink: the factor by which the preview is smaller than the picture.

    Returns:
        The picture as `decode` returns it, and its preview `[H/shrink, W/shrink, 3]` uint8.
    """
    of_latents, of_value = coefficients
    image, pixels = decode(decoder, of_latents * latents + of_value * value)
    height, width, channels = image.shape
    parts = image.reshape(height // shrink, shrink, width // shrink, shrink, channels)
    return image, pixels, jnp.round(parts.mean((1, 3)) * 255).astype(jnp.uint8)


def decode(decoder: Decode, latents: Array) -> tuple[Array, Array]:
    """Decode latents `[h, w, C]` to a picture `[H, W, 3]`, float32 in 0..1 and uint8."""
    image = decoder(latents[None])[0]
    return image, jnp.round(image * 255).astype(jnp.uint8)


class Tokens(NamedTuple, Generic[A]):
    """The tokens of the prompts in B slots.

    Attributes:
        ids: for each text encoder `[H, B, C * L]` int32 for up to C chunks; see
            `Architecture.encode`.
        weights: how much each counts, likewise float32.
        zeroed: `[H, B]` bool; see `Architecture.encode`.
        chunks: the number of chunks of each prompt, `[H, B]` int32.
        clip_skip: `[H, B]` int32; see `Architecture.encode`.
    """

    ids: tuple[A, ...]
    weights: tuple[A, ...]
    zeroed: A
    chunks: A
    clip_skip: A


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
        slot_tokens = jax.tree.map(lambda leaf: take_one(leaf, slot, 1), tokens)

        def write_chunk(chunk: Array, embeds: Embeds) -> Embeds:
            chunk_embeds = encode_chunk(chunk_of(slot_tokens, chunk, count))
            return jax.tree.map(
                lambda all_, leaf: put_at(all_, leaf[:, :, None], (0, slot, chunk)),
                embeds,
                chunk_embeds,
            )

        return jax.lax.fori_loop(0, _longest(slot_tokens.chunks), write_chunk, embeds)

    def copy(slot: Array, embeds: Embeds) -> Embeds:
        source = take(sources, slot)
        return jax.tree.map(lambda all_: put(all_, take(all_, source, 1), slot, 1), embeds)

    is_source = sources == jnp.arange(len(sources))
    embeds = for_each(is_source, write, embeds)
    return for_each((sources >= 0) & ~is_source, copy, embeds)


def chunk_of(tokens: Tokens[Array], i: Array | int, count: int) -> Tokens[Array]:
    """Return the tokens of chunk i of `count`."""
    ids, weights = jax.tree.map(lambda part: chunk(part, i, count), (tokens.ids, tokens.weights))
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
            take_one(chunks, slot, 1),
            take_one(guidance, slot),
        )
        slot_numbers, count = take(text_numbers, slot, 1), _longest(slot_chunks)

        def write_chunk(i: Array, context: Context) -> Context:
            chunk = count - 1 - i  # the first chunk comes last: it has what is not of tokens

            def pick(*leaves: Array) -> Array:
                rows = [take(take_one(leaf, slot, 1), chunk, 2) for leaf in leaves]
                return jnp.stack(rows)[slot_numbers, jnp.arange(len(slot_numbers))]

            chunk_context = condition_chunk(jax.tree.map(pick, *texts), slot_guidance, slot_chunks)
            return jax.tree.map(
                lambda all_, leaf: put_at(all_, leaf, (0, slot, chunk)),
                context,
                chunk_context,
            )

        return jax.lax.fori_loop(0, count, write_chunk, context)

    return for_each(new_slots, write, context)


def _longest(chunks: Array) -> Array:
    """Return the number of chunks that a picture's prompts have to be read for, at least 1."""
    return jnp.maximum(chunks.max(), 1)
