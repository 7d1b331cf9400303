"""From token ids to pictures: encode, denoise, decode. Pure functions, traced under `jit`.

Guidance batch order is [uncond, cond]: arrays with a leading axis of 2 hold the negative prompt's
half first.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pipeline import scheduler
from pipeline.clip import CLIPTextEncoder
from pipeline.config import VAEConfig
from pipeline.scheduler import State, Table
from pipeline.unet import UNet
from pipeline.vae import VAE

Shard = Callable[[Array], Array]


class Conditioning(NamedTuple):
    """What the UNet is told about the prompts.

    prompt_embeds `[2, B, L, D]`; with SDXL also pooled_prompt_embeds `[2, B, P]` and add_time_ids
    `[6]` float32 = (height, width, top, left, height, width) in pixels.
    """

    prompt_embeds: Array
    pooled_prompt_embeds: Array | None
    add_time_ids: Array | None


def encode(
    text_encoders: Sequence[CLIPTextEncoder],
    input_ids: Array,
    zero_negative: Array,
    size: tuple[int, int],
) -> Conditioning:
    """Prompts to conditioning.

    Args:
        text_encoders: one, or SDXL's two, the second of them with a projection.
        input_ids: `[2, B, E, L]` int32: negative and positive prompts; E: of each text encoder.
        zero_negative: `[B]` bool: this picture's negative prompt counts as zero embeddings.
        size: height and width in pixels.
    """
    _, batch, _, length = input_ids.shape
    ids = input_ids.reshape(2 * batch, -1, length)
    outputs = [encoder(ids[:, i]) for i, encoder in enumerate(text_encoders)]
    embeds = jnp.concatenate([states for states, _ in outputs], axis=-1)
    embeds = embeds.reshape(2, batch, length, -1)
    dropped = jnp.stack([zero_negative, jnp.zeros_like(zero_negative)])  # [2, B]
    embeds = jnp.where(dropped[:, :, None, None], 0, embeds)
    _, pooled = outputs[-1]
    if pooled is None:
        return Conditioning(embeds, None, None)
    return Conditioning(
        prompt_embeds=embeds,
        pooled_prompt_embeds=jnp.where(dropped[:, :, None], 0, pooled.reshape(2, batch, -1)),
        add_time_ids=jnp.array([*size, 0, 0, *size], jnp.float32),
    )


def noise(seeds: Array, shape: tuple[int, int, int]) -> Array:
    """Standard normal noise `[B, h, w, C]` float32; each picture's from its own seed alone.

    seeds `[B]` uint32.
    """
    draw = jax.vmap(lambda seed: jax.random.normal(jax.random.key(seed), shape, jnp.float32))
    return draw(seeds)


def step_noise(seeds: Array, i: Array | int, shape: tuple[int, ...]) -> Array:
    """As `noise`, for what evaluation `i` adds; from the picture's own seed and `i` alone."""

    def draw(seed: Array) -> Array:
        key = jax.random.fold_in(jax.random.key(seed), i)
        return jax.random.normal(key, shape, jnp.float32)

    return jax.vmap(draw)(seeds)


def denoise(
    unet: UNet,
    state: State,
    conditioning: Conditioning,
    seeds: Array,
    table: Table[Array],
    guidance_scale: Array,
    start: Array,
    stop: Array,
    shard: Shard = lambda x: x,
) -> State:
    """Evaluations `start` to `stop` of a run, with classifier-free guidance (Ho and Salimans 2022).

    Args:
        unet: predicts what the table was made for.
        state: as evaluation `start` expects it.
        conditioning: of both halves.
        seeds: `[B]` uint32, of the noise that some schedulers add.
        table: of `N` rows; N may exceed the run's number of evaluations.
        guidance_scale: float32 scalar; 1 and below means no guidance.
        start: int32 scalar, the first evaluation.
        stop: int32 scalar, the first evaluation that is not done.
        shard: applied to arrays whose leading axes are [2, B], to spread them over devices.

    Returns the state after evaluation `stop - 1`.
    """
    shape = state.latents.shape
    batch = shape[0]
    embeds = conditioning.prompt_embeds.reshape(2 * batch, *conditioning.prompt_embeds.shape[2:])
    added = _added(unet, conditioning)

    def evaluate(i: Array, state: State) -> State:
        row = jax.tree.map(lambda column: column[i], table)
        scaled = scheduler.scale_model_input(state.latents, row)
        both = shard(jnp.broadcast_to(scaled, (2, *shape)))
        times = jnp.broadcast_to(row.timesteps, (2 * batch,))
        prediction = unet(both.reshape(2 * batch, *shape[1:]), times, embeds, added)
        uncond, cond = shard(prediction.reshape(2, *shape))
        guided = jnp.where(guidance_scale > 1, uncond + guidance_scale * (cond - uncond), cond)
        drawn = jax.lax.cond(
            row.noise > 0,
            lambda: step_noise(seeds, i, shape[1:]),
            lambda: jnp.zeros_like(state.latents),
        )
        return scheduler.step(guided, state, row, drawn)

    return jax.lax.fori_loop(start, stop, evaluate, state)


def _added(unet: UNet, conditioning: Conditioning) -> Array | None:
    """What SDXL adds to every time embedding, `[2 B, time_embed_dim]`."""
    pooled, time_ids = conditioning.pooled_prompt_embeds, conditioning.add_time_ids
    if pooled is None or time_ids is None:
        return None
    pooled = pooled.reshape(-1, pooled.shape[-1])
    return unet.embed_added(pooled, jnp.broadcast_to(time_ids, (len(pooled), 6)))


def decode(vae: VAE, latents: Array) -> tuple[Array, Array]:
    """Latents `[B, h, w, C]` to pictures `[B, H, W, 3]`, as float32 in 0..1 and as uint8."""
    images = jnp.clip(vae.decode(unscale(vae.config, latents)) / 2 + 0.5, 0, 1)
    return images, jnp.round(images * 255).astype(jnp.uint8)


def unscale(config: VAEConfig, latents: Array) -> Array:
    """The diffusion model's latents (about unit variance) to the VAE's own."""
    z = latents / config.scaling_factor
    if config.latents_mean is not None and config.latents_std is not None:
        z = z * jnp.array(config.latents_std, jnp.float32)
        z = z + jnp.array(config.latents_mean, jnp.float32)
    return z
