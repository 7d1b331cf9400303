"""The variational autoencoder (AutoencoderKL): pictures to latents and back, `[B, H, W, C]`."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from pipeline.kernels import rows
from pipeline.models.layers import GroupNorm, ResnetBlock, SelfAttention, Upsample, conv
from pipeline.models.vae_config import VAEConfig

NORM_EPS = 1e-6
LOGVAR_RANGE = (-30.0, 20.0)


class SpatialAttention(nnx.Module):
    """Single-head self-attention over all pixels, with a skip connection around it."""

    def __init__(self, width: int, groups: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.group_norm = GroupNorm(width, groups, NORM_EPS)
        self.attention = SelfAttention(width, 1, bias=True, dtype=dtype, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        """Apply the layer, `[B, h, w, C] -> [B, h, w, C]`."""
        tokens = self.group_norm(x).reshape(x.shape[0], -1, x.shape[-1])  # [B, h*w, C]
        return x + self.attention(tokens).reshape(x.shape)


class MidBlock(nnx.Module):
    """Two ResNet blocks, with attention between them if the config asks for it."""

    def __init__(self, config: VAEConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        width, groups = config.block_out_channels[-1], config.norm_num_groups
        make = partial(
            ResnetBlock, width, width, groups=groups, eps=NORM_EPS, dtype=dtype, rngs=rngs
        )
        self.resnets = nnx.List([make(), make()])
        self.attentions = nnx.List()
        if config.mid_block_add_attention:
            self.attentions.append(SpatialAttention(width, groups, dtype=dtype, rngs=rngs))

    def __call__(self, x: Array) -> Array:
        """Apply the block, `[B, h, w, C] -> [B, h, w, C]`."""
        x = self.resnets[0](x)
        for attend in self.attentions:
            x = attend(x)
        return self.resnets[1](x)


class DownBlock(nnx.Module):
    """ResNet blocks, then downsampling by 2."""

    def __init__(
        self, config: VAEConfig, level: int, c_in: int, *, dtype: DTypeLike, rngs: nnx.Rngs
    ):
        width = config.block_out_channels[level]
        groups = config.norm_num_groups
        self.resnets = nnx.List(
            ResnetBlock(
                c_in if i == 0 else width,
                width,
                groups=groups,
                eps=NORM_EPS,
                dtype=dtype,
                rngs=rngs,
            )
            for i in range(config.layers_per_block)
        )
        is_last = level == len(config.block_out_channels) - 1
        # As in diffusers, padding is at the bottom and on the right only.
        down = partial(conv, width, width, stride=2, padding=(0, 1))
        self.downsample = None if is_last else down(dtype=dtype, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        """Map `[B, H, W, c_in]` to `[B, H/2, W/2, C]`; the last block keeps the size."""
        for resnet in self.resnets:
            x = resnet(x)
        return x if self.downsample is None else self.downsample(x)


class UpBlock(nnx.Module):
    """ResNet blocks, one more than in a down block, then upsampling by 2."""

    def __init__(
        self, config: VAEConfig, level: int, c_in: int, *, dtype: DTypeLike, rngs: nnx.Rngs
    ):
        width = config.block_out_channels[level]
        groups = config.norm_num_groups
        self.resnets = nnx.List(
            ResnetBlock(
                c_in if i == 0 else width,
                width,
                groups=groups,
                eps=NORM_EPS,
                dtype=dtype,
                rngs=rngs,
            )
            for i in range(config.layers_per_block + 1)
        )
        self.upsample = Upsample(width, dtype=dtype, rngs=rngs) if level > 0 else None

    def __call__(self, x: Array) -> Array:
        """Map `[B, h, w, c_in]` to `[B, 2h, 2w, C]`; the last block keeps the size."""
        for resnet in self.resnets:
            x = resnet(x)
        return x if self.upsample is None else self.upsample(x)


class Encoder(nnx.Module):
    """Encoder of pictures to moments of latents, `[B, H, W, 3] -> [B, h, w, 2 C]`."""

    def __init__(self, config: VAEConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        channels = config.block_out_channels
        self.conv_in = conv(config.in_channels, channels[0], dtype=dtype, rngs=rngs)
        self.down_blocks = nnx.List(
            DownBlock(config, level, channels[max(level - 1, 0)], dtype=dtype, rngs=rngs)
            for level in range(len(channels))
        )
        self.mid_block = MidBlock(config, dtype=dtype, rngs=rngs)
        self.conv_norm_out = GroupNorm(channels[-1], config.norm_num_groups, NORM_EPS)
        self.conv_out = conv(channels[-1], 2 * config.latent_channels, dtype=dtype, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        """Encode pictures to moments: along the channels, the means and then the log variances."""
        x = self.conv_in(x)
        for block in self.down_blocks:
            x = block(x)
        x = self.mid_block(x)
        return self.conv_out(jax.nn.silu(self.conv_norm_out(x)))


class Decoder(nnx.Module):
    """Decoder of latents to pictures, `[B, h, w, C] -> [B, H, W, 3]`."""

    def __init__(self, config: VAEConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        channels = config.block_out_channels
        top = len(channels) - 1
        self.conv_in = conv(config.latent_channels, channels[-1], dtype=dtype, rngs=rngs)
        self.mid_block = MidBlock(config, dtype=dtype, rngs=rngs)
        self.up_blocks = nnx.List(
            UpBlock(config, level, channels[min(level + 1, top)], dtype=dtype, rngs=rngs)
            for level in reversed(range(len(channels)))
        )
        self.conv_norm_out = GroupNorm(channels[0], config.norm_num_groups, NORM_EPS)
        self.conv_out = conv(channels[0], config.in_channels, dtype=dtype, rngs=rngs)

    def __call__(self, z: Array) -> Array:
        """Decode latents to pictures."""
        x = self.mid_block(self.conv_in(z))
        for block in self.up_blocks:
            x = block(x)
        return self.conv_out(jax.nn.silu(self.conv_norm_out(x)))


class VAE(nnx.Module):
    """Encoder and decoder.

    Pictures are in -1..1. Latents are the VAE's own, before `scaling_factor` is applied.
    """

    def __init__(self, config: VAEConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        z = config.latent_channels
        self.config = config
        self.dtype = jnp.dtype(dtype)
        self.encoder = Encoder(config, dtype=dtype, rngs=rngs)
        self.decoder = Decoder(config, dtype=dtype, rngs=rngs)
        if config.use_quant_conv:
            self.quant_conv = conv(2 * z, 2 * z, kernel=1, dtype=dtype, rngs=rngs)
        if config.use_post_quant_conv:
            self.post_quant_conv = conv(z, z, kernel=1, dtype=dtype, rngs=rngs)

    def encode(self, images: Array) -> tuple[Array, Array]:
        """Encode pictures `[B, H, W, 3]` to mean and log variance, each `[B, h, w, C]` float32."""
        moments = rows.whole(self.encoder(rows.own(images).astype(self.dtype)))
        if self.config.use_quant_conv:
            moments = self.quant_conv(moments)
        mean, logvar = jnp.split(moments.astype(jnp.float32), 2, axis=-1)
        return mean, jnp.clip(logvar, *LOGVAR_RANGE)

    def decode(self, z: Array) -> Array:
        """Decode latents `[B, h, w, C]` to pictures `[B, H, W, 3]` float32, about -1..1."""
        z = z.astype(self.dtype)
        if self.config.use_post_quant_conv:
            z = self.post_quant_conv(z)
        return rows.whole(self.decoder(rows.own(z))).astype(jnp.float32)
