"""Trains the miniature's VAE on drawn scenes.

Most of the time on small crops (the network is convolutional, and a crop costs a sixteenth of a
picture), then on whole pictures, whose normalisation statistics are what it will meet in use.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pipeline.config import VAEConfig
from pipeline.vae import VAE
from tools.miniature.drawing import draw
from tools.miniature.scenes import random_scene
from tools.miniature.training import (
    Run,
    averaged,
    optimiser,
    parameters,
    sheet,
    start_as_identity,
    with_parameters,
)

PICTURE = 256
CROPS = (64, 16)  # pixels along a side, and how many in a batch
WHOLE = (256, 2)
WHOLE_SHARE = 1 / 6  # of all steps, the last ones
POOL = 6000
KL_WEIGHT = 2e-5


def draw_pool(count: int, seed: int) -> np.ndarray:
    """Pictures `[count, 256, 256, 3]` uint8 of random scenes."""
    rng = np.random.default_rng(seed)
    pictures = [draw(random_scene(rng), rng, PICTURE) for _ in range(count)]
    return np.array(pictures, np.uint8)


def loss_fn(vae: VAE, params: dict, images: jax.Array, key: jax.Array) -> jax.Array:
    """Squared error of the reconstruction, and a little of the KL divergence. images: -1..1."""
    model = with_parameters(vae, params)
    assert isinstance(model, VAE)
    mean, logvar = model.encode(images)
    noise = jax.random.normal(key, mean.shape)
    decoded = model.decode(mean + jnp.exp(0.5 * logvar) * noise)
    kl = 0.5 * jnp.mean(mean**2 + jnp.exp(logvar) - 1.0 - logvar)
    return jnp.mean((decoded - images) ** 2) + KL_WEIGHT * kl


def make_step(vae: VAE, steps: int) -> tuple[Callable, Callable]:
    """`init(params) -> state` and the compiled `step(state, images, key) -> state, loss`."""
    optimise = optimiser(steps)

    def init(params: dict) -> dict:
        count = jnp.zeros((), jnp.int32)
        average = jax.tree.map(jnp.copy, params)  # not the same buffers: both are donated
        return {"params": params, "average": average, "opt": optimise.init(params), "step": count}

    @partial(jax.jit, donate_argnums=0)
    def step(state: dict, images: jax.Array, key: jax.Array) -> tuple[dict, jax.Array]:
        params = state["params"]
        loss, gradient = jax.value_and_grad(partial(loss_fn, vae))(params, images, key)
        updates, opt = optimise.update(gradient, state["opt"], params)
        params = jax.tree.map(jnp.add, params, updates)
        count = state["step"] + 1
        average = averaged(state["average"], params, count)
        return {"params": params, "average": average, "opt": opt, "step": count}, loss

    return init, step


def crops(pool: np.ndarray, size: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Random crops `[count, size, size, 3]` in -1..1."""
    found = np.empty((count, size, size, 3), np.float32)
    for i in range(count):
        top, left = rng.integers(0, PICTURE - size + 1, 2)
        found[i] = pool[rng.integers(len(pool)), top : top + size, left : left + size]
    return found / 127.5 - 1


def psnr(vae: VAE, images: np.ndarray, batch: int = 8) -> tuple[float, np.ndarray]:
    """Decibels over pictures `[n, H, W, 3]` uint8, and the reconstructions in 0..1."""

    @jax.jit
    def rebuild(part: jax.Array) -> jax.Array:
        return jnp.clip(vae.decode(vae.encode(part)[0]) / 2 + 0.5, 0, 1)

    pieces = [
        np.asarray(rebuild(jnp.asarray(images[i : i + batch] / 127.5 - 1, jnp.float32)))
        for i in range(0, len(images), batch)
    ]
    rebuilt = np.concatenate(pieces)
    return float(-10 * np.log10(np.mean((rebuilt - images / 255) ** 2))), rebuilt


def train_vae(config: VAEConfig, folder: Path, steps: int, seed: int = 0) -> VAE:
    """Trains, or goes on training, and returns the averaged VAE. Progress goes into `folder`."""
    run = Run(folder)
    vae = VAE(config, dtype=jnp.float32, rngs=nnx.Rngs(seed))
    start_as_identity(vae)
    init, step = make_step(vae, steps)
    state = run.restore(init(parameters(vae)))
    first = int(state["step"])
    pool, check = draw_pool(POOL if first < steps else 0, seed), draw_pool(32, seed + 1)
    losses: list[float] = []
    for i in range(first, steps):
        rng = np.random.default_rng((seed, i))  # the same crops, resumed or not
        size, count = WHOLE if i >= steps * (1 - WHOLE_SHARE) else CROPS
        key = jax.random.fold_in(jax.random.key(seed), i)
        state, loss = step(state, crops(pool, size, count, rng), key)
        losses.append(float(loss))
        if (i + 1) % 100 == 0 or i + 1 == steps:
            point = {"step": i + 1, "loss": float(np.mean(losses))}
            losses.clear()
            if (i + 1) % 500 == 0 or i + 1 == steps:
                point["psnr"] = _check(with_parameters(vae, state["average"]), check, run)
                run.save(state)
            run.log(**point)
    run.plot({"loss": "loss", "psnr": "PSNR of whole pictures, dB"})
    trained = with_parameters(vae, state["average"])
    assert isinstance(trained, VAE)
    return trained


def _check(vae: nnx.Module, images: np.ndarray, run: Run) -> float:
    assert isinstance(vae, VAE)
    value, rebuilt = psnr(vae, images)
    sheet(np.stack([images[:8] / 255, rebuilt[:8]]), run.folder / "reconstructions.png")
    return value
