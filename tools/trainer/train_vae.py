"""Training of the miniature's VAE on composed scenes.

The first half of the steps uses small crops, where there is most to see: the network is
convolutional, and a crop costs a sixteenth of a picture. The second half uses whole pictures, whose
normalisation statistics are those of actual use.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pipeline.models.vae import VAE
from pipeline.models.vae_config import VAEConfig
from tools.miniature.train_vae import psnr
from tools.miniature.training import minimise, parameters, sheet, start_as_identity, with_parameters
from tools.miniature.work import Run, Tree
from tools.trainer.composition import SIDE, boxes, draw, draw_at, random_scene
from tools.trainer.things import all_things

CROP = 64  # pixels
CROPS, WHOLES = 24, 2  # in a batch
TRIES = 3  # crops to choose the most contrasted from
WHOLE_SHARE = 0.5  # of all steps, the last ones
CHECKED = 32  # pictures that the PSNR is measured on
KL_WEIGHT = 1e-5
SHARES = (0.5, 0.3, 0.2)  # of one thing, two, several of a kind


def draw_pool(count: int, seed: int) -> np.ndarray:
    """Draw pictures `[count, SIDE, SIDE, 3]` uint8 of random scenes."""
    rng = np.random.default_rng(seed)
    return np.array(
        [draw(random_scene(rng, all_things(), SHARES), rng) for _ in range(count)], np.uint8
    )


def loss_fn(vae: VAE, params: dict, images: jax.Array, key: jax.Array) -> jax.Array:
    """Return the error of the reconstruction, squared and absolute, plus a small KL divergence.

    `images` are in -1..1. The absolute error keeps edges crisp.
    """
    model = with_parameters(vae, params)
    mean, logvar = model.encode(images)
    noise = jax.random.normal(key, mean.shape)
    error = model.decode(mean + jnp.exp(0.5 * logvar) * noise) - images
    kl = 0.5 * jnp.mean(mean**2 + jnp.exp(logvar) - 1.0 - logvar)
    return jnp.mean(error**2) + 0.1 * jnp.mean(jnp.sqrt(error**2 + 1e-4)) + KL_WEIGHT * kl


def crops(pool: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return contrasted crops `[count, CROP, CROP, 3]` in -1..1."""

    def crop() -> np.ndarray:
        top, left = rng.integers(0, pool.shape[1] - CROP + 1, 2)
        return pool[rng.integers(len(pool)), top : top + CROP, left : left + CROP]

    chosen = [max((crop() for _ in range(TRIES)), key=lambda x: x.std()) for _ in range(count)]
    return np.array(chosen, np.float32) / 127.5 - 1


def train_vae(config: VAEConfig, run: Run, steps: int, pictures: int, seed: int) -> VAE:
    """Train the VAE, or resume; return the averaged VAE."""
    vae = VAE(config, dtype=jnp.float32, rngs=nnx.Rngs(seed))
    start_as_identity(vae)
    pool = cache(partial(draw_pool, pictures, seed))  # not drawn when done
    shown = draw_pool(CHECKED, seed + 1)

    def batch(i: int) -> tuple[np.ndarray, jax.Array]:
        rng = np.random.default_rng((seed, i))
        key = jax.random.fold_in(jax.random.key(seed), i)
        if i < steps * (1 - WHOLE_SHARE):
            return crops(pool(), CROPS, rng), key
        return pool()[rng.integers(pictures, size=WHOLES)].astype(np.float32) / 127.5 - 1, key

    def check(average: Tree) -> dict[str, float]:
        averaged = with_parameters(vae, average)
        value, rebuilt = psnr(averaged, shown)
        sheet(np.stack([shown[:8] / 255, rebuilt[:8]]), run.folder / "reconstructions.png")
        return {"psnr": value, "in_boxes": in_boxes(averaged, seed + 2)}

    state = minimise(run, partial(loss_fn, vae), parameters(vae), batch, steps, check=check)
    run.plot({"loss": "loss", "psnr": "PSNR, dB", "in_boxes": "PSNR inside things' boxes, dB"})
    return with_parameters(vae, state["average"])


def in_boxes(vae: VAE, seed: int, count: int = 32) -> float:
    """Return the PSNR in dB over the boxes of things alone."""
    pictures, masks = [], []
    for i in range(count):
        rng = np.random.default_rng((seed, i))
        scene = random_scene(rng, all_things(), SHARES)
        rng = np.random.default_rng((seed, i, 1))
        places = boxes(scene, rng)
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
