"""Stable Diffusion's UNet (Rombach et al. 2022), over latents `[B, h, w, C]`.

It consists of ResNet blocks and transformers. The prompt conditions it through cross-attention, the
time through an embedding that is added in every ResNet block. With SDXL (Podell et al. 2023) the
pooled prompt and the picture size ("text_time") condition it too.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from pipeline.kernels import rows
from pipeline.models.layers import (
    CrossAttention,
    GroupNorm,
    LayerNorm,
    ResnetBlock,
    SelfAttention,
    TimestepEmbedding,
    Upsample,
    conv,
    gelu,
    linear,
    sinusoid,
)
from pipeline.models.unet_config import EncoderConfig, UNetConfig

TRANSFORMER_NORM_EPS = 1e-6  # fixed in diffusers' Transformer2DModel, whatever norm_eps says
LAYER_NORM_EPS = 1e-5
GUIDANCE_EMBEDDING_SCALE = 1000.0  # in diffusers' get_guidance_scale_embedding
# The layers of a quantised UNet that multiply 8-bit whole numbers, by the ends of their paths. A
# layer must have many products for each input, or quantising the inputs takes as long as it saves.
INT8_LAYERS = r"attn1\.to_qkv|ff\.proj_in|conv[12]"


# For each transformer block in turn, the prompts' keys and values, and how many chunks count.
KeysValues: TypeAlias = Iterator[tuple[Array, Array | None]]
# What ControlNets add to every skip, from `conv_in`'s output on, and to the middle block's output:
# `[B, h, w, C]` each in the networks' dtype. Each device has those of its rows.
Residuals: TypeAlias = tuple[Array, ...]


class Context(NamedTuple):
    """Inputs of the UNet that stay the same in every step of a request.

    `keys_values`: the prompt's keys and values, `[B, L, 2 width]` for every transformer block, in
    the order in which the blocks run.
    `added_embed`: SDXL's addition to every time embedding, `[B, time_embed_dim]`; None without.
    `guidance_embed`: the projected guidance scale, `[B, block_out_channels[0]]`, which is added to
    every timestep's sinusoid; None if the UNet takes none.
    `masked`: the further input channels of a UNet for inpainting, from `masked_input`; None for
    others.
    `chunks`: the number of chunks of each prompt, `[B]` int32, if they can have several; the keys
    and values are then `[B, C, L, 2 width]`, and those of later chunks do not count. None if not.
    `residuals`: what ControlNets add; None if they add nothing.
    """

    keys_values: tuple[Array, ...]
    added_embed: Array | None
    guidance_embed: Array | None = None
    masked: Array | None = None
    chunks: Array | None = None
    residuals: Residuals | None = None

    def every_key_value(self, start: int = 0) -> KeysValues:
        """Return the keys and values of the transformer blocks from a number on."""
        return ((key_value, self.chunks) for key_value in self.keys_values[start:])


def masked_input(mask: Array, masked_latents: Array) -> Array:
    """Return the channels that a UNet for inpainting takes after the latents, in diffusers' order.

    Args:
        mask: `[B, h, w, 1]`, 1 where the picture is redrawn and 0 where it is kept.
        masked_latents: the latents `[B, h, w, C]` of the picture with its masked part in grey.

    Returns:
        `[B, h, w, 1 + C]` float32.
    """
    return jnp.concatenate([mask, masked_latents], axis=-1).astype(jnp.float32)


def int8_layers(config: UNetConfig) -> str:
    """Return a pattern of the layers to quantise; see `pipeline.models.quantized.quantize`.

    The last ResNet block stays as it is: its results are the nearest to the prediction.
    """
    last = (
        rf"up_blocks\.{len(config.block_out_channels) - 1}\.resnets\.{config.layers_per_block[0]}"
    )
    return rf"(?!{last}\.)(.*\.)?({INT8_LAYERS})"


class FeedForward(nnx.Module):
    """GEGLU feed-forward layer (Shazeer 2020) with the exact GELU, four times as wide inside."""

    def __init__(self, width: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.proj_in = linear(width, 8 * width, dtype=dtype, rngs=rngs)
        self.proj_out = linear(4 * width, width, dtype=dtype, rngs=rngs)

    @jax.named_scope("feed_forward")
    def __call__(self, x: Array) -> Array:
        """Apply the layer, `[B, L, width] -> [B, L, width]`."""
        hidden, gate = jnp.split(self.proj_in(x), 2, axis=-1)
        return self.proj_out(hidden * gelu(gate))


class TransformerBlock(nnx.Module):
    """Self-attention, cross-attention to the prompt and feed-forward layer, each after a norm."""

    def __init__(
        self, width: int, context_dim: int, heads: int, *, dtype: DTypeLike, rngs: nnx.Rngs
    ):
        norm = partial(LayerNorm, width, LAYER_NORM_EPS)
        self.norm1 = norm()
        self.attn1 = SelfAttention(width, heads, bias=False, dtype=dtype, rngs=rngs)
        self.norm2 = norm()
        self.attn2 = CrossAttention(width, context_dim, heads, dtype=dtype, rngs=rngs)
        self.norm3 = norm()
        self.ff = FeedForward(width, dtype=dtype, rngs=rngs)

    def __call__(self, x: Array, key_value: Array, chunks: Array | None = None) -> Array:
        """Apply the block, `[B, h*w, width] -> [B, h*w, width]`.

        `key_value` `[B, L, 2 width]` holds the prompt's keys and values; see `Context`.
        """
        x = x + self.attn1(self.norm1(x))
        x = x + self.attn2(self.norm2(x), key_value, chunks)
        return x + self.ff(self.norm3(x))


class Transformer2D(nnx.Module):
    """Transformer blocks over the pixels of `[B, h, w, C]`, with a skip connection around them."""

    def __init__(
        self, config: EncoderConfig, level: int, depth: int, *, dtype: DTypeLike, rngs: nnx.Rngs
    ):
        width = config.block_out_channels[level]
        heads = config.num_attention_heads[level]
        self.norm = GroupNorm(width, config.norm_num_groups, TRANSFORMER_NORM_EPS)
        # Both compute the same; checkpoints differ in the shape of the weights.
        project = linear if config.use_linear_projection else partial(conv, kernel=1)
        self.proj_in = project(width, width, dtype=dtype, rngs=rngs)
        self.transformer_blocks = nnx.List(
            TransformerBlock(width, config.cross_attention_dim, heads, dtype=dtype, rngs=rngs)
            for _ in range(depth)
        )
        self.proj_out = project(width, width, dtype=dtype, rngs=rngs)

    @jax.named_scope("transformer")
    def __call__(self, x: Array, keys_values: KeysValues) -> Array:
        """Apply the blocks, `[B, h, w, C] -> [B, h, w, C]`.

        Each block takes the next item of `keys_values`.
        """
        tokens = self.proj_in(self.norm(x)).reshape(x.shape[0], -1, x.shape[-1])  # [B, h*w, C]
        # Without the barrier, XLA moves the reshape into the blocks. A TPU then computes the
        # statistics of layer norms from [h, w, C] in passes of their own, not with the products.
        tokens = jax.lax.optimization_barrier(tokens)
        for block in self.transformer_blocks:
            tokens = block(tokens, *next(keys_values))
        return x + self.proj_out(tokens.reshape(x.shape))


def _resnet(config: EncoderConfig, c_in: int, c_out: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
    return ResnetBlock(
        c_in,
        c_out,
        groups=config.norm_num_groups,
        eps=config.norm_eps,
        time_dim=config.time_embed_dim,
        scale_shift=config.time_scale_shift,
        dtype=dtype,
        rngs=rngs,
    )


class DownBlock(nnx.Module):
    """ResNet blocks, each followed by a transformer if there is attention, then downsampling by 2.

    The last block does not downsample.
    """

    def __init__(
        self, config: EncoderConfig, level: int, c_in: int, *, dtype: DTypeLike, rngs: nnx.Rngs
    ):
        width = config.block_out_channels[level]
        layers = config.layers_per_block[level]
        self.resnets = nnx.List(
            _resnet(config, c_in if i == 0 else width, width, dtype=dtype, rngs=rngs)
            for i in range(layers)
        )
        self.attentions = nnx.List(
            Transformer2D(config, level, depth, dtype=dtype, rngs=rngs)
            for depth in config.down_depths[level]
        )
        is_last = level == len(config.block_out_channels) - 1
        down = partial(conv, width, width, stride=2)
        self.downsample = None if is_last else down(dtype=dtype, rngs=rngs)

    def __call__(self, x: Array, time_embed: Array, keys_values: KeysValues) -> list[Array]:
        """Return the output of every layer; the last output is the next block's input."""
        outputs = []
        for i, resnet in enumerate(self.resnets):
            x = resnet(x, time_embed)
            if self.attentions:
                x = self.attentions[i](x, keys_values)
            outputs.append(x)
        if self.downsample is not None:
            with jax.named_scope("downsample"):
                outputs.append(self.downsample(x))
        return outputs


class MidBlock(nnx.Module):
    """ResNet block, with attention also a transformer and a second one, or nothing at all."""

    def __init__(self, config: EncoderConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        width = config.block_out_channels[-1]
        make = partial(_resnet, config, width, width, dtype=dtype, rngs=rngs)
        self.resnets = nnx.List(make() for _ in range(config.mid_resnets))
        self.attentions = nnx.List()
        if config.mid_depth is not None:
            level = len(config.block_out_channels) - 1
            self.attentions.append(
                Transformer2D(config, level, config.mid_depth, dtype=dtype, rngs=rngs)
            )

    def __call__(self, x: Array, time_embed: Array, keys_values: KeysValues) -> Array:
        """Apply the block, `[B, h, w, C] -> [B, h, w, C]`."""
        for i, resnet in enumerate(self.resnets):
            if i == 1:
                x = self.attentions[0](x, keys_values)
            x = resnet(x, time_embed)
        return x


class UpBlock(nnx.Module):
    """Counterpart of `DownBlock`, with upsampling by 2 at its end.

    Each ResNet block takes a skip, concatenated to its input: an output of a down block or of
    `conv_in`. `skips` are the channels of the skips, in the order in which they are taken. The last
    block does not upsample.
    """

    def __init__(
        self,
        config: UNetConfig,
        index: int,
        c_in: int,
        skips: list[int],
        *,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        level = len(config.block_out_channels) - 1 - index
        width = config.block_out_channels[level]
        self.resnets = nnx.List(
            _resnet(config, (c_in if i == 0 else width) + skip, width, dtype=dtype, rngs=rngs)
            for i, skip in enumerate(skips)
        )
        self.attentions = nnx.List(
            Transformer2D(config, level, depth, dtype=dtype, rngs=rngs)
            for depth in config.up_depths[index]
        )
        self.upsample = Upsample(width, dtype=dtype, rngs=rngs) if level > 0 else None

    def __call__(
        self,
        x: Array,
        skips: list[Array],
        time_embed: Array,
        keys_values: KeysValues,
        layers: slice = slice(None),
    ) -> Array:
        """Apply the block, or some of its layers, to `x` and to skips.

        The skips are popped from the end of `skips`.
        """
        for i in range(len(self.resnets))[layers]:
            x = self.resnets[i](jnp.concatenate([x, skips.pop()], axis=-1), time_embed)
            if self.attentions:
                x = self.attentions[i](x, keys_values)
        if self.upsample is not None:
            x = self.upsample(x)
        return x


class UNetEncoder(nnx.Module):
    """First half of a UNet: its inputs, down blocks and middle block. A ControlNet has it too."""

    def __init__(self, config: EncoderConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        channels = config.block_out_channels
        embed = partial(TimestepEmbedding, d_out=config.time_embed_dim, dtype=dtype, rngs=rngs)
        self.config = config
        self.dtype = jnp.dtype(dtype)
        self.conv_in = conv(config.in_channels, channels[0], dtype=dtype, rngs=rngs)
        self.time_embedding = embed(channels[0], cond_dim=config.time_cond_proj_dim)
        if config.addition is not None:
            self.add_embedding = embed(config.addition.input_dim)
        self.down_blocks = nnx.List(
            DownBlock(config, level, c_in, dtype=dtype, rngs=rngs)
            for level, c_in in enumerate((channels[0], *channels[:-1]))
        )
        self.mid_block = MidBlock(config, dtype=dtype, rngs=rngs)

    def condition(
        self,
        prompt_embeds: Array,
        pooled_prompt_embeds: Array | None = None,
        add_time_ids: Array | None = None,
        guidance: Array | None = None,
    ) -> Context:
        """Compute the part of the forward pass that does not depend on latents and timesteps.

        Args:
            prompt_embeds: `[B, L, D]`.
            pooled_prompt_embeds: `[B, P]`; required if `config.addition` is set.
            add_time_ids: `[B, N]` float32; required if `config.addition` is set.
            guidance: `[B]` float32, the guidance scale minus 1; required if
                `config.time_cond_proj_dim` is set, and otherwise ignored.
        """
        keys_values = tuple(
            block.attn2.to_kv(prompt_embeds) for block in self._transformer_blocks()
        )
        guidance_embed = self._guidance_embed(guidance)
        if self.config.addition is None:
            return Context(keys_values, None, guidance_embed)
        assert pooled_prompt_embeds is not None
        assert add_time_ids is not None
        sizes = self._sinusoid(add_time_ids.reshape(-1), self.config.addition.time_embed_dim)
        sizes = sizes.reshape(len(add_time_ids), -1).astype(self.dtype)
        added_embed = self.add_embedding(jnp.concatenate([pooled_prompt_embeds, sizes], axis=-1))
        return Context(keys_values, added_embed, guidance_embed)

    def _guidance_embed(self, guidance: Array | None) -> Array | None:
        """Project the guidance scale minus 1, as section 4.2 of Luo et al. 2023 does.

        diffusers' `get_guidance_scale_embedding` has these frequencies, whatever the timesteps'.
        """
        if self.config.time_cond_proj_dim is None:
            return None
        assert guidance is not None
        assert self.time_embedding.cond_proj is not None
        values = guidance * GUIDANCE_EMBEDDING_SCALE
        wave = sinusoid(values, self.config.time_cond_proj_dim, flip_sin_to_cos=False, freq_shift=1)
        return self.time_embedding.cond_proj(wave.astype(self.dtype))

    @property
    def _blocks(self) -> tuple[DownBlock | MidBlock | UpBlock, ...]:
        return (*self.down_blocks, self.mid_block)

    def _transformer_blocks(self) -> Iterator[TransformerBlock]:
        """Yield the transformer blocks in the order in which they run."""
        for part in self._blocks:
            for attention in part.attentions:
                yield from attention.transformer_blocks

    def _inputs(self, latents: Array, timesteps: Array, context: Context) -> tuple[Array, Array]:
        """Return the first convolution's output, and the time embeddings."""
        wave = self._sinusoid(timesteps, self.config.block_out_channels[0])
        wave = wave.astype(self.dtype)
        if context.guidance_embed is not None:
            wave = wave + context.guidance_embed
        time_embed = self.time_embedding(wave)
        if context.added_embed is not None:
            time_embed = time_embed + context.added_embed
        if context.masked is not None:
            latents = jnp.concatenate([latents, context.masked], axis=-1)
        return self.conv_in(rows.own(latents).astype(self.dtype)), time_embed

    def _encode(
        self, x: Array, time_embed: Array, keys_values: KeysValues
    ) -> tuple[list[Array], Array]:
        """Return the skips, of which `x` is the first, and the middle block's output."""
        skips = [x]
        for block in self.down_blocks:
            skips += block(skips[-1], time_embed, keys_values)
        return skips, self.mid_block(skips[-1], time_embed, keys_values)

    def _sinusoid(self, values: Array, dim: int) -> Array:
        config = self.config
        return sinusoid(
            values, dim, flip_sin_to_cos=config.flip_sin_to_cos, freq_shift=config.freq_shift
        )


# The layers of the last up block, which has no upsampling, by where their results are used.
_DEEP, _SHALLOW = slice(-1), slice(-1, None)


class UNet(UNetEncoder):
    """Network that predicts the noise (or v) from latents, time and prompt."""

    def __init__(self, config: UNetConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        super().__init__(config, dtype=dtype, rngs=rngs)
        channels, skips = config.block_out_channels, list(config.skip_channels)
        self.up_blocks = nnx.List()
        c_in = channels[-1]
        for index, layers in enumerate(reversed(config.layers_per_block)):
            skip_widths = [skips.pop() for _ in range(layers + 1)]
            self.up_blocks.append(UpBlock(config, index, c_in, skip_widths, dtype=dtype, rngs=rngs))
            c_in = channels[-1 - index]

        self.conv_norm_out = GroupNorm(channels[0], config.norm_num_groups, config.norm_eps)
        self.conv_out = conv(channels[0], config.out_channels, dtype=dtype, rngs=rngs)

    @property
    def _blocks(self) -> tuple[DownBlock | MidBlock | UpBlock, ...]:
        return (*super()._blocks, *self.up_blocks)

    def __call__(self, latents: Array, timesteps: Array, context: Context) -> Array:
        """Predict the noise (or v) in one forward pass.

        Args:
            latents: `[B, h, w, C]`, already scaled for this step's noise level.
            timesteps: `[B]` float32 (bfloat16 would round 961 to 960).
            context: from `condition`; with `masked` if `config.takes_mask`.

        Returns:
            The prediction, `[B, h, w, C]` float32.
        """
        x, time_embed = self._inputs(latents, timesteps, context)
        return self._shallow(x, time_embed, context, self._deep(x, time_embed, context))

    def deep(self, latents: Array, timesteps: Array, context: Context) -> Array:
        """Compute the deep features, which change slowly from step to step.

        They are the input of the last up block's last layer, without its skip: with
        `block_out_channels[0]` channels, `[B, h, w, C]` in the networks' dtype, and each device has
        those of its rows. The arguments are those of `__call__`.
        """
        return self._deep(*self._inputs(latents, timesteps, context), context)

    def shallow(self, latents: Array, timesteps: Array, context: Context, deep: Array) -> Array:
        """Predict as `__call__` does, from deep features, which may be those of an earlier step.

        Only the first of the residuals counts. Ma et al. 2023, "DeepCache: Accelerating Diffusion
        Models for Free".
        """
        return self._shallow(*self._inputs(latents, timesteps, context), context, deep)

    def _deep(self, x: Array, time_embed: Array, context: Context) -> Array:
        """Return the deep features from the outputs of `_inputs`; see `deep`."""
        keys_values = context.every_key_value()
        skips, x = self._encode(x, time_embed, keys_values)
        if context.residuals is not None:
            *skips, x = (a + b for a, b in zip((*skips, x), context.residuals, strict=True))
        *blocks, last = self.up_blocks
        for block in blocks:
            x = block(x, skips, time_embed, keys_values)
        return last(x, skips, time_embed, keys_values, _DEEP)

    def _shallow(self, x: Array, time_embed: Array, context: Context, deep: Array) -> Array:
        """Return the prediction from the outputs of `_inputs` and deep features."""
        last = self.up_blocks[-1]
        depth = len(last.attentions[-1].transformer_blocks) if last.attentions else 0
        keys_values = context.every_key_value(len(context.keys_values) - depth)
        skip = x if context.residuals is None else x + context.residuals[0]
        x = last(deep, [skip], time_embed, keys_values, _SHALLOW)
        x = self.conv_out(jax.nn.silu(self.conv_norm_out(x)))
        return rows.whole(x).astype(jnp.float32)
