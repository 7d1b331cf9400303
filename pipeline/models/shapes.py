"""Configuration of networks from the shapes of their tensors, for files that hold no configuration.

Each function takes the configuration of a published network of the same kind. Sizes come from the
tensors, whose shapes are given by their names in diffusers' layout; the rest stays.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from pipeline.models.clip_config import TextEncoderConfig
from pipeline.models.controlnet_config import ControlNetConfig
from pipeline.models.unet_config import EncoderConfig, UNetConfig
from pipeline.models.vae_config import TinyVAEConfig, VAEConfig

Shapes = Mapping[str, tuple[int, ...]]
GUIDANCE = "time_embedding.cond_proj.weight"


def text_encoder_of(published_config: TextEncoderConfig, shapes: Shapes) -> TextEncoderConfig:
    """Return the configuration of a text encoder with tensors of these shapes.

    Raises:
        LookupError: if a tensor from which a size is read is missing or has too few axes.
        ValueError: if the width is no multiple of the published network's attention head width.
    """
    vocab_size, width = shapes["embeddings.token_embedding.weight"]
    projected = published_config.projection_dim is not None
    return replace(
        published_config,
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=_size(shapes, "encoder.layers.0.mlp.fc1.weight", 0),
        num_hidden_layers=_count(shapes, r"encoder\.layers\.(\d+)\."),
        num_attention_heads=_heads(
            [published_config.hidden_size], [published_config.num_attention_heads], [width]
        )[0],
        max_position_embeddings=_size(shapes, "embeddings.position_embedding.weight", 0),
        projection_dim=_size(shapes, "text_projection.weight", 0) if projected else None,
    )


def vae_of(published_config: VAEConfig, shapes: Shapes) -> VAEConfig:
    """Return the configuration of a VAE with tensors of these shapes.

    Raises:
        LookupError, ValueError: as `text_encoder_of`.
    """
    levels = range(_count(shapes, r"encoder\.down_blocks\.(\d+)\."))
    first = "encoder.down_blocks.{}.resnets.0.conv1.weight"
    channels = [_size(shapes, first.format(level), 0) for level in levels]
    _check_divisible(channels, published_config.norm_num_groups, "groups")
    return replace(
        published_config,
        latent_channels=_size(shapes, "decoder.conv_in.weight", 1),
        block_out_channels=tuple(channels),
        layers_per_block=_count(shapes, r"encoder\.down_blocks\.0\.resnets\.(\d+)\."),
        use_quant_conv="quant_conv.weight" in shapes,
        use_post_quant_conv="post_quant_conv.weight" in shapes,
        mid_block_add_attention="decoder.mid_block.attentions.0.to_q.weight" in shapes,
    )


def tiny_vae_of(published_config: TinyVAEConfig, shapes: Shapes) -> TinyVAEConfig:
    """Return the configuration of a tiny VAE with tensors of these shapes.

    Raises:
        LookupError: as `text_encoder_of`.
    """
    return replace(
        published_config,
        latent_channels=_size(shapes, "decoder.layers.0.weight", 1),
        decoder_width=_size(shapes, "decoder.layers.0.weight", 0),
        decoder_blocks=_tiny_blocks(shapes),
    )


def _tiny_blocks(shapes: Shapes) -> tuple[int, ...]:
    """Return the number of blocks in each stage, between its lone convolutions."""
    layers = [
        match for name in shapes if (match := re.match(r"decoder\.layers\.(\d+)\.(.*)", name))
    ]
    convolutions = sorted(int(match[1]) for match in layers if match[2] == "weight")
    blocks = [int(match[1]) for match in layers if match[2] == "conv.0.weight"]
    return tuple(
        sum(start < block < end for block in blocks) for start, end in pairwise(convolutions)
    )


def unet_of(published_config: UNetConfig, shapes: Shapes) -> UNetConfig:
    """Return the configuration of a UNet with tensors of these shapes.

    Raises:
        LookupError, ValueError: as `text_encoder_of`.
    """
    encoder = _encoder_of(published_config, shapes)
    layers, depth = encoder["layers_per_block"], _depths(shapes)
    return replace(
        published_config,
        **encoder | _attention_of(shapes),
        num_attention_heads=_heads(
            published_config.block_out_channels,
            published_config.num_attention_heads,
            encoder["block_out_channels"],
        ),
        out_channels=_size(shapes, "conv_out.weight", 0),
        up_depths=tuple(
            _of_block(depth, f"up_blocks.{i}", layers[~i] + 1) for i in range(len(layers))
        ),
    )


def controlnet_of(unet: UNetConfig, shapes: Shapes) -> ControlNetConfig:
    """Return the configuration of a ControlNet with tensors of these shapes.

    The rest, such as the numbers of attention heads, is as in the UNet that it is for.

    Raises:
        LookupError, ValueError: as `text_encoder_of`.
    """
    blocks = _count(shapes, r"controlnet_cond_embedding\.blocks\.(\d+)\.")
    layers = "conv_in", *(f"blocks.{i}" for i in range(1, blocks, 2))  # the next ones halve sides
    attention = _attention_of(shapes) if any(".attn2." in name for name in shapes) else {}
    return ControlNetConfig(
        **unet.encoder | _encoder_of(unet, shapes) | attention,
        hint_channels=tuple(
            _size(shapes, f"controlnet_cond_embedding.{layer}.weight", 0) for layer in layers
        ),
    )


def _encoder_of(published_config: EncoderConfig, shapes: Shapes) -> dict[str, Any]:
    """Return the fields of `EncoderConfig` that follow from shapes outside of attention."""
    levels = range(_count(shapes, r"down_blocks\.(\d+)\."))
    channels = [_size(shapes, f"down_blocks.{level}.resnets.0.conv1.weight", 0) for level in levels]
    _check_divisible(channels, published_config.norm_num_groups, "groups")
    layers = [_count(shapes, rf"down_blocks\.{level}\.resnets\.(\d+)\.") for level in levels]
    depth = _depths(shapes)
    mid = "mid_block.attentions.0"
    addition = published_config.addition
    return {
        "in_channels": _size(shapes, "conv_in.weight", 1),
        "block_out_channels": tuple(channels),
        "layers_per_block": tuple(layers),
        "down_depths": tuple(_of_block(depth, f"down_blocks.{i}", layers[i]) for i in levels),
        "mid_resnets": 2 if mid in depth else int("mid_block.resnets.0.conv1.weight" in shapes),
        "mid_depth": depth.get(mid),
        "time_embed_dim": _size(shapes, "time_embedding.linear_1.weight", 0),
        "addition": addition
        and replace(addition, input_dim=_size(shapes, "add_embedding.linear_1.weight", 1)),
        "time_cond_proj_dim": shapes[GUIDANCE][1] if GUIDANCE in shapes else None,
    }


def _attention_of(shapes: Shapes) -> dict[str, Any]:
    """Return the fields of `EncoderConfig` that follow from the shapes of attention."""
    return {
        "cross_attention_dim": _size(shapes, _first(shapes, ".attn2.to_k.weight"), 1),
        "use_linear_projection": len(shapes[_first(shapes, ".proj_in.weight")]) == 2,
    }


def _depths(shapes: Shapes) -> dict[str, int]:
    """Return the number of transformer layers of each module `attentions.N`, by its name."""
    layers_by_module: defaultdict[str, set[str]] = defaultdict(set)
    for name in shapes:
        if match := re.match(r"(.*\.attentions\.\d+)\.(?:transformer_blocks\.(\d+))?", name):
            layers_by_module[match[1]] |= {match[2]} - {None}
    return {name: len(layers) for name, layers in layers_by_module.items()}


def _of_block(depths: Mapping[str, int], block: str, layers: int) -> tuple[int, ...]:
    """Return the depth after each ResNet of a block; empty for a block without attention."""
    if not any(name.startswith(f"{block}.") for name in depths):
        return ()
    return tuple(depths.get(f"{block}.attentions.{layer}", 0) for layer in range(layers))


def _heads(
    widths: Sequence[int], heads: Sequence[int], new_widths: Sequence[int]
) -> tuple[int, ...]:
    """Return the heads of layers with new widths, by the rule of the published network.

    Either all layers have the same number of heads, or all heads have the same width.
    """
    if len(heads) > 1 and len({*heads}) == 1:
        _check_divisible(new_widths, heads[0], "attention heads")
        return (heads[0],) * len(new_widths)
    head_width = widths[0] // heads[0]
    _check_divisible(new_widths, head_width, "channels of each attention head")
    return tuple(width // head_width for width in new_widths)


def _check_divisible(widths: Sequence[int], by: int, name: str) -> None:
    for width in widths:
        if width % by or not width:
            raise ValueError(f"{width} channels cannot be divided by {by} {name}")


def _first(shapes: Shapes, end: str) -> str:
    """Return the first name that ends in this way."""
    name = next((name for name in shapes if name.endswith(end)), None)
    if name is None:
        raise LookupError(f"*{end}")
    return name


def _size(shapes: Shapes, name: str, axis: int) -> int:
    return shapes[name][axis]


def _count(shapes: Shapes, pattern: str) -> int:
    """Return how many numbers there are in the names that match a pattern; they start with 0."""
    numbers = {int(match[1]) for name in shapes if (match := re.match(pattern, name))}
    gap = next((number for number in range(len(numbers)) if number not in numbers), None)
    if gap is not None or not numbers:
        raise LookupError(pattern.replace(r"(\d+)", str(gap or 0)).replace("\\", "") + "*")
    return len(numbers)
