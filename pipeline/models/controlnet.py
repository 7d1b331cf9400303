"""ControlNet (Zhang et al. 2023) and its union of several types of hints (ControlNet++).

A ControlNet is a copy of the first half of a UNet that sees a hint too: a picture such as edges,
depth or a pose. It adds residuals to what the UNet's second half takes.
"""

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from pipeline.kernels import rows
from pipeline.models.clip import quick_gelu
from pipeline.models.controlnet_config import ControlNetConfig
from pipeline.models.layers import LayerNorm, TimestepEmbedding, conv, linear
from pipeline.models.unet import LAYER_NORM_EPS, Context, Residuals, UNetEncoder


class HintNetwork(nnx.Module):
    """Convolutions that turn a hint `[B, H, W, 3]` to the size of latents, `[B, h, w, C]`."""

    def __init__(self, channels: tuple[int, ...], width: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        make = partial(conv, dtype=dtype, rngs=rngs)
        self.conv_in = make(3, channels[0])
        self.blocks = nnx.List()
        for c_in, c_out in pairwise(channels):
            self.blocks += [make(c_in, c_in), make(c_in, c_out, stride=2)]
        self.conv_out = make(channels[-1], width)

    def __call__(self, x: Array) -> Array:
        """Apply the layers, `[B, H, W, 3] -> [B, h, w, C]`."""
        for layer in (self.conv_in, *self.blocks):
            x = jax.nn.silu(layer(x))
        return self.conv_out(x)


class TokenAttention(nnx.Module):
    """Attention of a token to itself alone, `[B, width] -> [B, width]`: the value, projected.

    The published code attends over the batch, in which all rows have the same hint. The weights of
    equal values add up to 1.
    """

    def __init__(self, width: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.in_proj = linear(width, 3 * width, dtype=dtype, rngs=rngs)
        self.out_proj = linear(width, width, dtype=dtype, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        """Apply the layer, `[B, width] -> [B, width]`."""
        _, _, value = jnp.split(self.in_proj(x), 3, axis=-1)
        return self.out_proj(value)


class QuickGELULayer(nnx.Module):
    """Feed-forward layer with the quick GELU, four times as wide inside."""

    def __init__(self, width: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.c_fc = linear(width, 4 * width, dtype=dtype, rngs=rngs)
        self.c_proj = linear(4 * width, width, dtype=dtype, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        """Apply the layer, `[B, width] -> [B, width]`."""
        return self.c_proj(quick_gelu(self.c_fc(x)))


class FusingBlock(nnx.Module):
    """Layer of the transformer that tells a union network's types of hints apart."""

    def __init__(self, width: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.ln_1 = LayerNorm(width, LAYER_NORM_EPS)
        self.attn = TokenAttention(width, dtype=dtype, rngs=rngs)
        self.ln_2 = LayerNorm(width, LAYER_NORM_EPS)
        self.mlp = QuickGELULayer(width, dtype=dtype, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        """Apply the block, `[B, width] -> [B, width]`."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class ControlNet(UNetEncoder):
    """Network that steers a UNet by a hint.

    The names of a union network's further layers, `transformer_layes` too, are the published ones.
    """

    def __init__(self, config: ControlNetConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        super().__init__(config, dtype=dtype, rngs=rngs)
        options = {"dtype": dtype, "rngs": rngs}
        width = config.block_out_channels[0]
        self.bgr = config.bgr
        self.global_pool = config.global_pool
        self.is_union = config.control_types > 0
        self.controlnet_cond_embedding = HintNetwork(config.hint_channels, width, **options)
        make = partial(conv, kernel=1, **options)
        self.controlnet_down_blocks = nnx.List(make(c, c) for c in config.skip_channels)
        last = config.block_out_channels[-1]
        self.controlnet_mid_block = make(last, last)
        if self.is_union:
            assert config.addition is not None
            self.type_dim = config.addition.time_embed_dim
            self.task_embedding = nnx.Param(jnp.zeros((config.control_types, width), dtype))
            self.transformer_layes = nnx.List(
                FusingBlock(width, **options) for _ in range(config.fusing_layers)
            )
            self.spatial_ch_projs = linear(width, width, **options)
            self.control_add_embedding = TimestepEmbedding(
                self.type_dim * config.control_types, config.time_embed_dim, **options
            )

    def hint(self, images: Array, types: Array, weights: Array) -> Array:
        """Compute the part of the forward pass that depends on a hint alone.

        Several hints for one union network are added. Each device has its rows of the result.

        Args:
            images: `[B, H, W, 3]` float32 in 0..1; for inpainting -1 where the picture is redrawn.
            types: `[B]` int32, below `config.control_types`; ignored but by union networks.
            weights: `[B]` float32, how much each counts among several hints of a union network, 1
                for a single one; ignored but by union networks.

        Returns:
            `[B, h, w, C]` in the networks' dtype, which is added to the first convolution's output.
        """
        if self.bgr:
            images = images[..., ::-1]
        x = self.controlnet_cond_embedding(rows.own(images).astype(self.dtype))
        if not self.is_union:
            return x
        weights = weights.astype(self.dtype)[:, None]
        token = (_mean(x)[:, 0, 0] + self.task_embedding[types]) * weights
        for layer in self.transformer_layes:
            token = layer(token)
        bias = self.spatial_ch_projs(token)
        return (x + bias[:, None, None]) * weights[:, None, None]

    def condition(
        self,
        prompt_embeds: Array,
        pooled_prompt_embeds: Array | None = None,
        add_time_ids: Array | None = None,
        guidance: Array | None = None,
        control_types: Array | None = None,
    ) -> Context:
        """Do what `UNetEncoder.condition` does; the guidance scale is no input.

        `control_types`, `[B, control_types]` float32, is 1 for every type of hint that is given and
        0 for others; required by a union network and otherwise ignored.
        """
        context = super().condition(prompt_embeds, pooled_prompt_embeds, add_time_ids)
        if not self.is_union:
            return context
        assert control_types is not None
        assert context.added_embed is not None
        wave = self._sinusoid(control_types.reshape(-1), self.type_dim)
        wave = wave.reshape(len(control_types), -1).astype(self.dtype)
        embed = context.added_embed + self.control_add_embedding(wave)
        return context._replace(added_embed=embed)

    def __call__(
        self, latents: Array, timesteps: Array, context: Context, hint: Array
    ) -> Residuals:
        """Compute the residuals that `UNet.__call__` takes, not scaled yet.

        Args:
            latents: `[B, h, w, C]`, already scaled for this step's noise level.
            timesteps: `[B]` float32.
            context: from this network's `condition`.
            hint: from `hint`, or the sum of several.
        """
        x, time_embed = self._inputs(latents, timesteps, context)
        skips, x = self._encode(x + hint, time_embed, context.every_key_value())
        layers = (*self.controlnet_down_blocks, self.controlnet_mid_block)
        residuals = tuple(layer(x) for layer, x in zip(layers, (*skips, x), strict=True))
        if not self.global_pool:
            return residuals
        return tuple(jnp.broadcast_to(_mean(x), x.shape) for x in residuals)


def _mean(x: Array) -> Array:
    """Return the mean of `[B, h, w, C]` over the whole picture, `[B, 1, 1, C]`."""
    (mean,) = rows.mean(x.astype(jnp.float32).mean((1, 2), keepdims=True))
    return mean.astype(x.dtype)
