"""Trains the miniature's UNet on the latents of drawn scenes and what people might call them."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pipeline.config import Config
from pipeline.scheduler import train_sigmas
from pipeline.tokenizer import Tokenizers
from pipeline.unet import UNet
from tools.miniature.latents import Latents
from tools.miniature.reader import TextEncoders
from tools.miniature.scenes import Scene, caption
from tools.miniature.training import (
    Run,
    averaged,
    optimiser,
    parameters,
    start_as_identity,
    with_parameters,
)

BATCH = 48
NO_PROMPT = 0.1  # share of pictures trained without a prompt, for guidance
FRAGMENT = 0.06  # share of captions that are a word or two, as negative prompts are
SIZE = (256.0, 256.0)


def loss_weight(sigma: jax.Array) -> jax.Array:
    """Less for steps with hardly any noise (Hang et al. 2023, min-SNR with gamma 5), more for those
    with hardly any picture, where layout and colours are decided.
    """
    snr = 1 / sigma**2
    return jnp.minimum(snr, 5.0) / snr * (1 + sigma**2) ** 0.75


class Trainer:
    """The compiled training step, and the batches it is fed."""

    def __init__(
        self, config: Config, encoders: TextEncoders, tokenizers: Tokenizers, steps: int, seed: int
    ):
        self.unet = UNet(config.unet, dtype=jnp.float32, rngs=nnx.Rngs(seed))
        start_as_identity(self.unet)
        self._encoders = encoders
        self._tokenizers = tokenizers
        self._sigmas = jnp.asarray(train_sigmas(config.scheduler), jnp.float32)
        self._optimise = optimiser(steps)
        self.step = jax.jit(self._step, donate_argnums=0)

    def init(self) -> dict[str, Any]:
        """The state that `step` takes and gives."""
        params = jax.tree.map(jnp.copy, parameters(self.unet))
        average = jax.tree.map(jnp.copy, params)
        opt = self._optimise.init(params)
        return {"params": params, "average": average, "opt": opt, "step": jnp.zeros((), jnp.int32)}

    def _loss(
        self, params: dict, latents: jax.Array, ids: jax.Array, dropped: jax.Array, key: jax.Array
    ) -> jax.Array:
        unet = with_parameters(self.unet, params)
        assert isinstance(unet, UNet)
        count = len(latents)
        first, _ = self._encoders.first(ids[:, 0])
        second, pooled = self._encoders.second(ids[:, 1])
        assert pooled is not None
        embeds = jnp.concatenate([first, second], axis=-1)
        embeds = jnp.where(dropped[:, None, None], 0.0, embeds)
        pooled = jnp.where(dropped[:, None], 0.0, pooled)
        time_ids = jnp.array([*SIZE, 0.0, 0.0, *SIZE], jnp.float32)
        added = unet.embed_added(pooled, jnp.broadcast_to(time_ids, (count, 6)))
        time_key, noise_key = jax.random.split(key)
        # One timestep from each of `count` equal stretches: less variance than independent ones.
        strata = (jnp.arange(count) + jax.random.uniform(time_key, (count,))) / count
        times = jnp.floor(strata * len(self._sigmas)).astype(jnp.int32)
        sigma = self._sigmas[times]
        noise = jax.random.normal(noise_key, latents.shape)
        wide = sigma[:, None, None, None]
        noisy = (latents + wide * noise) / jnp.sqrt(wide**2 + 1)
        predicted = unet(noisy, times.astype(jnp.float32), embeds, added)
        error = jnp.mean((predicted - noise) ** 2, axis=(1, 2, 3))
        return jnp.mean(error * loss_weight(sigma))

    def _step(self, state: dict, *given: jax.Array) -> tuple[dict, jax.Array]:
        params = state["params"]
        loss, gradient = jax.value_and_grad(self._loss)(params, *given)
        updates, opt = self._optimise.update(gradient, state["opt"], params)
        params = jax.tree.map(jnp.add, params, updates)
        count = state["step"] + 1
        average = averaged(state["average"], params, count)
        return {"params": params, "average": average, "opt": opt, "step": count}, loss

    def batch(self, pool: Latents, seed: int, i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Latents, ids and which prompts are dropped; the same for step i, resumed or not."""
        rng = np.random.default_rng((seed, 2, i))
        chosen = rng.integers(len(pool.scenes), size=BATCH)
        words = [say(pool.scenes[k], rng) for k in chosen]
        ids, _ = self._tokenizers.tokenize(words)
        latents = pool.latents[chosen].astype(np.float32)
        return latents, ids, rng.random(BATCH) < NO_PROMPT


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
    folder: Path,
    steps: int,
    seed: int,
) -> UNet:
    """Trains, or goes on training, and returns the averaged UNet. Progress goes into `folder`."""
    run = Run(folder)
    trainer = Trainer(config, encoders, tokenizers, steps, seed)
    state = run.restore(trainer.init())
    losses: list[float] = []
    for i in range(int(state["step"]), steps):
        key = jax.random.fold_in(jax.random.key(seed), i)
        state, loss = trainer.step(state, *trainer.batch(pool, seed, i), key)
        losses.append(float(loss))
        if (i + 1) % 50 == 0 or i + 1 == steps:
            run.log(step=i + 1, loss=float(np.mean(losses)))
            losses.clear()
        if (i + 1) % 250 == 0 or i + 1 == steps:
            run.save(state)
    run.plot({"loss": "weighted loss"})
    trained = with_parameters(trainer.unet, state["average"])
    assert isinstance(trained, UNet)
    return trained
