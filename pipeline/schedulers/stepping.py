"""The device's code that runs the table of coefficients; see `table`."""

import jax.numpy as jnp
from jax import Array

from pipeline.schedulers.table import REMEMBERED, Kept, State, Table


def scale_model_input(latents: Array, row: Table[Array]) -> Array:
    """Scale latents to unit variance, which the UNet expects."""
    return latents * row.input_scale


def add_noise(x0: Array, noise: Array, coefficients: Array) -> Array:
    """Return latents `[B, h, w, C]` that contain a picture and noise.

    Args:
        x0: the picture's latents, in the same shape.
        noise: standard normal noise, in the same shape.
        coefficients: a row of `Schedule.noised`, `[2]`, or one for each picture, `[B, 2]`.
    """
    signal, deviation = jnp.moveaxis(coefficients[..., None, None, None, :], -1, 0)
    return signal * x0 + deviation * noise


def blend(latents: Array, kept: Kept, coefficients: Array) -> Array:
    """Replace latents by a picture's own outside the mask, after an evaluation.

    Networks that take no mask inpaint in this way (Lugmayr et al. 2022, "RePaint", without
    resampling).

    Args:
        latents: the latents after the evaluation, `[B, h, w, C]`.
        kept: the picture, its mask and the noise that the run began with.
        coefficients: the row of `Schedule.noised` for the next evaluation, or for the end of the
            run; see `add_noise`.
    """
    return jnp.where(kept.mask > 0, latents, add_noise(kept.x0, kept.noise, coefficients))


def step(prediction: Array, state: State, row: Table[Array], noise: Array) -> State:
    """Return the state after one evaluation of the network.

    Args:
        prediction: the network's output, noise or v as the scheduler's `prediction_type` says, in
            the latents' shape.
        state: the state before the evaluation.
        row: the evaluation's row of the table.
        noise: standard normal noise, in the latents' shape.
    """
    latents, history = state
    value = row.value_latents * latents + row.value_prediction * prediction
    values = jnp.concatenate([value[None], history])
    # This is not a matrix product, because some devices would round it to bfloat16.
    combined = (row.values.reshape(-1, *[1] * latents.ndim) * values).sum(axis=0)
    return State(
        latents=row.latents * latents + combined + row.noise * noise,
        history=values[:REMEMBERED],
    )
