"""Training of the miniature's VAE on composed scenes, and the latents that it makes."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pipeline.models.vae import VAE
from tools.trainer.composition import SIDE, boxes, draw_at, random_scene
from tools.trainer.things import all_things
from tools.trainer.training import (
    Run,
    for_device,
    minimise,
    parameters,
    sheet,
    until,
    with_parameters,
)

CHECKED = 32  # pictures that the PSNR is measured on
KL_WEIGHT = 1e-5
NOISE = 0.5  # most noise in training, as a share of the latents' spread
REDUCED = 0.25  # weight of reduced pictures
ENCODED_AT_ONCE = 16
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


def make_encoder(vae: VAE) -> Callable[[np.ndarray], np.ndarray]:
    """Return a compiled encoder.

    It encodes pictures `[B, H, W, 3]` uint8 to scaled latents `[B, h, w, C]` float16.
    """

    @jax.jit
    def encode(images: jax.Array) -> jax.Array:
        mean, _ = vae.encode(images.astype(jnp.float32) / 127.5 - 1)
        return mean * vae.config.scaling_factor

    return lambda images: np.asarray(encode(jnp.asarray(images)), np.float16)


def normalise(vae: VAE, pictures: np.ndarray) -> None:
    """Rescale the VAE's latents in place, to zero mean and unit variance in each channel.

    That holds after multiplication by `scaling_factor`, over `pictures` `[n, H, W, 3]` uint8.
    Reconstructions stay the same: the 1x1 convolutions on both sides of the latents absorb it.

    The variance is that of the encoder's whole distribution, with its own noise. So a channel that
    the VAE hardly uses becomes nearly constant, and the UNet has nothing to learn from it.
    """
    encode = jax.jit(lambda part: vae.encode(part.astype(jnp.float32) / 127.5 - 1))
    parts = [
        encode(jnp.asarray(pictures[i : i + ENCODED_AT_ONCE]))
        for i in range(0, len(pictures), ENCODED_AT_ONCE)
    ]
    mean, logvar = (np.concatenate(part).astype(np.float64) for part in zip(*parts, strict=True))
    axes = (0, 1, 2)
    centre = mean.mean(axes)
    spread = np.sqrt(mean.var(axes) + np.exp(logvar).mean(axes)) * vae.config.scaling_factor
    # mean' = (mean - centre) / spread; the variance is divided by spread**2.
    scale = jnp.asarray(np.concatenate([1 / spread, np.ones_like(spread)]), jnp.float32)
    shift = jnp.asarray(np.concatenate([centre / spread, 2 * np.log(spread)]), jnp.float32)
    into, out = vae.quant_conv, vae.post_quant_conv
    assert into.bias is not None
    assert out.bias is not None
    into.kernel[...] = into.kernel[...] * scale
    into.bias[...] = into.bias[...] * scale - shift
    # z = z' * spread + centre, merged into the kernel and bias of `out`.
    kernel = out.kernel[...]
    out.bias[...] = out.bias[...] + jnp.asarray(centre, jnp.float32) @ kernel[0, 0]
    out.kernel[...] = kernel * jnp.asarray(spread, jnp.float32)[:, None]
