"""The diffusion model's training set: scenes that are drawn and encoded by the VAE once."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.models.vae import VAE
from tools.miniature.drawing import PLAIN, Decoration, draw
from tools.miniature.scenes import Scene, random_scene
from tools.miniature.training import parameters
from tools.miniature.work import ENCODED_AT_ONCE, whole


class Latents(NamedTuple):
    """A pool of scenes with their latents `[n, h, w, C]` float16, scaled to unit variance.

    Latents are the means of the encoder's distributions, because their noise is not predictable.
    """

    scenes: list[Scene]
    latents: np.ndarray


def make_encoder(vae: VAE) -> Callable[[np.ndarray], np.ndarray]:
    """Return a compiled encoder.

    It encodes pictures `[B, H, W, 3]` uint8 to scaled latents `[B, h, w, C]` float16.
    """

    @jax.jit
    def encode(images: jax.Array) -> jax.Array:
        mean, _ = vae.encode(images.astype(jnp.float32) / 127.5 - 1)
        return mean * vae.config.scaling_factor

    return lambda images: np.asarray(encode(jnp.asarray(images)), np.float16)


def draw_latents(
    vae: VAE, folder: Path, count: int, seed: int, size: int, decoration: Decoration = PLAIN
) -> Latents:
    """Draw and encode `count` scenes (a multiple of 16) of `size` pixels, without held-out pairs.

    Encoding takes minutes, so batches are kept in `folder`, under a name that changes with the VAE.
    A folder is for one decoration.
    """
    encode = make_encoder(vae)
    weights = hashlib.sha256(
        b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(parameters(vae)))
    )
    kept = folder / f"latents-{weights.hexdigest()[:16]}"
    kept.mkdir(parents=True, exist_ok=True)
    scenes: list[Scene] = []
    parts: list[np.ndarray] = []
    for start in range(0, count, ENCODED_AT_ONCE):
        # Each scene has its own seed, so that a larger set begins with the smaller one.
        rngs = [np.random.default_rng((seed, start + i)) for i in range(ENCODED_AT_ONCE)]
        drawn = [random_scene(rng) for rng in rngs]
        scenes += drawn
        file = kept / f"{seed}-{start}.npz"
        if not file.exists():
            each = zip(drawn, rngs, strict=True)
            pictures = [draw(scene, rng, size, decoration) for scene, rng in each]
            with whole(file) as part:
                np.savez(part, mean=encode(np.stack(pictures)))
        with np.load(file) as saved:
            parts.append(saved["mean"])
        if len(scenes) % 1024 == 0:
            print(f"encoded {len(scenes)} of {count} pictures", flush=True)
    return Latents(scenes, np.concatenate(parts))


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
