"""The tiny VAE (AutoencoderTiny, by its author TAESD): pictures to latents and back, quickly.

It is distilled from a full VAE and works on the diffusion model's latents themselves. Activations
are `[B, H, W, C]`. The layers have the numbers that they have in diffusers, where layers without
weights count.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from pipeline.kernels import rows
from pipeline.models.layers import Upsample, conv
from pipeline.models.tiny_vae_config import TinyVAEConfig

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


def _encoder(config: TinyVAEConfig, *, dtype: DTypeLike, rngs: nnx.Rngs) -> nnx.Sequential:
    """Make the encoder, `[B, H, W, 3] -> [B, h, w, C]`; the pictures are in 0..1."""
    width = config.encoder_width
    make = partial(conv, dtype=dtype, rngs=rngs)
    layers = []
    for stage, blocks in enumerate(config.encoder_blocks):
        layers.append(
            make(width, width, stride=2, bias=False) if stage else make(config.in_channels, width)
        )
        layers += [Block(width, dtype=dtype, rngs=rngs) for _ in range(blocks)]
    return nnx.Sequential(*layers, make(width, config.latent_channels))


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
    """Encoder, where there is one, and decoder.

    Pictures are in -1..1. Latents are the VAE's own, before `scaling_factor` is applied.
    """

    def __init__(self, config: TinyVAEConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.config = config
        self.dtype = jnp.dtype(dtype)
        self.encoder = _encoder(config, dtype=dtype, rngs=rngs) if config.encoder_blocks else None
        self.decoder = _decoder(config, dtype=dtype, rngs=rngs)

    def encode(self, images: Array) -> Array:
        """Encode pictures `[B, H, W, 3]` to latents `[B, h, w, C]` float32."""
        assert self.encoder is not None
        return self.encoder((images / 2 + 0.5).astype(self.dtype)).astype(jnp.float32)

    def decode(self, z: Array) -> Array:
        """Decode latents `[B, h, w, C]` to pictures `[B, H, W, 3]` float32, about -1..1."""
        limited_latents = (jnp.tanh(z / LIMIT) * LIMIT).astype(self.dtype)
        return rows.whole(self.decoder(rows.own(limited_latents))).astype(jnp.float32) * 2 - 1
