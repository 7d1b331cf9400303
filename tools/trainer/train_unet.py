"""Training of the miniature's UNet, on latents of composed scenes with captions: loss, batches."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from pipeline.families.family import Config
from pipeline.models.unet import UNet
from pipeline.schedulers.sigmas import train_sigmas
from tools.trainer.reader import TextEncoders
from tools.trainer.training import Tree, with_parameters

NO_PROMPT = 0.1  # share of pictures trained without a prompt, for guidance
# Half of the timesteps are in the noisiest 30 per cent, where the words alone decide what is drawn.
SKEW = 0.5


def loss_weight(sigma: jax.Array) -> jax.Array:
    """Return the loss weight of the velocity at each `sigma`.

    Steps with hardly any noise count less (Hang et al. 2023, min-SNR with gamma 5).
    """
    snr = 1 / sigma**2
    return jnp.minimum(snr + 1, 6.0) / (snr + 1)


def noised(latents: jax.Array, noise: jax.Array, sigma: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return latents with noise at `sigma`, of unit variance, and their velocity.

    Salimans and Ho 2022, appendix D.
    """
    scale = jnp.sqrt(sigma**2 + 1)
    return (latents + sigma * noise) / scale, (noise - sigma * latents) / scale


def loss_fn(
    unet: UNet,
    encoders: TextEncoders,
    config: Config,
    params: dict,
    latents: jax.Array,
    ids: jax.Array,
    dropped: jax.Array,
    key: jax.Array,
) -> jax.Array:
    """Return the weighted squared error of the predicted velocity.

    Args:
        unet: the network; `params` replace its parameters.
        encoders: the prompts' text encoders, not trained here.
        config: gives the schedule and the pictures' size.
        params: the UNet's parameters.
        latents: `[B, h, w, C]`.
        ids: token ids `[B, 2, L]` of the prompts.
        dropped: `[B]`, which prompts are left out.
        key: the random key for the timesteps and the noise.
    """
    model = with_parameters(unet, params)
    embeds, pooled = prompt_embeddings(encoders, ids, dropped, unet.dtype)
    context = model.condition(embeds, pooled, time_ids(config, latents))
    return denoising_loss(lambda x, times: model(x, times, context), config, latents, key)


def prompt_embeddings(
    encoders: TextEncoders, ids: jax.Array, dropped: jax.Array, dtype: DTypeLike
) -> tuple[jax.Array, jax.Array]:
    """Return prompts' embeddings `[B, L, D]` and `[B, P]` in a dtype, zeros for those left out."""
    first_states, _ = encoders.first(ids[:, 0])
    second_states, pooled = encoders.second(ids[:, 1])
    assert pooled is not None
    embeds = jnp.concatenate([first_states, second_states], axis=-1)
    embeds = jnp.where(dropped[:, None, None], 0.0, embeds).astype(dtype)
    return embeds, jnp.where(dropped[:, None], 0.0, pooled).astype(dtype)


def time_ids(config: Config, latents: jax.Array) -> jax.Array:
    """Return SDXL's sizes and corners `[B, 6]` of whole pictures, in pixels."""
    factor = config.networks["vae"].scale_factor
    height, width = (float(side * factor) for side in latents.shape[1:3])
    sizes = jnp.array([height, width, 0.0, 0.0, height, width], jnp.float32)
    return jnp.broadcast_to(sizes, (len(latents), 6))


def denoising_loss(
    predict: Callable[[jax.Array, jax.Array], jax.Array],
    config: Config,
    latents: jax.Array,
    key: jax.Array,
) -> jax.Array:
    """Return the weighted squared error of the velocity.

    `predict` takes noisy latents `[B, h, w, C]` and timesteps `[B]`, and returns the velocity, or
    the noise if the schedule is one of noise.
    """
    count = len(latents)
    time_key, noise_key = jax.random.split(key)
    sigmas = jnp.asarray(train_sigmas(config.scheduler), jnp.float32)
    # Draw one timestep from each of `count` equal intervals: the variance is lower than with
    # independent ones.
    strata = (jnp.arange(count) + jax.random.uniform(time_key, (count,))) / count
    times = jnp.floor(strata**SKEW * len(sigmas)).astype(jnp.int32)
    sigma = sigmas[times]
    noise = jax.random.normal(noise_key, latents.shape)
    sigma_column = sigma[:, None, None, None]
    noisy, velocity = noised(latents, noise, sigma_column)
    predicted = predict(noisy, times.astype(jnp.float32))
    if config.scheduler.prediction_type == "epsilon":
        predicted = jnp.sqrt(sigma_column**2 + 1) * predicted - sigma_column * noisy
    error = jnp.mean((predicted - velocity) ** 2, axis=(1, 2, 3))
    return jnp.mean(error * loss_weight(sigma))


def batches(
    latents: np.ndarray, ids: np.ndarray, size: int, seed: int, words: Tree
) -> Callable[[int], tuple[Tree, ...]]:
    """Return a function that makes the batch of a step.

    It has the text encoders' parameters, latents, token ids, whether each prompt is left out, and a
    random key. The device keeps all latents and captions and chooses from them, so that no step
    waits for data.

    Args:
        latents: `[n, h, w, C]`.
        ids: `[n, captions, E, L]`.
        size: pictures in a batch.
        seed: makes the batches reproducible.
        words: the text encoders' parameters.
    """

    @jax.jit
    def batch(latents: jax.Array, ids: jax.Array, i: int) -> tuple[jax.Array, ...]:
        key, *keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), i), 4)
        picture_indices = jax.random.randint(keys[0], (size,), 0, len(latents))
        caption_indices = jax.random.randint(keys[1], (size,), 0, ids.shape[1])
        is_dropped = jax.random.bernoulli(keys[2], NO_PROMPT, (size,))
        return (
            latents[picture_indices].astype(jnp.float32),
            ids[picture_indices, caption_indices].astype(jnp.int32),
            is_dropped,
            key,
        )

    make_batch = partial(batch, jnp.asarray(latents), jnp.asarray(ids))
    return lambda i: (words, *make_batch(i))
