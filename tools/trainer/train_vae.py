"""Training of the miniature's VAE on composed scenes.

The first half of the steps uses small crops, where there is most to see: the network is
convolutional, and a crop costs a sixteenth of a picture. The second half uses whole pictures, whose
normalisation statistics are those of actual use.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.models.vae import VAE
from tools.miniature.train_vae import psnr
from tools.miniature.training import minimise, parameters, sheet, with_parameters
from tools.miniature.work import Run, Tree
from tools.trainer.composition import SIDE, boxes, draw, draw_at, random_scene
from tools.trainer.things import all_things

CROP = 64  # pixels
CROPS, WHOLES = 24, 2  # in a batch
TRIES = 3  # crops to choose the most contrasted from
CHECKED = 32  # pictures that the PSNR is measured on
KL_WEIGHT = 1e-5
NOISE = 0.5  # most noise in training, as a share of the latents' spread
REDUCED = 0.25  # weight of reduced pictures
SHARES = (0.5, 0.3, 0.2)  # of one thing, two, several of a kind


def draw_pool(count: int, seed: int) -> np.ndarray:
    """Draw pictures `[count, SIDE, SIDE, 3]` uint8 of random scenes."""
    rng = np.random.default_rng(seed)
    return np.array(
        [draw(random_scene(rng, all_things(), SHARES), rng) for _ in range(count)], np.uint8
    )


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
    reduced = difference(model.decode(halved(latents)), halved(images))
    return difference(model.decode(latents), images) + REDUCED * reduced + KL_WEIGHT * kl


def difference(found: jax.Array, expected: jax.Array) -> jax.Array:
    """Return the mean error, squared and absolute. The absolute error keeps edges crisp."""
    error = found - expected
    return jnp.mean(error**2) + 0.1 * jnp.mean(jnp.sqrt(error**2 + 1e-4))


def halved(x: jax.Array) -> jax.Array:
    """Return the means `[B, H/2, W/2, C]` of squares of 2x2."""
    count, height, width, channels = x.shape
    return x.reshape(count, height // 2, 2, width // 2, 2, channels).mean((2, 4))


def crops(pool: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return contrasted crops `[count, CROP, CROP, 3]` in -1..1."""

    def crop() -> np.ndarray:
        top, left = rng.integers(0, pool.shape[1] - CROP + 1, 2)
        return pool[rng.integers(len(pool)), top : top + CROP, left : left + CROP]

    chosen = [max((crop() for _ in range(TRIES)), key=lambda x: x.std()) for _ in range(count)]
    return np.array(chosen, np.float32) / 127.5 - 1


def train_vae(
    vae: VAE, run: Run, pool_size: int, seed: int, *, steps: int, whole: float, peak: float
) -> VAE:
    """Train a VAE, or resume, with a share of steps on whole pictures; return the average."""
    pool = cache(partial(draw_pool, pool_size, seed))  # not drawn when done
    shown = draw_pool(CHECKED, seed + 1)

    def batch(i: int) -> tuple[np.ndarray, jax.Array]:
        rng = np.random.default_rng((seed, i))
        key = jax.random.fold_in(jax.random.key(seed), i)
        if i < steps * (1 - whole):
            return crops(pool(), CROPS, rng), key
        return pool()[rng.integers(pool_size, size=WHOLES)].astype(np.float32) / 127.5 - 1, key

    def check(average: Tree) -> dict[str, float]:
        averaged = with_parameters(vae, average)
        value, rebuilt = psnr(averaged, shown)
        sheet(np.stack([shown[:8] / 255, rebuilt[:8]]), run.folder / "reconstructions.png")
        return {"psnr": value, "in_boxes": in_boxes(averaged, seed + 2)}

    loss = partial(loss_fn, vae)
    state = minimise(run, loss, parameters(vae), batch, steps, peak=peak, check=check)
    run.plot({"loss": "loss", "psnr": "PSNR, dB", "in_boxes": "PSNR inside things' boxes, dB"})
    return with_parameters(vae, state["average"])


def in_boxes(vae: VAE, seed: int, count: int = 32) -> float:
    """Return the PSNR in dB over the boxes of things alone."""
    pictures, masks = [], []
    for i in range(count):
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
    _, rebuilt = psnr(vae, images)
    return float(-10 * np.log10(np.mean(((rebuilt - images / 255) ** 2)[np.array(masks)])))
