"""Training of the miniature's VAE on composed scenes."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.models.vae import VAE
from tools.miniature.train_vae import psnr
from tools.miniature.training import (
    for_device,
    minimise,
    parameters,
    sheet,
    until,
    with_parameters,
)
from tools.miniature.work import Run
from tools.trainer.composition import SIDE, boxes, draw_at, random_scene
from tools.trainer.things import all_things

CHECKED = 32  # pictures that the PSNR is measured on
KL_WEIGHT = 1e-5
NOISE = 0.5  # most noise in training, as a share of the latents' spread
REDUCED = 0.25  # weight of reduced pictures
SHARES = (0.5, 0.3, 0.2)  # of one thing, two, several of a kind


def loss_fn(vae: VAE, params: dict, images: jax.Array, key: jax.Array) -> jax.Array:
    """Return the error of the reconstruction from noisy latents, plus a small KL divergence.

    `images` are in -1..1. Latents are easy to draw if small errors in them do little and if they
    vary smoothly. So noise of a random share of their spread is added, and the same latents reduced
    by two have to decode to the pictures reduced by two (Kouzelis et al. 2025).
    """
    model = with_parameters(vae, params)
    mean, logvar = model.encode(images)
    spread = jax.lax.stop_gradient(jnp.std(mean, axis=(0, 1, 2)))
    share_key, noise_key = jax.random.split(key)
    share = NOISE * jax.random.uniform(share_key, (len(images), 1, 1, 1))
    scale = jnp.sqrt(jnp.exp(logvar) + (share * spread) ** 2)
    latents = mean + scale * jax.random.normal(noise_key, mean.shape)
    kl = 0.5 * jnp.mean(mean**2 + jnp.exp(logvar) - 1.0 - logvar)
    reduced_loss = difference(model.decode(halved(latents)), halved(images))
    return difference(model.decode(latents), images) + REDUCED * reduced_loss + KL_WEIGHT * kl


def difference(result: jax.Array, expected: jax.Array) -> jax.Array:
    """Return the mean error, squared and absolute. The absolute error keeps edges crisp."""
    error = result - expected
    return jnp.mean(error**2) + 0.1 * jnp.mean(jnp.sqrt(error**2 + 1e-4))


def halved(x: jax.Array) -> jax.Array:
    """Return the means `[B, H/2, W/2, C]` of squares of 2x2."""
    count, height, width, channels = x.shape
    return x.reshape(count, height // 2, 2, width // 2, 2, channels).mean((2, 4))


@partial(jax.jit, static_argnums=2)
def choose(pool: jax.Array, key: jax.Array, count: int) -> jax.Array:
    """Return `count` pictures of a pool of uint8, in -1..1."""
    return pool[jax.random.randint(key, (count,), 0, len(pool))] / 127.5 - 1


def train_vae(
    vae: VAE,
    run: Run,
    pictures: np.ndarray,
    seed: int,
    *,
    size: int,
    end: float,
    peak: float,
) -> VAE:
    """Train a VAE, or resume, until `end`, on batches of `size` pictures; return the average."""
    pool = jnp.asarray(pictures)

    def batch(i: int) -> tuple[jax.Array, jax.Array]:
        key, choice = jax.random.split(jax.random.fold_in(jax.random.key(seed), i))
        return choose(pool, choice, size), key

    state = minimise(
        run,
        partial(loss_fn, for_device(VAE, vae.config)),
        parameters(vae),
        batch,
        until(end),
        peak=peak,
        check=lambda average: measure(with_parameters(vae, average), run.folder, seed + 2),
    )
    run.plot({"loss": "loss", "psnr": "PSNR, dB", "in_boxes": "PSNR inside things' boxes, dB"})
    return with_parameters(vae, state["average"])


def measure(vae: VAE, folder: Path, seed: int) -> dict[str, float]:
    """Return the PSNR in dB over unseen pictures, and over the boxes of their things alone.

    Some of the pictures, and their reconstructions, become a file in `folder`.
    """
    pictures, masks = [], []
    for i in range(CHECKED):
        rng = np.random.default_rng((seed, i))
        scene = random_scene(rng, all_things(), SHARES)
        rng = np.random.default_rng((seed, i, 1))
        places = boxes(scene)
        pictures.append(draw_at(places, scene, rng))
        mask = np.zeros((SIDE, SIDE), bool)
        for x, y, size in places:
            left, top, right, bottom = (
                round(SIDE * at) for at in (x - size / 2, y - size / 2, x + size / 2, y + size / 2)
            )
            mask[max(0, top) : bottom, max(0, left) : right] = True
        masks.append(mask)
    images = np.array(pictures)
    value, reconstructions = psnr(vae, images)
    sheet(np.stack([images[:8] / 255, reconstructions[:8]]), folder / "reconstructions.png")
    error = ((reconstructions - images / 255) ** 2)[np.array(masks)]
    return {"psnr": value, "in_boxes": float(-10 * np.log10(error.mean()))}
