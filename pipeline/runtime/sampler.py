"""The sampler's pure functions, traced under `jit`: encode, prepare, denoise, decode.

The order of guidance halves is [uncond, cond]: arrays with a leading axis of 2 hold the negative
prompt's half first. Networks get one batch of 2B in which a picture's two halves are neighbours.
Each device's pictures are then a contiguous part of that batch, and stay on their device.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pipeline.models.clip import CLIPTextEncoder
from pipeline.models.config import VAEConfig
from pipeline.models.unet import Context, UNet
from pipeline.models.vae import VAE
from pipeline.schedulers import methods
from pipeline.schedulers.methods import State, Table

Collective = Callable[[Array], Array]


class Conditioning(NamedTuple):
    """The text encoders' embeddings of the prompts.

    Attributes:
        prompt_embeds: `[2, B, L, D]`.
        pooled_prompt_embeds: `[2, B, P]` with SDXL, otherwise None.
        add_time_ids: `[6]` float32 from `time_ids` with SDXL, otherwise None.
    """

    prompt_embeds: Array
    pooled_prompt_embeds: Array | None
    add_time_ids: Array | None


def time_ids(height: int, width: int) -> np.ndarray:
    """Return SDXL's add_time_ids `[6]` float32 of a whole picture, in pixels.

    They are the original size, the top and left of the crop, and the target size.
    """
    return np.array([height, width, 0, 0, height, width], np.float32)


def encode(
    text_encoders: Sequence[CLIPTextEncoder],
    input_ids: Array,
    zero_negative: Array,
    add_time_ids: Array | None,
    shard: Collective = lambda x: x,
) -> Conditioning:
    """Encode the prompts.

    Args:
        text_encoders: one text encoder, or SDXL's two, of which the second has a projection.
        input_ids: `[2, B, E, L]` int32, the negative and positive prompts for E text encoders.
        zero_negative: `[B]` bool, whether to replace the embeddings of the picture's negative
            prompt with zeros.
        add_time_ids: `[6]` float32, from `time_ids`; used with SDXL only.
        shard: spreads a batch `[2B, ...]` over devices.
    """
    ids = shard(_joined(input_ids))
    outputs = [encoder(ids[:, i]) for i, encoder in enumerate(text_encoders)]
    embeds = _halves(jnp.concatenate([states for states, _ in outputs], axis=-1))
    dropped = jnp.stack([zero_negative, jnp.zeros_like(zero_negative)])  # [2, B]
    embeds = jnp.where(dropped[:, :, None, None], 0, embeds)
    _, pooled = outputs[-1]
    if pooled is None:
        return Conditioning(embeds, None, None)
    return Conditioning(
        prompt_embeds=embeds,
        pooled_prompt_embeds=jnp.where(dropped[:, :, None], 0, _halves(pooled)),
        add_time_ids=add_time_ids,
    )


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


def prepare(unet: UNet, conditioning: Conditioning, shard: Collective = lambda x: x) -> Context:
    """Return the UNet's context of the prompts, the same in all steps; leaves `[2, B, ...]`."""
    embeds, pooled, time_ids = conditioning
    told = [shard(_joined(embeds))]
    if pooled is not None and time_ids is not None:
        told.append(shard(_joined(pooled)))
        told.append(jnp.broadcast_to(time_ids, (len(told[0]), 6)))
    return jax.tree.map(_halves, unet.condition(*told))


def denoise(
    unet: UNet,
    state: State,
    context: Context,
    seeds: Array,
    table: Table[Array],
    guidance_scale: Array,
    start: Array,
    stop: Array,
    gather: Collective = lambda x: x,
    one_by_one: bool = False,
) -> State:
    """Run evaluations `start` to `stop` with classifier-free guidance (Ho and Salimans 2022).

    Args:
        unet: a network with the prediction type that the table was made for.
        state: the state before evaluation `start`.
        context: the prompts' context, of both halves or of one; leaves `[2 or 1, B, ...]`.
        seeds: `[B]` uint32, for the noise that some schedulers add.
        table: the coefficients, `N` rows; N may exceed the run's number of evaluations.
        guidance_scale: float32 scalar. There is no guidance if it is 1 or less, or if only the
            prompts' half is predicted.
        start: int32 scalar, the first evaluation.
        stop: int32 scalar, one more than the last evaluation.
        gather: where another device has the other half, turns the predictions `[1, B, ...]` into
            those of both halves, `[2, B, ...]`; otherwise the identity.
        one_by_one: whether the UNet runs on one half of one picture at a time, instead of on all
            at once.

    Returns:
        The state after evaluation `stop - 1`.
    """
    shape = state.latents.shape
    halves = len(context.keys_values[0])
    joined = jax.tree.map(_joined, context)
    predict = partial(_one_by_one, unet) if one_by_one else unet

    def evaluate(i: Array, state: State) -> State:
        row = jax.tree.map(lambda column: column[i], table)
        scaled = methods.scale_model_input(state.latents, row)
        both = _joined(jnp.broadcast_to(scaled, (halves, *shape)))
        times = jnp.broadcast_to(row.timesteps, (len(both),))
        *uncond, cond = gather(_halves(predict(both, times, joined), halves))
        guided = _guided(uncond[0], cond, guidance_scale) if uncond else cond
        drawn = jax.lax.cond(
            row.noise > 0,
            lambda: step_noise(seeds, i, shape[1:]),
            lambda: jnp.zeros_like(state.latents),
        )
        return methods.step(guided, state, row, drawn)

    return jax.lax.fori_loop(start, stop, evaluate, state)


def _one_by_one(unet: UNet, *batch: Any) -> Array:
    """Return the UNet's predictions for a batch, computed in batches of one."""
    singles = jax.tree.map(lambda leaf: leaf[:, None], batch)
    return jax.lax.map(lambda single: unet(*single), singles)[:, 0]


def _guided(uncond: Array, cond: Array, scale: Array) -> Array:
    return jnp.where(scale > 1, uncond + scale * (cond - uncond), cond)


def _joined(halves: Array) -> Array:
    """Reshape `[H, B, ...]` to `[HB, ...]`, with a picture's halves side by side."""
    return jnp.swapaxes(halves, 0, 1).reshape(-1, *halves.shape[2:])


def _halves(joined: Array, count: int = 2) -> Array:
    """Reshape `[HB, ...]` to `[H, B, ...]`, the inverse of `_joined`."""
    return jnp.swapaxes(joined.reshape(-1, count, *joined.shape[1:]), 0, 1)


def decode(vae: VAE, latents: Array) -> tuple[Array, Array]:
    """Decode latents `[B, h, w, C]` to pictures `[B, H, W, 3]`, float32 in 0..1 and uint8."""
    images = jnp.clip(vae.decode(unscale(vae.config, latents)) / 2 + 0.5, 0, 1)
    return images, jnp.round(images * 255).astype(jnp.uint8)


def unscale(config: VAEConfig, latents: Array) -> Array:
    """Convert the diffusion model's latents (about unit variance) to the VAE's own."""
    z = latents / config.scaling_factor
    if config.latents_mean is not None and config.latents_std is not None:
        z = z * jnp.array(config.latents_std, jnp.float32)
        z = z + jnp.array(config.latents_mean, jnp.float32)
    return z
