"""From token ids to pictures: encode, denoise, decode. Pure functions, traced under `jit`.

Guidance batch order is [uncond, cond]: arrays with a leading axis of 2 hold the negative prompt's
half first. Networks see one batch of 2B in which a picture's two halves are neighbours, so that
pictures spread over devices stay there: the batch of a device is one run of the whole.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pipeline import scheduler
from pipeline.clip import CLIPTextEncoder
from pipeline.config import SchedulerConfig, VAEConfig
from pipeline.unet import UNet
from pipeline.vae import VAE

Shard = Callable[[Array], Array]


class Conditioning(NamedTuple):
    """What the UNet is told about the prompts.

    prompt_embeds `[2, B, L, D]`, pooled_prompt_embeds `[2, B, P]`, add_time_ids `[6]` float32 =
    (height, width, top, left, height, width) in pixels.
    """

    prompt_embeds: Array
    pooled_prompt_embeds: Array
    add_time_ids: Array


def encode(
    text_encoder: CLIPTextEncoder,
    text_encoder_2: CLIPTextEncoder,
    input_ids: Array,
    zero_negative: Array,
    size: tuple[int, int],
    shard: Shard = lambda x: x,
) -> Conditioning:
    """Prompts to conditioning.

    Args:
        text_encoder: the first, whose pooled output is not used.
        text_encoder_2: the second, with a projection.
        input_ids: `[2, B, 2, L]` int32: negative and positive prompts; last but one axis: the two
            tokenizers.
        zero_negative: `[B]` bool: this picture's negative prompt counts as zero embeddings.
        size: height and width in pixels.
        shard: applied to the batch of 2B, `[2B, ...]`, to spread it over devices.
    """
    ids = shard(_joined(input_ids))
    first, _ = text_encoder(ids[:, 0])
    second, pooled = text_encoder_2(ids[:, 1])
    assert pooled is not None  # the second encoder has a projection
    embeds = _halves(jnp.concatenate([first, second], axis=-1))
    pooled = _halves(pooled)
    dropped = jnp.stack([zero_negative, jnp.zeros_like(zero_negative)])  # [2, B]
    return Conditioning(
        prompt_embeds=jnp.where(dropped[:, :, None, None], 0, embeds),
        pooled_prompt_embeds=jnp.where(dropped[:, :, None], 0, pooled),
        add_time_ids=jnp.array([*size, 0, 0, *size], jnp.float32),
    )


def noise(seeds: Array, shape: tuple[int, int, int]) -> Array:
    """Standard normal noise `[B, h, w, C]` float32; each picture's from its own seed alone.

    seeds `[B]` uint32.
    """

    def draw(seed: Array) -> Array:
        # Named, so that a seed means the same picture whatever JAX's default generator is.
        return jax.random.normal(jax.random.key(seed, impl="threefry2x32"), shape, jnp.float32)

    return jax.vmap(draw)(seeds)


def denoise(
    unet: UNet,
    config: SchedulerConfig,
    latents: Array,
    conditioning: Conditioning,
    timesteps: Array,
    sigmas: Array,
    guidance_scale: Array,
    start: Array,
    stop: Array,
    shard: Shard = lambda x: x,
) -> Array:
    """Steps `start` to `stop` of a run, with classifier-free guidance (Ho and Salimans 2022).

    Args:
        unet: predicts what `config` says.
        config: of the schedule.
        latents: `[B, h, w, C]` float32, as step `start` expects them.
        conditioning: of both halves.
        timesteps: `[T]` float32; T may exceed the run's number of steps.
        sigmas: `[T + 1]` float32.
        guidance_scale: float32 scalar; 1 and below means no guidance.
        start: int32 scalar, the first step.
        stop: int32 scalar, the first step that is not done.
        shard: applied to the batch of 2B, `[2B, ...]`, to spread it over devices.

    Returns the latents after step `stop - 1`, `[B, h, w, C]` float32.
    """
    batch = 2 * latents.shape[0]
    embeds = shard(_joined(conditioning.prompt_embeds))
    time_ids = jnp.broadcast_to(conditioning.add_time_ids, (batch, 6))
    added = unet.embed_added(shard(_joined(conditioning.pooled_prompt_embeds)), time_ids)

    def step(i: Array, latents: Array) -> Array:
        scaled = scheduler.scale_model_input(latents, sigmas[i])
        both = shard(_joined(jnp.broadcast_to(scaled, (2, *scaled.shape))))
        times = jnp.broadcast_to(timesteps[i], (batch,))
        uncond, cond = _halves(shard(unet(both, times, embeds, added)))
        guided = jnp.where(guidance_scale > 1, uncond + guidance_scale * (cond - uncond), cond)
        return scheduler.step(guided, latents, sigmas[i], sigmas[i + 1], config.prediction_type)

    return jax.lax.fori_loop(start, stop, step, latents)


def _joined(halves: Array) -> Array:
    """`[2, B, ...] -> [2B, ...]`, a picture's halves side by side."""
    return jnp.swapaxes(halves, 0, 1).reshape(-1, *halves.shape[2:])


def _halves(joined: Array) -> Array:
    """`[2B, ...] -> [2, B, ...]`."""
    return jnp.swapaxes(joined.reshape(-1, 2, *joined.shape[1:]), 0, 1)


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
