"""Training of the miniature's UNet, on the latents of drawn scenes with captions."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pipeline.families.family import Config
from pipeline.models.unet import UNet
from pipeline.schedulers.sigmas import train_sigmas
from pipeline.text.tokenizer import Tokenizers
from tools.miniature.latents import Latents
from tools.miniature.reader import TextEncoders
from tools.miniature.scenes import Scene, caption
from tools.miniature.training import minimise, parameters, start_as_identity, with_parameters
from tools.miniature.work import Run, Settings

BATCH = 48
NO_PROMPT = 0.1  # share of pictures trained without a prompt, for guidance
PAIRS = 0.85  # share of pictures with two things, which are learnt far more slowly than one
# Half of the timesteps are in the noisiest 30 per cent, where the words alone decide what is drawn.
SKEW = 0.5
FRAGMENT = 0.06  # share of captions of one or two words, like negative prompts


def loss_weight(sigma: jax.Array, prediction_type: str) -> jax.Array:
    """Return the loss weight of each `sigma`.

    Steps with hardly any noise count less (Hang et al. 2023, min-SNR with gamma 5). Steps with
    hardly any picture decide layout and colours: they count more for predictions of noise, and in
    full for velocities.
    """
    snr = 1 / sigma**2
    if prediction_type == "v_prediction":
        return jnp.minimum(snr + 1, 6.0) / (snr + 1)
    return jnp.minimum(snr, 5.0) / snr * (1 + sigma**2) ** 0.75


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
    """Return the weighted squared error of the prediction: noise or velocity, as `config` says.

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
    embeds, pooled = encode_prompts(encoders, ids)
    return denoising_loss(unet, config, params, latents, embeds, pooled, dropped, key)


def encode_prompts(encoders: TextEncoders, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the prompts' embeddings `[B, L, D]` and pooled embeddings `[B, P]`.

    The token ids are `[B, 2, L]`.
    """
    first, _ = encoders.first(ids[:, 0])
    second, pooled = encoders.second(ids[:, 1])
    assert pooled is not None
    return jnp.concatenate([first, second], axis=-1), pooled


def denoising_loss(
    unet: UNet,
    config: Config,
    params: dict,
    latents: jax.Array,
    embeds: jax.Array,
    pooled: jax.Array,
    dropped: jax.Array,
    key: jax.Array,
) -> jax.Array:
    """Return the same as `loss_fn`, for prompts that `encode_prompts` has encoded."""
    model = with_parameters(unet, params)
    count = len(latents)
    embeds = jnp.where(dropped[:, None, None], 0.0, embeds).astype(unet.dtype)
    pooled = jnp.where(dropped[:, None], 0.0, pooled).astype(unet.dtype)
    factor = config.networks["vae"].scale_factor
    height, width = (float(side * factor) for side in latents.shape[1:3])
    time_ids = jnp.array([height, width, 0.0, 0.0, height, width], jnp.float32)
    context = model.condition(embeds, pooled, jnp.broadcast_to(time_ids, (count, 6)))
    time_key, noise_key = jax.random.split(key)
    sigmas = jnp.asarray(train_sigmas(config.scheduler), jnp.float32)
    # Draw one timestep from each of `count` equal intervals: the variance is lower than with
    # independent ones.
    strata = (jnp.arange(count) + jax.random.uniform(time_key, (count,))) / count
    times = jnp.floor(strata**SKEW * len(sigmas)).astype(jnp.int32)
    sigma = sigmas[times]
    noise = jax.random.normal(noise_key, latents.shape)
    noisy, velocity = noised(latents, noise, sigma[:, None, None, None])
    kind = config.scheduler.prediction_type
    target = velocity if kind == "v_prediction" else noise
    predicted = model(noisy, times.astype(jnp.float32), context)
    error = jnp.mean((predicted - target) ** 2, axis=(1, 2, 3))
    return jnp.mean(error * loss_weight(sigma, kind))


def say(scene: Scene, rng: np.random.Generator) -> str:
    """Return a caption of a scene, now and then of only one or two words."""
    if rng.random() >= FRAGMENT:
        return caption(scene, rng)
    thing = scene.things[rng.integers(len(scene.things))]
    words = (thing.colour, thing.colour, thing.shape, f"{scene.background} background")
    return words[rng.integers(len(words))]


def chooser(pool: Latents, size: int, pairs: float) -> Callable[[np.random.Generator], np.ndarray]:
    """Return a function that chooses a batch of `size` pictures, and returns their indices.

    `pairs` is the share of pictures with two things.
    """
    count = np.array([len(scene.things) for scene in pool.scenes])
    single, paired = (np.flatnonzero(count == n) for n in (1, 2))

    def choose(rng: np.random.Generator) -> np.ndarray:
        is_pair = rng.random(size) < pairs
        return np.where(is_pair, rng.choice(paired, size), rng.choice(single, size))

    return choose


def train_unet(
    config: Config,
    encoders: TextEncoders,
    tokenizers: Tokenizers,
    pool: Latents,
    run: Run,
    settings: Settings,
) -> UNet:
    """Train the UNet, or resume its training, and return the averaged UNet."""
    seed = settings.seed
    unet = UNet(config.networks["unet"], dtype=jnp.float32, rngs=nnx.Rngs(seed))
    start_as_identity(unet)
    choose = chooser(pool, BATCH, PAIRS)

    def batch(i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, jax.Array]:
        rng = np.random.default_rng((seed, 2, i))
        chosen = choose(rng)
        words = [say(pool.scenes[k], rng) for k in chosen]
        ids, _ = tokenizers.tokenize(words)
        latents = pool.latents[chosen].astype(np.float32)
        key = jax.random.fold_in(jax.random.key(seed), i)
        return latents, ids, rng.random(BATCH) < NO_PROMPT, key

    loss = partial(loss_fn, unet, encoders, config)
    state = minimise(run, loss, parameters(unet), batch, settings.steps)
    run.plot({"loss": "weighted loss"})
    return with_parameters(unet, state["average"])
