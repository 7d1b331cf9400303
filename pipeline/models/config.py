"""Configuration of every network, read from a checkpoint's JSON files.

Each reader takes the keys it knows, one by one. An unknown key, or a value that this package does
not implement, is an error that names the file, the key and the value. Keys that a file may leave
out default to the values of diffusers' and transformers' own classes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.errors import CheckpointError
from pipeline.models.clip_config import (
    SafetyCheckerConfig,
    TextEncoderConfig,
    read_safety_checker,
    read_text_encoder,
)
from pipeline.schedulers.config import SCHEDULERS, SchedulerConfig, read_scheduler
from pipeline.strict_json import StrictJson

XL = "StableDiffusionXLPipeline"
SD = "StableDiffusionPipeline"  # versions 1 and 2
SAFETY_CHECKER = "StableDiffusionSafetyChecker"
# Unsupported kinds of model. The keys are parts of the class names of their pipelines.
OTHER_FAMILIES = {
    "StableDiffusion3": "Stable Diffusion 3",
    "Flux": "FLUX",
    "ControlNet": "a ControlNet",
    "Inpaint": "an inpainting model",
    "Img2Img": "an image-to-image model",
    "InstructPix2Pix": "an image-editing model",
    "Upscale": "an upscaler",
    "Depth2Img": "a depth-to-image model",
}
# According to diffusers, the first files of Stable Diffusion 1 mean this sample_size where they
# give a smaller one.
LEGACY_SAMPLE_SIZE = 64
# Tasks of unsupported UNets, by number of input channels; a supported UNet takes 4, the latents'.
OTHER_UNETS = {5: "depth to image", 7: "upscaling", 8: "editing pictures", 9: "inpainting"}


@dataclass(frozen=True)
class AdditionConfig:
    """SDXL's addition to the time embedding ("text_time"): the pooled prompt and six sizes.

    `time_embed_dim` is the width of each embedded size. `input_dim` is the width of the pooled
    prompt and all six sizes together.
    """

    time_embed_dim: int
    input_dim: int


@dataclass(frozen=True)
class UNetConfig:
    """Configuration of UNet2DConditionModel.

    Tuples run over the blocks from the highest resolution down, `up_depths` from the lowest
    resolution up. A depth is the number of transformer layers after one ResNet. A block without
    attention has no depths, and a middle block without attention has `mid_depth` None. `addition`
    is None if only the time and the prompt condition the UNet.
    """

    sample_size: tuple[int, int]
    in_channels: int
    block_out_channels: tuple[int, ...]
    layers_per_block: tuple[int, ...]
    num_attention_heads: tuple[int, ...]
    down_depths: tuple[tuple[int, ...], ...]
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


@dataclass(frozen=True)
class VAEConfig:
    """Configuration of AutoencoderKL.

    `latents_mean` and `latents_std` are per latent channel, or None.
    """

    in_channels: int
    latent_channels: int
    block_out_channels: tuple[int, ...]
    layers_per_block: int
    norm_num_groups: int
    scaling_factor: float
    latents_mean: tuple[float, ...] | None
    latents_std: tuple[float, ...] | None
    use_quant_conv: bool
    use_post_quant_conv: bool
    mid_block_add_attention: bool

    @property
    def scale_factor(self) -> int:
        """Pixels per latent, along each side."""
        return 2 ** (len(self.block_out_channels) - 1)


@dataclass(frozen=True)
class Config:
    """Configuration of a whole checkpoint: of each folder that holds a network, and the scheduler.

    `text_encoder_2` is None for Stable Diffusion 1 and 2. `safety_checker` is None if the
    checkpoint has none or the caller asked for none; pictures are then not checked.
    """

    text_encoder: TextEncoderConfig
    text_encoder_2: TextEncoderConfig | None
    unet: UNetConfig
    vae: VAEConfig
    safety_checker: SafetyCheckerConfig | None
    scheduler: SchedulerConfig
    force_zeros_for_empty_prompt: bool

    @property
    def text_encoders(self) -> dict[str, TextEncoderConfig]:
        """Text encoders by folder name, in the order in which their states are joined."""
        both = {"text_encoder": self.text_encoder, "text_encoder_2": self.text_encoder_2}
        return {name: encoder for name, encoder in both.items() if encoder is not None}


@dataclass(frozen=True)
class _Index:
    """Contents of `model_index.json`."""

    xl: bool
    scheduler: str
    force_zeros_for_empty_prompt: bool
    safety_checker: bool


def read_config(
    folder: Path, scheduler: str | None = None, *, safety_checker: bool = True
) -> Config:
    """Read every configuration of a checkpoint in diffusers' layout.

    Args:
        folder: the checkpoint's folder.
        scheduler: a key of `SCHEDULERS` that replaces the checkpoint's own scheduler.
        safety_checker: False skips the checkpoint's safety checker.

    Raises:
        CheckpointError: if a setting is not supported; the message names file, key and value.
    """
    index = _read_model_index(folder / "model_index.json", scheduler)
    text_encoder = partial(read_text_encoder, xl=index.xl)
    config = Config(
        text_encoder=text_encoder(folder / "text_encoder/config.json", projected=False),
        text_encoder_2=text_encoder(folder / "text_encoder_2/config.json", projected=True)
        if index.xl
        else None,
        unet=_read_unet(folder / "unet/config.json", xl=index.xl),
        vae=_read_vae(folder / "vae/config.json"),
        safety_checker=read_safety_checker(folder)
        if safety_checker and index.safety_checker
        else None,
        scheduler=read_scheduler(
            folder / "scheduler/scheduler_config.json", index.scheduler, scheduler, xl=index.xl
        ),
        force_zeros_for_empty_prompt=index.force_zeros_for_empty_prompt,
    )
    _check_fit(folder, config)
    return config


def _read_model_index(path: Path, chosen_scheduler: str | None) -> _Index:
    keys = StrictJson(path)
    name = keys.values.get("_class_name")
    if name not in (XL, SD):
        raise keys.error("_class_name", name, f"{XL!r} or {SD!r}{family(name)}")
    xl = name == XL
    components = {
        "text_encoder": ("CLIPTextModel",),
        "tokenizer": ("CLIPTokenizer", "CLIPTokenizerFast"),
        "unet": ("UNet2DConditionModel",),
        "vae": ("AutoencoderKL",),
    }
    if xl:
        components["text_encoder_2"] = ("CLIPTextModelWithProjection",)
        components["tokenizer_2"] = ("CLIPTokenizer", "CLIPTokenizerFast")
    for component, rights in components.items():
        value = keys.take(component, list)
        if len(value) != 2 or value[1] not in rights:
            raise keys.error(component, value, f"the class {rights[0]!r}")
    scheduler = keys.take("scheduler", list)
    supported = SCHEDULERS.values()
    if len(scheduler) != 2 or (chosen_scheduler is None and scheduler[1] not in supported):
        raise keys.error("scheduler", scheduler, f"a class out of {', '.join(supported)}")
    keys.one_of("image_encoder", ([None, None],))
    keys.drop("feature_extractor")
    keys.drop("add_watermarker" if xl else "requires_safety_checker")
    force_zeros = xl and keys.take("force_zeros_for_empty_prompt", bool, True)
    safety_checker = not xl and _takes_safety_checker(keys)
    keys.finish()
    return _Index(xl, scheduler[1], force_zeros, safety_checker)


def _takes_safety_checker(keys: StrictJson) -> bool:
    value = keys.take("safety_checker", list, [None, None])
    if len(value) != 2 or value[1] not in (None, SAFETY_CHECKER):
        raise keys.error("safety_checker", value, f"the class {SAFETY_CHECKER!r}, or none")
    return value[1] is not None


def names_safety_checker(folder: Path) -> bool:
    """Return whether a checkpoint's `model_index.json` names a safety checker.

    A file that is missing or unreadable names none.
    """
    try:
        values = StrictJson(folder / "model_index.json").values
    except CheckpointError:
        return False
    return SAFETY_CHECKER in str(values.get("safety_checker"))


def family(class_name: object) -> str:
    """Return a phrase that says what an unsupported pipeline class is, or "" if it is unknown.

    The phrase continues the sentence of an error message.
    """
    families = (named for part, named in OTHER_FAMILIES.items() if part in str(class_name))
    return next((f"; this is {named}" for named in families), "")


def _read_unet(path: Path, *, xl: bool) -> UNetConfig:
    keys = StrictJson(path)
    channels = keys.sizes("block_out_channels", [320, 640, 1280, 1280])
    blocks = len(channels)
    layers = keys.sizes_per_block("layers_per_block", blocks, 2)
    down_types, up_types = (
        _block_types(keys, side, blocks, (f"CrossAttn{name}Block2D", f"{name}Block2D"))
        for side, name in (("down_block_types", "Down"), ("up_block_types", "Up"))
    )
    mid_type = keys.one_of("mid_block_type", ("UNetMidBlock2DCrossAttn", "UNetMidBlock2D"))
    depths = keys.per_block("transformer_layers_per_block", blocks, 1)
    in_channels = _in_channels(keys)
    config = UNetConfig(
        sample_size=_sample_size(keys, xl=xl),
        in_channels=in_channels,
        block_out_channels=channels,
        layers_per_block=layers,
        num_attention_heads=keys.sizes_per_block("attention_head_dim", blocks, 8),
        down_depths=_depths(keys, "transformer_layers_per_block", depths, layers, down_types),
        mid_depth=_mid_depth(depths[-1]) if mid_type.endswith("CrossAttn") else None,
        up_depths=_up_depths(keys, depths, [n + 1 for n in reversed(layers)], up_types),
        cross_attention_dim=keys.size("cross_attention_dim", 1280),
        norm_num_groups=keys.size("norm_num_groups", 32),
        norm_eps=keys.positive("norm_eps", 1e-5),
        flip_sin_to_cos=keys.take("flip_sin_to_cos", bool, True),
        freq_shift=keys.take("freq_shift", float, 0),
        time_embed_dim=_optional_size(keys, "time_embedding_dim", 4 * channels[0]),
        use_linear_projection=keys.take("use_linear_projection", bool, False),
        addition=_addition(keys) if xl else None,
    )
    keys.one_of("out_channels", (in_channels,), default=4)
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
    # With SDXL, `_addition` has already taken the next three keys.
    for key in ("addition_embed_type", "addition_time_embed_dim"):
        keys.one_of(key, (None,))
    keys.one_of("projection_class_embeddings_input_dim", (None,))
    for key in ("encoder_hid_dim_type", "num_attention_heads", "time_embedding_act_fn"):
        keys.one_of(key, (None,))
    for key in ("time_cond_proj_dim", "timestep_post_act"):
        keys.one_of(key, (None,))
    for key in ("mid_block_scale_factor", "resnet_out_scale_factor"):
        keys.one_of(key, (1.0, 1))
    for key in ("conv_in_kernel", "conv_out_kernel"):
        keys.one_of(key, (3,))
    keys.one_of("act_fn", ("silu", "swish"))
    keys.one_of("attention_type", ("default",))
    keys.one_of("downsample_padding", (1,))
    keys.one_of("resnet_time_scale_shift", ("default",))
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


def _addition(keys: StrictJson) -> AdditionConfig:
    keys.one_of("addition_embed_type", ("text_time",), default=None)
    return AdditionConfig(
        time_embed_dim=keys.size("addition_time_embed_dim"),
        input_dim=keys.size("projection_class_embeddings_input_dim"),
    )


def _sample_size(keys: StrictJson, *, xl: bool) -> tuple[int, int]:
    value = keys.values.get("sample_size")
    if not xl and _before_0_9(keys) and type(value) is int and value < LEGACY_SAMPLE_SIZE:
        value = keys.values["sample_size"] = LEGACY_SAMPLE_SIZE
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


def _optional_size(keys: StrictJson, key: str, default: int) -> int:
    if keys.values.get(key) is None:
        keys.drop(key)
        return default
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


def _read_vae(path: Path) -> VAEConfig:
    keys = StrictJson(path)
    channels = keys.sizes("block_out_channels", [64])
    for key, name in (
        ("down_block_types", "DownEncoderBlock2D"),
        ("up_block_types", "UpDecoderBlock2D"),
    ):
        value = keys.take(key, list, [name])
        if value != [name] * len(channels):
            raise keys.error(key, value, f"{len(channels)} of {name!r}")
    latent_channels = keys.size("latent_channels", 4)
    config = VAEConfig(
        in_channels=keys.one_of("in_channels", (3,)),
        latent_channels=latent_channels,
        block_out_channels=channels,
        layers_per_block=keys.size("layers_per_block", 1),
        norm_num_groups=keys.size("norm_num_groups", 32),
        scaling_factor=keys.positive("scaling_factor", 0.18215),
        latents_mean=_per_channel(keys, "latents_mean", latent_channels),
        latents_std=_per_channel(keys, "latents_std", latent_channels),
        use_quant_conv=keys.take("use_quant_conv", bool, True),
        use_post_quant_conv=keys.take("use_post_quant_conv", bool, True),
        mid_block_add_attention=keys.take("mid_block_add_attention", bool, True),
    )
    keys.one_of("out_channels", (3,))
    keys.one_of("act_fn", ("silu", "swish"))
    keys.one_of("shift_factor", (None,))
    # force_upcast is advice about float16, which is never used here.
    keys.drop("sample_size", "force_upcast")
    keys.finish()
    if (config.latents_mean is None) != (config.latents_std is None):
        given = config.latents_std and list(config.latents_std)
        raise keys.error("latents_std", given, "both latents_mean and latents_std, or neither")
    if config.latents_std is not None and min(config.latents_std) <= 0:
        raise keys.error("latents_std", list(config.latents_std), "numbers above 0")
    if any(width % config.norm_num_groups for width in channels):
        right = f"a divisor of every one of {list(channels)} channels"
        raise keys.error("norm_num_groups", config.norm_num_groups, right)
    return config


def _per_channel(keys: StrictJson, key: str, channels: int) -> tuple[float, ...] | None:
    value = keys.values.pop(key, None)
    if value is None:
        return None
    right = isinstance(value, list) and all(type(item) in (int, float) for item in value)
    # Check the size before converting: an int may be too large for a float.
    if not right or len(value) != channels or not all(abs(item) < 1e6 for item in value):
        raise keys.error(key, value, f"a list of {channels} numbers, one per latent channel")
    return tuple(float(item) for item in value)


def _check_fit(folder: Path, config: Config) -> None:
    """Raise CheckpointError if the components do not fit together."""
    unet = config.unet
    width = sum(encoder.hidden_size for encoder in config.text_encoders.values())
    fits = [
        ("in_channels", unet.in_channels, config.vae.latent_channels, "the VAE's latent_channels"),
        ("cross_attention_dim", unet.cross_attention_dim, width, "the text encoders' width"),
    ]
    if config.text_encoder_2 is not None and unet.addition is not None:
        pooled = config.text_encoder_2.projection_dim
        assert pooled is not None  # from read_text_encoder(projected=True)
        why = "text_encoder_2's projection_dim + 6 * addition_time_embed_dim"
        right = pooled + 6 * unet.addition.time_embed_dim
        fits.append(("projection_class_embeddings_input_dim", unet.addition.input_dim, right, why))
    for key, value, right, why in fits:
        if value != right:
            file = folder / "unet/config.json"
            raise CheckpointError(f"{file}: {key} = {value} does not fit; expected {right}, {why}")
