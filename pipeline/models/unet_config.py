"""Configuration of Stable Diffusion's UNet, from a checkpoint's JSON."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any

from pipeline.strict_json import StrictJson

# Tasks of unsupported UNets, by number of input channels; a supported UNet takes 4, the latents',
# or 9 for inpainting.
OTHER_UNETS = {5: "depth to image", 7: "upscaling", 8: "editing pictures"}
MAX_DEPTH = 100  # transformer layers in a row; SDXL has up to 10
# Number of ResNets in each type of middle block.
MID_RESNETS = {"UNetMidBlock2DCrossAttn": 2, "UNetMidBlock2D": 1, None: 0}
# The layers of the up blocks, where they are not those of the down blocks in reverse.
UP_DEPTHS = "reverse_transformer_layers_per_block"
# Options that Stable Diffusion does not use, and their neutral values.
NEUTRAL: Mapping[str, Sequence[Any]] = {
    "center_input_sample": (False,),
    "class_embeddings_concat": (False,),
    "dual_cross_attention": (False,),
    "only_cross_attention": (False,),
    "resnet_skip_time_act": (False,),
    # Attention's logits and softmax are always float32 here.
    "upcast_attention": (None, False, True),
    "mid_block_only_cross_attention": (None, False),
    "class_embed_type": (None,),
    "cross_attention_norm": (None,),
    "encoder_hid_dim": (None,),
    "num_class_embeds": (None,),
    # With an addition, `_addition` has already taken the next three keys.
    "addition_embed_type": (None,),
    "addition_time_embed_dim": (None,),
    "projection_class_embeddings_input_dim": (None,),
    "encoder_hid_dim_type": (None,),
    "num_attention_heads": (None,),
    "time_embedding_act_fn": (None,),
    "timestep_post_act": (None,),
    "mid_block_scale_factor": (1.0, 1),
    "resnet_out_scale_factor": (1.0, 1),
    "conv_in_kernel": (3,),
    "conv_out_kernel": (3,),
    "act_fn": ("silu", "swish"),
    "attention_type": ("default",),
    "downsample_padding": (1,),
    "time_embedding_type": ("positional",),
}


@dataclass(frozen=True)
class AdditionConfig:
    """SDXL's addition to the time embedding ("text_time"): the pooled prompt and some numbers.

    `time_embed_dim` is the width of each embedded number, of which there are six, or five in the
    refiner. `input_dim` is the width of the pooled prompt and all numbers together.
    """

    time_embed_dim: int
    input_dim: int


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Configuration of the first half of UNet2DConditionModel, which a ControlNet has too.

    Tuples run over the blocks from the highest resolution down. A depth is the number of
    transformer layers after one ResNet. A block without attention has no depths.

    The middle block has `mid_resnets` ResNets. There are two with a transformer between them; or
    one without attention, and `mid_depth` is None; or none at all, as in KOALA-700M.

    `in_channels` is the number of channels of the latents, or more if `UNetConfig.takes_mask`.
    `addition` is None if only the time and the prompt condition the network.
    `time_cond_proj_dim` is the width of the embedded guidance scale. It is None if the UNet does
    not take the scale: only UNets from guided distillation do, such as latent consistency models.
    `time_scale_shift`: whether every ResNet scales and shifts its hidden states by the time
    embedding, instead of adding it to them.
    """

    in_channels: int
    block_out_channels: tuple[int, ...]
    layers_per_block: tuple[int, ...]
    num_attention_heads: tuple[int, ...]
    down_depths: tuple[tuple[int, ...], ...]
    mid_resnets: int
    mid_depth: int | None
    cross_attention_dim: int
    norm_num_groups: int
    norm_eps: float
    flip_sin_to_cos: bool
    freq_shift: float
    time_embed_dim: int
    use_linear_projection: bool
    addition: AdditionConfig | None
    time_cond_proj_dim: int | None = None
    time_scale_shift: bool = False

    @property
    def encoder(self) -> dict[str, Any]:
        """The fields of the first half alone, by name."""
        return {field.name: getattr(self, field.name) for field in fields(EncoderConfig)}

    @property
    def skip_channels(self) -> tuple[int, ...]:
        """Channels of the skips, in the order in which they are saved: `conv_in`'s output first."""
        channels = self.block_out_channels
        layers = [n + 1 for n in self.layers_per_block]
        layers[-1] -= 1  # the last block does not downsample
        blocks = ([width] * n for width, n in zip(channels, layers, strict=True))
        return (channels[0], *chain.from_iterable(blocks))


@dataclass(frozen=True, kw_only=True)
class UNetConfig(EncoderConfig):
    """Configuration of UNet2DConditionModel; `up_depths` runs from the lowest resolution up."""

    sample_size: tuple[int, int]
    out_channels: int
    up_depths: tuple[tuple[int, ...], ...]

    @property
    def takes_mask(self) -> bool:
        """Whether it is for inpainting: its input has a mask and a masked picture's latents too."""
        return self.in_channels == 2 * self.out_channels + 1


def read_unet(path: Path, *, addition: bool = False, smallest_legacy_size: int = 0) -> UNetConfig:
    """Read a UNet's `config.json`.

    Args:
        path: the file.
        addition: whether the UNet has SDXL's addition to the time embedding.
        smallest_legacy_size: a smaller `sample_size`, in a file of diffusers before 0.9, means
            this one.

    Raises:
        CheckpointError: if a setting is not supported; the message names file, key and value.
    """
    keys = StrictJson(path)
    encoder, depths = read_encoder(keys, addition=addition)
    layers = encoder["layers_per_block"]
    up_types = _block_types(keys, "Up", len(layers))
    config = UNetConfig(
        **encoder,
        sample_size=_sample_size(keys, smallest_legacy_size),
        out_channels=_out_channels(keys, encoder["in_channels"]),
        up_depths=_up_depths(keys, depths, [n + 1 for n in reversed(layers)], up_types),
    )
    keys.expect(NEUTRAL)
    keys.finish("dropout", "addition_embed_type_num_heads", UP_DEPTHS)
    check_encoder(keys, config)
    return config


def read_encoder(keys: StrictJson, *, addition: bool) -> tuple[dict[str, Any], Sequence[Any]]:
    """Return the fields of `EncoderConfig`, and `transformer_layers_per_block` for every block."""
    channels = keys.sizes("block_out_channels", [320, 640, 1280, 1280])
    blocks = len(channels)
    layers = keys.several_sizes("layers_per_block", blocks, 2)
    types = _block_types(keys, "Down", blocks)
    mid_resnets = MID_RESNETS[keys.one_of("mid_block_type", [*MID_RESNETS])]
    depths = keys.several("transformer_layers_per_block", blocks, 1)
    fields = {
        "in_channels": keys.size("in_channels", 4),
        "block_out_channels": channels,
        "layers_per_block": layers,
        "num_attention_heads": keys.several_sizes("attention_head_dim", blocks, 8),
        "down_depths": _depths(keys, "transformer_layers_per_block", depths, layers, types),
        "mid_resnets": mid_resnets,
        "mid_depth": _mid_depth(depths[-1]) if mid_resnets == 2 else None,
        "cross_attention_dim": keys.size("cross_attention_dim", 1280),
        "norm_num_groups": keys.size("norm_num_groups", 32),
        "norm_eps": keys.positive("norm_eps", 1e-5),
        "flip_sin_to_cos": keys.take("flip_sin_to_cos", bool, True),
        "freq_shift": keys.take("freq_shift", float, 0),
        "time_embed_dim": keys.size("time_embedding_dim", None) or 4 * channels[0],
        "use_linear_projection": keys.take("use_linear_projection", bool, False),
        "addition": _addition(keys) if addition else None,
        "time_cond_proj_dim": keys.size("time_cond_proj_dim", None),
        "time_scale_shift": keys.one_of("resnet_time_scale_shift", ("default", "scale_shift"))
        == "scale_shift",
    }
    return fields, depths


def _block_types(keys: StrictJson, side: str, blocks: int) -> list[bool]:
    """Return for each block whether it has attention; `side` is "Down" or "Up"."""
    key, allowed = f"{side.lower()}_block_types", (f"CrossAttn{side}Block2D", f"{side}Block2D")
    names = keys.take(key, list)
    if len(names) != blocks or any(name not in allowed for name in names):
        raise keys.error(key, names, f"{blocks} of {allowed[0]!r} or {allowed[1]!r}")
    return [name == allowed[0] for name in names]


def _up_depths(
    keys: StrictJson, depths: Sequence[Any], layers: Sequence[int], has_attention: Sequence[bool]
) -> tuple[tuple[int, ...], ...]:
    if keys.values.get(UP_DEPTHS) is not None:
        up_depths = keys.several(UP_DEPTHS, len(depths))
        return _depths(keys, UP_DEPTHS, up_depths, layers, has_attention)
    if any(isinstance(depth, list) for depth in depths):
        raise keys.error(
            UP_DEPTHS, None, "a list too where transformer_layers_per_block holds lists"
        )
    return _depths(keys, "transformer_layers_per_block", depths[::-1], layers, has_attention)


def _depths(
    keys: StrictJson,
    key: str,
    depths: Sequence[Any],
    layers: Sequence[int],
    has_attention: Sequence[bool],
) -> tuple[tuple[int, ...], ...]:
    """Return the number of transformer layers after each ResNet of each block."""
    result: list[tuple[int, ...]] = []
    for depth, count, attention in zip(depths, layers, has_attention, strict=True):
        per_layer = tuple(depth) if isinstance(depth, list) else (depth,) * count
        are_depths = all(type(n) is int and 0 <= n <= MAX_DEPTH for n in per_layer)
        if len(per_layer) != count or not are_depths:
            right = f"up to {MAX_DEPTH} layers, or a list of {count} (one per ResNet of the block)"
            raise keys.error(key, depth, right)
        result.append(per_layer if attention else ())
    return tuple(result)


def _mid_depth(depth: Any) -> int:
    return depth[0] if isinstance(depth, list) else depth


def _out_channels(keys: StrictJson, count: int) -> int:
    """Return the number of output channels for that of input channels; see `takes_mask`."""
    if count in OTHER_UNETS and keys.values.get("out_channels", 4) == 4:
        raise keys.error("in_channels", count, f"4; this UNet is for {OTHER_UNETS[count]}")
    inpainting_channels = [(count - 1) // 2] if count % 2 and count > 1 else []
    return keys.one_of("out_channels", (count, *inpainting_channels), default=4)


def _addition(keys: StrictJson) -> AdditionConfig:
    keys.one_of("addition_embed_type", ("text_time",), default=None)
    return AdditionConfig(
        time_embed_dim=keys.size("addition_time_embed_dim"),
        input_dim=keys.size("projection_class_embeddings_input_dim"),
    )


def _sample_size(keys: StrictJson, smallest_legacy_size: int) -> tuple[int, int]:
    value = keys.values.get("sample_size")
    is_legacy = re.match(r"0\.[0-8]\.", str(keys.values.get("_diffusers_version")))
    if is_legacy and type(value) is int and value < smallest_legacy_size:
        keys.values["sample_size"] = smallest_legacy_size
    height, width = keys.several_sizes("sample_size", 2)
    return height, width


def check_encoder(keys: StrictJson, config: EncoderConfig) -> None:
    """Raise CheckpointError if sizes do not fit together."""
    for channels, heads in zip(config.block_out_channels, config.num_attention_heads, strict=True):
        if channels % heads:
            raise keys.error("attention_head_dim", heads, f"a divisor of {channels} channels")
        if channels % config.norm_num_groups:
            right = f"a divisor of {channels} channels"
            raise keys.error("norm_num_groups", config.norm_num_groups, right)
    if config.block_out_channels[0] % 2:
        channels = list(config.block_out_channels)
        raise keys.error("block_out_channels", channels, "an even first size")
    if config.addition is not None and config.addition.time_embed_dim % 2:
        raise keys.error("addition_time_embed_dim", config.addition.time_embed_dim, "an even size")
    if (width := config.time_cond_proj_dim) is not None and (width < 4 or width % 2):
        raise keys.error("time_cond_proj_dim", width, "an even size of at least 4")
