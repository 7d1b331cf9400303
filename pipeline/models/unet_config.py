"""Configuration of Stable Diffusion's UNet, from a checkpoint's JSON."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.strict_json import StrictJson

# Tasks of unsupported UNets, by number of input channels; a supported UNet takes 4, the latents',
# or 9 for inpainting.
OTHER_UNETS = {5: "depth to image", 7: "upscaling", 8: "editing pictures"}
# Number of ResNets in each type of middle block.
MID_RESNETS = {"UNetMidBlock2DCrossAttn": 2, "UNetMidBlock2D": 1, None: 0}


@dataclass(frozen=True)
class AdditionConfig:
    """SDXL's addition to the time embedding ("text_time"): the pooled prompt and some numbers.

    `time_embed_dim` is the width of each embedded number, of which there are six, or five in the
    refiner. `input_dim` is the width of the pooled prompt and all numbers together.
    """

    time_embed_dim: int
    input_dim: int


@dataclass(frozen=True)
class UNetConfig:
    """Configuration of UNet2DConditionModel.

    Tuples run over the blocks from the highest resolution down, `up_depths` from the lowest
    resolution up. A depth is the number of transformer layers after one ResNet. A block without
    attention has no depths. The middle block has `mid_resnets` ResNets: two around its transformer,
    one if it has no attention, with `mid_depth` None, or none at all, as in KOALA-700M. The input
    channels are those of the latents, or those of `takes_mask`. `addition`
    is None if only the time and the prompt condition the UNet. `time_cond_proj_dim` is the width of
    the embedded guidance scale, None if the UNet takes none: only UNets that guided distillation
    made, such as latent consistency models, take it. With `time_scale_shift` the time embedding
    scales and shifts in every ResNet what it is otherwise added to.
    """

    sample_size: tuple[int, int]
    in_channels: int
    out_channels: int
    block_out_channels: tuple[int, ...]
    layers_per_block: tuple[int, ...]
    num_attention_heads: tuple[int, ...]
    down_depths: tuple[tuple[int, ...], ...]
    mid_resnets: int
    mid_depth: int | None
    up_depths: tuple[tuple[int, ...], ...]
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
    channels = keys.sizes("block_out_channels", [320, 640, 1280, 1280])
    blocks = len(channels)
    layers = keys.sizes_per_block("layers_per_block", blocks, 2)
    down_types, up_types = (
        _block_types(keys, side, blocks, (f"CrossAttn{name}Block2D", f"{name}Block2D"))
        for side, name in (("down_block_types", "Down"), ("up_block_types", "Up"))
    )
    mid_resnets = MID_RESNETS[keys.one_of("mid_block_type", [*MID_RESNETS])]
    depths = keys.per_block("transformer_layers_per_block", blocks, 1)
    in_channels = _in_channels(keys)
    config = UNetConfig(
        sample_size=_sample_size(keys, smallest_legacy_size),
        in_channels=in_channels,
        out_channels=_out_channels(keys, in_channels),
        block_out_channels=channels,
        layers_per_block=layers,
        num_attention_heads=keys.sizes_per_block("attention_head_dim", blocks, 8),
        down_depths=_depths(keys, "transformer_layers_per_block", depths, layers, down_types),
        mid_resnets=mid_resnets,
        mid_depth=_mid_depth(depths[-1]) if mid_resnets == 2 else None,
        up_depths=_up_depths(keys, depths, [n + 1 for n in reversed(layers)], up_types),
        cross_attention_dim=keys.size("cross_attention_dim", 1280),
        norm_num_groups=keys.size("norm_num_groups", 32),
        norm_eps=keys.positive("norm_eps", 1e-5),
        flip_sin_to_cos=keys.take("flip_sin_to_cos", bool, True),
        freq_shift=keys.take("freq_shift", float, 0),
        time_embed_dim=_optional_size(keys, "time_embedding_dim") or 4 * channels[0],
        use_linear_projection=keys.take("use_linear_projection", bool, False),
        addition=_addition(keys) if addition else None,
        time_cond_proj_dim=_optional_size(keys, "time_cond_proj_dim"),
        time_scale_shift=_time_scale_shift(keys),
    )
    _refuse_other_unets(keys)
    keys.finish()
    _check_unet(keys, config)
    return config


def _refuse_other_unets(keys: StrictJson) -> None:
    """Refuse options that Stable Diffusion does not use; their neutral values may be present."""
    for key in ("center_input_sample", "class_embeddings_concat", "dual_cross_attention"):
        keys.one_of(key, (False,))
    for key in ("only_cross_attention", "resnet_skip_time_act"):
        keys.one_of(key, (False,))
    # Attention's logits and softmax are always float32 here.
    keys.one_of("upcast_attention", (None, False, True))
    keys.one_of("mid_block_only_cross_attention", (None, False))
    for key in ("class_embed_type", "cross_attention_norm", "encoder_hid_dim", "num_class_embeds"):
        keys.one_of(key, (None,))
    # With an addition, `_addition` has already taken the next three keys.
    for key in ("addition_embed_type", "addition_time_embed_dim"):
        keys.one_of(key, (None,))
    keys.one_of("projection_class_embeddings_input_dim", (None,))
    for key in ("encoder_hid_dim_type", "num_attention_heads", "time_embedding_act_fn"):
        keys.one_of(key, (None,))
    keys.one_of("timestep_post_act", (None,))
    for key in ("mid_block_scale_factor", "resnet_out_scale_factor"):
        keys.one_of(key, (1.0, 1))
    for key in ("conv_in_kernel", "conv_out_kernel"):
        keys.one_of(key, (3,))
    keys.one_of("act_fn", ("silu", "swish"))
    keys.one_of("attention_type", ("default",))
    keys.one_of("downsample_padding", (1,))
    keys.one_of("time_embedding_type", ("positional",))
    keys.drop("dropout", "addition_embed_type_num_heads")


def _block_types(keys: StrictJson, key: str, blocks: int, allowed: tuple[str, str]) -> list[bool]:
    """Return for each block whether it has attention."""
    names = keys.take(key, list)
    if len(names) != blocks or any(name not in allowed for name in names):
        raise keys.error(key, names, f"{blocks} of {allowed[0]!r} or {allowed[1]!r}")
    return [name == allowed[0] for name in names]


def _up_depths(
    keys: StrictJson, depths: Sequence[Any], layers: Sequence[int], has_attention: Sequence[bool]
) -> tuple[tuple[int, ...], ...]:
    key = "reverse_transformer_layers_per_block"
    if keys.values.get(key) is not None:
        return _depths(keys, key, keys.per_block(key, len(depths)), layers, has_attention)
    keys.drop(key)
    if any(isinstance(depth, list) for depth in depths):
        raise keys.error(key, None, "a list too where transformer_layers_per_block holds lists")
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
        if len(per_layer) != count or not all(type(n) is int and n >= 0 for n in per_layer):
            right = f"a number of layers, or a list of {count} (one per ResNet of the block)"
            raise keys.error(key, depth, right)
        result.append(per_layer if attention else ())
    return tuple(result)


def _mid_depth(depth: Any) -> int:
    return depth[0] if isinstance(depth, list) else depth


def _in_channels(keys: StrictJson) -> int:
    value = keys.size("in_channels", 4)
    if value in OTHER_UNETS and keys.values.get("out_channels", 4) == 4:
        raise keys.error("in_channels", value, f"4; this UNet is for {OTHER_UNETS[value]}")
    return value


def _out_channels(keys: StrictJson, in_channels: int) -> int:
    """Return the number of output channels; see `UNetConfig.takes_mask`."""
    inpainting_channels = [(in_channels - 1) // 2] if in_channels % 2 and in_channels > 1 else []
    return keys.one_of("out_channels", (in_channels, *inpainting_channels), default=4)


def _addition(keys: StrictJson) -> AdditionConfig:
    keys.one_of("addition_embed_type", ("text_time",), default=None)
    return AdditionConfig(
        time_embed_dim=keys.size("addition_time_embed_dim"),
        input_dim=keys.size("projection_class_embeddings_input_dim"),
    )


def _sample_size(keys: StrictJson, smallest_legacy_size: int) -> tuple[int, int]:
    value = keys.values.get("sample_size")
    if _before_0_9(keys) and type(value) is int and value < smallest_legacy_size:
        value = keys.values["sample_size"] = smallest_legacy_size
    if isinstance(value, list):
        sizes = keys.sizes("sample_size")
        if len(sizes) != 2:
            raise keys.error("sample_size", value, "one size, or [height, width]")
        return sizes[0], sizes[1]
    size = keys.size("sample_size")
    return size, size


def _before_0_9(keys: StrictJson) -> bool:
    """Return whether a version of diffusers before 0.9 wrote the file."""
    return bool(re.match(r"0\.[0-8]\.", str(keys.values.get("_diffusers_version"))))


def _time_scale_shift(keys: StrictJson) -> bool:
    choices = ("default", "scale_shift")
    return keys.one_of("resnet_time_scale_shift", choices) == "scale_shift"


def _optional_size(keys: StrictJson, key: str) -> int | None:
    if keys.values.get(key) is None:
        keys.drop(key)
        return None
    return keys.size(key)


def _check_unet(keys: StrictJson, config: UNetConfig) -> None:
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
