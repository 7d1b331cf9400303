"""Trains the miniature's UNet on the latents of drawn scenes and what people might call them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pipeline.models.config import Config
from pipeline.models.unet import UNet
from pipeline.schedulers.methods import train_sigmas
from pipeline.text.tokenizer import Tokenizers
from tools.miniature.latents import Latents
from tools.miniature.reader import TextEncoders
from tools.miniature.scenes import Scene, caption
from tools.miniature.training import minimise, parameters, start_as_identity, with_parameters
from tools.miniature.work import Run, Settings

BATCH = 48
NO_PROMPT = 0.1  # share of pictures trained without a prompt, for guidance
PAIRS = 0.85  # share of pictures with two things, which are learnt far more slowly than one
FRAGMENT = 0.06  # share of captions that are a word or two, as negative prompts are


def loss_weight(sigma: jax.Array) -> jax.Array:
    """Less for steps with hardly any noise (Hang et al. 2023, min-SNR with gamma 5), more for those
    with hardly any picture, where layout and colours are decided.
    """
    snr = 1 / sigma**2
    return jnp.minimum(snr, 5.0) / snr * (1 + sigma**2) ** 0.75


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
    """Weighted squared error of the predicted noise.

    Args:
        unet: with other parameters than `params`.
        encoders: of the prompts; not trained here.
        config: the schedule, and the pictures' size.
        params: the UNet's.
        latents: `[B, h, w, C]`.
        ids: `[B, 2, L]`, of the prompts.
        dropped: `[B]`, which prompts are left out.
        key: of the timesteps and the noise.
    """
    model = with_parameters(unet, params)
    count = len(latents)
    first, _ = encoders.first(ids[:, 0])
    second, pooled = encoders.second(ids[:, 1])
    assert pooled is not None
    embeds = jnp.concatenate([first, second], axis=-1)
    embeds = jnp.where(dropped[:, None, None], 0.0, embeds)
    pooled = jnp.where(dropped[:, None], 0.0, pooled)
    height, width = (float(side * config.vae.scale_factor) for side in latents.shape[1:3])
    time_ids = jnp.array([height, width, 0.0, 0.0, height, width], jnp.float32)
    context = model.condition(embeds, pooled, jnp.broadcast_to(time_ids, (count, 6)))
    time_key, noise_key = jax.random.split(key)
    sigmas = jnp.asarray(train_sigmas(config.scheduler), jnp.float32)
    # One timestep from each of `count` equal stretches: less variance than independent ones.
    strata = (jnp.arange(count) + jax.random.uniform(time_key, (count,))) / count
    times = jnp.floor(strata * len(sigmas)).astype(jnp.int32)
    sigma = sigmas[times]
    noise = jax.random.normal(noise_key, latents.shape)
    wide = sigma[:, None, None, None]
    noisy = (latents + wide * noise) / jnp.sqrt(wide**2 + 1)
    predicted = model(noisy, times.astype(jnp.float32), context)
    error = jnp.mean((predicted - noise) ** 2, axis=(1, 2, 3))
    return jnp.mean(error * loss_weight(sigma))


def say(scene: Scene, rng: np.random.Generator) -> str:
    """A caption, now and then only a word or two."""
    if rng.random() >= FRAGMENT:
        return caption(scene, rng)
    thing = scene.things[rng.integers(len(scene.things))]
    words = (thing.colour, thing.colour, thing.shape, f"{scene.background} background")
    return words[rng.integers(len(words))]


def train_unet(
    config: Config,
    encoders: TextEncoders,
    tokenizers: Tokenizers,
    pool: Latents,
    run: Run,
    settings: Settings,
) -> UNet:
    """Trains, or goes on training, and returns the averaged UNet."""
    seed = settings.seed
    unet = UNet(config.unet, dtype=jnp.float32, rngs=nnx.Rngs(seed))
    start_as_identity(unet)
    count = np.array([len(scene.things) for scene in pool.scenes])
    singles, pairs = (np.flatnonzero(count == n) for n in (1, 2))

    def batch(i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, jax.Array]:
        rng = np.random.default_rng((seed, 2, i))
        paired = rng.random(BATCH) < PAIRS
        chosen = np.where(paired, rng.choice(pairs, BATCH), rng.choice(singles, BATCH))
        words = [say(pool.scenes[k], rng) for k in chosen]
        ids, _ = tokenizers.tokenize(words)
        latents = pool.latents[chosen].astype(np.float32)
        key = jax.random.fold_in(jax.random.key(seed), i)
        return latents, ids, rng.random(BATCH) < NO_PROMPT, key

    loss = partial(loss_fn, unet, encoders, config)
    state = minimise(run, loss, parameters(unet), batch, settings.steps)
    run.plot({"loss": "weighted loss"})
    return with_parameters(unet, state["average"])
