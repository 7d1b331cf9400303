"""The tiny VAE (AutoencoderTiny, by its author TAESD): latents to pictures, quickly.

Its encoder draws nothing, and is not loaded. The decoder is distilled from that of a full VAE and
works on the diffusion model's latents themselves. Activations are `[B, H, W, C]`. The layers have
the numbers that they have in diffusers, where layers without weights count.
"""

import re
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from pipeline.kernels import rows
from pipeline.models.layers import Upsample, conv
from pipeline.models.vae_config import TinyVAEConfig

LIMIT = 3.0  # latents beyond it are outliers, which the decoder was not trained for


def relu(x: Array) -> Array:
    """Return the positive part of x."""
    return jax.nn.relu(x)


def same(x: Array) -> Array:
    """Return x. This is the place of diffusers' upsampling, which `Upsample` does as well."""
    return x


class Block(nnx.Module):
    """Three convolutions with a skip connection around them."""

    def __init__(self, width: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        make = partial(conv, width, width, dtype=dtype, rngs=rngs)
        self.conv = nnx.List([make(), relu, make(), relu, make()])

    def __call__(self, x: Array) -> Array:
        """Apply the block, `[B, H, W, C] -> [B, H, W, C]`."""
        h = x
        for layer in self.conv:
            h = layer(h)
        return relu(h + x)


def _decoder(config: TinyVAEConfig, *, dtype: DTypeLike, rngs: nnx.Rngs) -> nnx.Sequential:
    """Make the decoder, `[B, h, w, C] -> [B, H, W, 3]`; the pictures are in 0..1."""
    width = config.decoder_width
    make = partial(conv, dtype=dtype, rngs=rngs)
    layers = [make(config.latent_channels, width), relu]
    for stage, blocks in enumerate(config.decoder_blocks):
        if stage:
            layers += [same, Upsample(width, bias=False, dtype=dtype, rngs=rngs)]
        layers += [Block(width, dtype=dtype, rngs=rngs) for _ in range(blocks)]
    return nnx.Sequential(*layers, make(width, config.in_channels))


class TinyVAE(nnx.Module):
    """The decoder.

    Pictures are in -1..1. Latents are the VAE's own, before `scaling_factor` is applied.
    """

    unused_tensors = re.compile(r"^encoder\.")

    def __init__(self, config: TinyVAEConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.config = config
        self.dtype = jnp.dtype(dtype)
        self.decoder = _decoder(config, dtype=dtype, rngs=rngs)

    def decode(self, z: Array) -> Array:
        """Decode latents `[B, h, w, C]` to pictures `[B, H, W, 3]` float32, about -1..1."""
        limited_latents = (jnp.tanh(z / LIMIT) * LIMIT).astype(self.dtype)
        return rows.whole(self.decoder(rows.own(limited_latents))).astype(jnp.float32) * 2 - 1
