"""Training of the miniature's UNet, on the latents of composed scenes with captions."""

from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.families.family import Config
from pipeline.models.unet import UNet
from pipeline.models.vae import VAE
from pipeline.schedulers.sigmas import train_sigmas
from pipeline.text.tokenizer import Tokenizers
from tools.miniature.latents import make_encoder
from tools.miniature.training import with_parameters
from tools.miniature.work import whole
from tools.trainer.composition import Scene, draw
from tools.trainer.reader import TextEncoders

NO_PROMPT = 0.1  # share of pictures trained without a prompt, for guidance
ENCODED_AT_ONCE = 16


def loss_weight(sigma: jax.Array) -> jax.Array:
    """Return the loss weight of each `sigma`: steps with hardly any noise count less.

    Hang et al. 2023, min-SNR with gamma 5, for velocities; steps with hardly any picture, which
    decide what it shows, keep their full weight.
    """
    snr = 1 / sigma**2
    return jnp.minimum(snr + 1, 6.0) / (snr + 1)


def noised(latents: jax.Array, noise: jax.Array, sigma: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return latents with noise at `sigma`, of unit variance, and their velocity."""
    scale = jnp.sqrt(sigma**2 + 1)
    return (latents + sigma * noise) / scale, (noise - sigma * latents) / scale


def denoising_loss(
    unet: UNet,
    config: Config,
    params: dict,
    latents: jax.Array,
    embeds: jax.Array,
    pooled: jax.Array,
    key: jax.Array,
) -> jax.Array:
    """Return the weighted squared error of the predicted velocity (Salimans and Ho 2022).

    Args:
        unet: the network; `params` replace its parameters.
        config: gives the schedule and the pictures' size.
        params: the UNet's parameters.
        latents: `[B, h, w, C]`.
        embeds: the prompts' embeddings, `[B, L, D]`.
        pooled: their pooled embeddings, `[B, P]`.
        key: the random key for dropped prompts, timesteps and noise.
    """
    model = with_parameters(unet, params)
    count = len(latents)
    drop_key, time_key, noise_key = jax.random.split(key, 3)
    dropped = jax.random.uniform(drop_key, (count,)) < NO_PROMPT
    embeds = jnp.where(dropped[:, None, None], 0.0, embeds)
    pooled = jnp.where(dropped[:, None], 0.0, pooled)
    factor = config.networks["vae"].scale_factor
    height, width = (float(side * factor) for side in latents.shape[1:3])
    time_ids = jnp.array([height, width, 0.0, 0.0, height, width], jnp.float32)
    context = model.condition(embeds, pooled, jnp.broadcast_to(time_ids, (count, 6)))
    sigmas = jnp.asarray(train_sigmas(config.scheduler), jnp.float32)
    # Draw one timestep from each of `count` equal intervals: the variance is lower than with
    # independent ones.
    strata = (jnp.arange(count) + jax.random.uniform(time_key, (count,))) / count
    times = jnp.floor(strata * len(sigmas)).astype(jnp.int32)
    sigma = sigmas[times]
    noise = jax.random.normal(noise_key, latents.shape)
    noisy, velocity = noised(latents, noise, sigma[:, None, None, None])
    predicted = model(noisy, times.astype(jnp.float32), context)
    error = jnp.mean((predicted - velocity) ** 2, axis=(1, 2, 3))
    return jnp.mean(error * loss_weight(sigma))


def encode_prompts(encoders: TextEncoders, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the prompts' embeddings `[B, L, D]` and pooled embeddings `[B, P]`.

    The token ids are `[B, 2, L]`.
    """
    first, _ = encoders.first(ids[:, 0])
    second, pooled = encoders.second(ids[:, 1])
    assert pooled is not None
    return jnp.concatenate([first, second], axis=-1), pooled


def loss_fn(
    unet: UNet,
    encoders: TextEncoders,
    config: Config,
    params: dict,
    latents: jax.Array,
    ids: jax.Array,
    key: jax.Array,
) -> jax.Array:
    """Return `denoising_loss` of prompts given as token ids `[B, 2, L]`."""
    return denoising_loss(unet, config, params, latents, *encode_prompts(encoders, ids), key)


MakeScene = Callable[[np.random.Generator], Scene]


def encoded_scenes(
    vae: VAE, folder: Path, make: MakeScene, count: int, seed: int
) -> tuple[list[Scene], np.ndarray]:
    """Compose `count` scenes and encode them, or read those encoded before from `folder`.

    Returns:
        The scenes, and their scaled latents `[count, h, w, C]` float16.
    """
    folder.mkdir(parents=True, exist_ok=True)
    encode = make_encoder(vae)
    scenes: list[Scene] = []
    parts: list[np.ndarray] = []
    for start in range(0, count, ENCODED_AT_ONCE):
        # Each scene has its own seed, so that a larger set begins with the smaller one.
        rngs = [np.random.default_rng((seed, start + i)) for i in range(ENCODED_AT_ONCE)]
        made = [make(rng) for rng in rngs]
        scenes += made
        file = folder / f"{seed}-{start}.npy"
        if not file.exists():
            pictures = [draw(scene, rng) for scene, rng in zip(made, rngs, strict=True)]
            with whole(file) as part, part.open("wb") as out:
                np.save(out, encode(np.stack(pictures)))
        parts.append(np.load(file))
    return scenes, np.concatenate(parts)


def batches(
    scenes: Sequence[Scene],
    latents: np.ndarray,
    tokenizers: Tokenizers,
    say: Callable[[Sequence[Scene], np.random.Generator], list[str]],
    size: int,
    seed: int,
) -> Callable[[int], tuple[np.ndarray, np.ndarray, jax.Array]]:
    """Return a function that makes the batch of each step: latents, token ids, random key."""

    def batch(i: int) -> tuple[np.ndarray, np.ndarray, jax.Array]:
        rng = np.random.default_rng((seed, 2, i))
        chosen = rng.integers(len(scenes), size=size)
        ids, _ = tokenizers.tokenize(say([scenes[k] for k in chosen], rng))
        key = jax.random.fold_in(jax.random.key(seed), i)
        return latents[chosen].astype(np.float32), ids, key

    return batch
