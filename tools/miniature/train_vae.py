"""Training of the miniature's VAE on drawn scenes.

Most steps use small crops: the network is convolutional, and a crop costs a sixteenth of a picture.
The last steps use whole pictures, whose normalisation statistics are those of actual use.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pipeline.models.vae import VAE
from pipeline.models.vae_config import VAEConfig
from tools.miniature.drawing import draw
from tools.miniature.scenes import random_scene
from tools.miniature.training import (
    minimise,
    parameters,
    sheet,
    start_as_identity,
    with_parameters,
)
from tools.miniature.work import Run, Settings, Tree

CROP = 4  # a crop is this many times smaller than a picture, along each side
CROPS, WHOLES = 16, 2  # in a batch
WHOLE_SHARE = 1 / 6  # of all steps, the last ones
CHECKED = 32  # pictures that the PSNR is measured on
KL_WEIGHT = 2e-5


def draw_pool(count: int, seed: int, size: int = 256) -> np.ndarray:
    """Draw pictures `[count, size, size, 3]` uint8 of random scenes."""
    rng = np.random.default_rng(seed)
    pictures = [draw(random_scene(rng), rng, size) for _ in range(count)]
    return np.array(pictures, np.uint8)


def loss_fn(vae: VAE, params: dict, images: jax.Array, key: jax.Array) -> jax.Array:
    """Return the squared error of the reconstruction, plus a small KL divergence.

    `images` are in -1..1.
    """
    model = with_parameters(vae, params)
    mean, logvar = model.encode(images)
    noise = jax.random.normal(key, mean.shape)
    decoded = model.decode(mean + jnp.exp(0.5 * logvar) * noise)
    kl = 0.5 * jnp.mean(mean**2 + jnp.exp(logvar) - 1.0 - logvar)
    return jnp.mean((decoded - images) ** 2) + KL_WEIGHT * kl


def crops(pool: np.ndarray, size: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return random crops `[count, size, size, 3]` in -1..1."""
    found = np.empty((count, size, size, 3), np.float32)
    for i in range(count):
        top, left = rng.integers(0, pool.shape[1] - size + 1, 2)
        found[i] = pool[rng.integers(len(pool)), top : top + size, left : left + size]
    return found / 127.5 - 1


def psnr(vae: VAE, images: np.ndarray, batch: int = 8) -> tuple[float, np.ndarray]:
    """Return the PSNR over pictures `[n, H, W, 3]` uint8, in dB, and reconstructions in 0..1."""
    pieces = [
        np.asarray(_rebuild(vae, jnp.asarray(images[i : i + batch] / 127.5 - 1, jnp.float32)))
        for i in range(0, len(images), batch)
    ]
    rebuilt = np.concatenate(pieces)
    return float(-10 * np.log10(np.mean((rebuilt - images / 255) ** 2))), rebuilt


@nnx.jit
def _rebuild(vae: VAE, images: jax.Array) -> jax.Array:
    return jnp.clip(vae.decode(vae.encode(images)[0]) / 2 + 0.5, 0, 1)


def train_vae(config: VAEConfig, run: Run, settings: Settings, size: int) -> VAE:
    """Train the VAE, or resume, on pictures of `size` pixels; return the averaged VAE."""
    seed, steps = settings.seed, settings.vae_steps
    vae = VAE(config, dtype=jnp.float32, rngs=nnx.Rngs(seed))
    start_as_identity(vae)
    pool = cache(partial(draw_pool, settings.vae_pictures, seed, size))  # not drawn when done
    shown = draw_pool(CHECKED, seed + 1, size)

    def batch(i: int) -> tuple[np.ndarray, jax.Array]:
        rng = np.random.default_rng((seed, i))
        whole = i >= steps * (1 - WHOLE_SHARE)
        part, count = (1, WHOLES) if whole else (CROP, CROPS)
        return crops(pool(), size // part, count, rng), jax.random.fold_in(jax.random.key(seed), i)

    def check(average: Tree) -> dict[str, float]:
        value, rebuilt = psnr(with_parameters(vae, average), shown)
        sheet(np.stack([shown[:8] / 255, rebuilt[:8]]), run.folder / "reconstructions.png")
        return {"psnr": value}

    state = minimise(run, partial(loss_fn, vae), parameters(vae), batch, steps, check=check)
    run.plot({"loss": "loss", "psnr": "PSNR of whole pictures, dB"})
    return with_parameters(vae, state["average"])
