"""The sampler's pure functions, traced under `jit`: noise, denoising, pictures.

They do not depend on a network: a model's family supplies the functions that predict and decode.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from pipeline.families.halves import joined, split
from pipeline.schedulers import table as tables
from pipeline.schedulers.table import State, Table

Collective = Callable[[Array], Array]
# A structure of arrays with the axes `[halves, B, ...]`, or `[B, ...]` for a network.
Context = Any
Predict = Callable[[Array, Array, Context], Array]
Decode = Callable[[Array], Array]


def noise(seeds: Array, shape: tuple[int, int, int]) -> Array:
    """Return standard normal noise `[B, h, w, C]` float32, each picture's from its seed alone.

    `seeds` are `[B]` uint32; `shape` is `(h, w, C)`.
    """
    return jax.vmap(lambda seed: jax.random.normal(_key(seed), shape, jnp.float32))(seeds)


def vary(own: Array, other: Array, strength: Array) -> Array:
    """Return noise `[B, h, w, C]` turned towards other noise of the same deviation.

    `strength` is a float32 scalar: 0 gives `own`, 1 gives `other`. The interpolation is spherical
    (Shoemake 1985, "Animating rotation with quaternion curves"), so that the result has the norm
    of noise.
    """
    dot, *squares = (
        jnp.sum(a * b, axis=(1, 2, 3), keepdims=True)
        for a, b in ((own, other), (own, own), (other, other))
    )
    angle = jnp.arccos(jnp.clip(dot / jnp.sqrt(squares[0] * squares[1]), -1, 1))
    between = jnp.sin((1 - strength) * angle) * own + jnp.sin(strength * angle) * other
    # If both are the same noise, the angle and its sine are 0.
    return jnp.where(angle > 0, between / jnp.sin(angle), own)


def step_noise(seeds: Array, i: Array | int, shape: tuple[int, ...]) -> Array:
    """Return the noise that evaluation `i` adds, each picture's from its seed and `i` alone.

    Its shape and dtype are those of `noise`.
    """

    def draw(seed: Array) -> Array:
        return jax.random.normal(jax.random.fold_in(_key(seed), i), shape, jnp.float32)

    return jax.vmap(draw)(seeds)


def _key(seed: Array) -> Array:
    """Return the random key of a seed.

    The generator is named, so that a seed means the same picture whatever JAX's default is.
    """
    return jax.random.key(seed, impl="threefry2x32")


def denoise(
    predict: Predict,
    state: State,
    context: Context,
    seeds: Array,
    table: Table[Array],
    guidance_scale: Array,
    guidance_rescale: Array,
    start: Array,
    stop: Array,
    gather: Collective = lambda x: x,
    one_by_one: bool = False,
) -> State:
    """Run evaluations `start` to `stop` with classifier-free guidance (Ho and Salimans 2022).

    Args:
        predict: a family's `predict` with its networks, of the prediction type that the table was
            made for.
        state: the state before evaluation `start`.
        context: the prompts' context, of both halves or of one; leaves `[2 or 1, B, ...]`.
        seeds: `[B]` uint32, for the noise that some schedulers add.
        table: the coefficients, `N` rows; N may exceed the run's number of evaluations.
        guidance_scale: float32 scalar. There is no guidance if it is 1 or less, or if only the
            prompts' half is predicted.
        guidance_rescale: float32 scalar from 0 to 1; see `_guided`.
        start: int32 scalar, the first evaluation.
        stop: int32 scalar, one more than the last evaluation.
        gather: where another device has the other half, turns the predictions `[1, B, ...]` into
            those of both halves, `[2, B, ...]`; otherwise the identity.
        one_by_one: whether to predict for one half of one picture at a time, instead of for all at
            once.

    Returns:
        The state after evaluation `stop - 1`.
    """
    shape = state.latents.shape
    halves = len(jax.tree.leaves(context)[0])
    batch = jax.tree.map(joined, context)
    run = partial(_one_by_one, predict) if one_by_one else predict

    def evaluate(i: Array, state: State) -> State:
        row = jax.tree.map(lambda column: column[i], table)
        scaled = tables.scale_model_input(state.latents, row)
        both = joined(jnp.broadcast_to(scaled, (halves, *shape)))
        times = jnp.broadcast_to(row.timesteps, (len(both),))
        *uncond, cond = gather(split(run(both, times, batch), halves))
        guided = _guided(uncond[0], cond, guidance_scale, guidance_rescale) if uncond else cond
        drawn = jax.lax.cond(
            row.noise > 0,
            lambda: step_noise(seeds, i, shape[1:]),
            lambda: jnp.zeros_like(state.latents),
        )
        return tables.step(guided, state, row, drawn)

    return jax.lax.fori_loop(start, stop, evaluate, state)


def _one_by_one(predict: Predict, *batch: Any) -> Array:
    """Return the predictions for a batch, computed in batches of one."""
    singles = jax.tree.map(lambda leaf: leaf[:, None], batch)
    return jax.lax.map(lambda single: predict(*single), singles)[:, 0]


def _guided(uncond: Array, cond: Array, scale: Array, rescale: Array) -> Array:
    """Return the guided prediction, `[B, h, w, C]`.

    `rescale` is the share in which it gets the standard deviation of `cond`, so that a high scale
    does not overexpose pictures: section 3.4 of Lin et al. 2023, "Common diffusion noise schedules
    and sample steps are flawed".
    """
    guided = uncond + scale * (cond - uncond)
    rescaled = jax.lax.cond(
        rescale > 0, _rescaled, lambda guided, *_: guided, guided, cond, rescale
    )
    return jnp.where(scale > 1, rescaled, cond)


def _rescaled(guided: Array, cond: Array, rescale: Array) -> Array:
    own, other = (jnp.std(x, axis=(1, 2, 3), keepdims=True) for x in (guided, cond))
    return rescale * (guided * (other / own)) + (1 - rescale) * guided


def decode_early(
    decoder: Decode, latents: Array, value: Array, coefficients: tuple[Array, Array], shrink: int
) -> tuple[Array, Array, Array]:
    """Decode the pictures as an evaluation predicts them; they are finished after the last one.

    Args:
        decoder: returns pictures `[B, H, W, 3]` float32 in 0..1.
        latents: the latents `[B, h, w, C]` before the evaluation.
        value: its newest value, likewise; see `State`.
        coefficients: float32 scalars, those of the latents and the value in the prediction.
        shrink: the factor by which previews are smaller than pictures.

    Returns:
        The pictures as `decode` returns them, and previews `[B, H/shrink, W/shrink, 3]` uint8.
    """
    of_latents, of_value = coefficients
    images, pixels = decode(decoder, of_latents * latents + of_value * value)
    count, height, width, channels = images.shape
    parts = images.reshape(count, height // shrink, shrink, width // shrink, shrink, channels)
    return images, pixels, jnp.round(parts.mean((2, 4)) * 255).astype(jnp.uint8)


def decode(decoder: Decode, latents: Array) -> tuple[Array, Array]:
    """Decode latents `[B, h, w, C]` to pictures `[B, H, W, 3]`, float32 in 0..1 and uint8."""
    images = decoder(latents)
    return images, jnp.round(images * 255).astype(jnp.uint8)
