"""The shape of every network, read from a checkpoint's JSON files.

Each reader takes the keys it knows, one by one; what is left over, or has a value that the code
beside it does not implement, is an error that names the file, the key and the value. Defaults are
those of diffusers' and transformers' own classes, for keys that a file may leave out.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import CheckpointError

ACTIVATIONS = ("quick_gelu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")


@dataclass(frozen=True)
class TextEncoderConfig:
    """A CLIP text encoder. `projection_dim` is None for the first, which has no projection."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    hidden_act: str
    layer_norm_eps: float
    eos_token_id: int
    projection_dim: int | None


@dataclass(frozen=True)
class UNetConfig:
    """SDXL's UNet2DConditionModel.

    Tuples run over the blocks, from the highest resolution down; the `up_` ones from the lowest
    resolution up. A depth is the number of transformer layers after one ResNet; a block without
    attention has no depths.
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
    addition_time_embed_dim: int
    projection_class_embeddings_input_dim: int


@dataclass(frozen=True)
class VAEConfig:
    """AutoencoderKL. `latents_mean` and `latents_std`, where given, are per latent channel."""

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
class SchedulerConfig:
    """EulerDiscreteScheduler."""

    num_train_timesteps: int
    beta_start: float
    beta_end: float
    beta_schedule: str
    prediction_type: str
    timestep_spacing: str
    steps_offset: int
    use_karras_sigmas: bool


@dataclass(frozen=True)
class Config:
    """A whole checkpoint: one entry per folder that holds a network, and the noise schedule."""

    text_encoder: TextEncoderConfig
    text_encoder_2: TextEncoderConfig
    unet: UNetConfig
    vae: VAEConfig
    scheduler: SchedulerConfig
    force_zeros_for_empty_prompt: bool


class Keys:
    """One JSON file whose keys are taken one at a time; `finish` refuses what nobody took."""

    def __init__(self, path: Path):
        self.path = path
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CheckpointError(f"{path}: this file is missing from the checkpoint") from None
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{path}: not a readable JSON file: {error}") from error
        if not isinstance(values, dict):
            raise CheckpointError(f"{path}: expected a JSON object at the top")
        self.values: dict[str, Any] = values

    def error(self, key: str, value: object, right: str) -> CheckpointError:
        """What to raise for a value that is not supported; `right` is what would be."""
        return CheckpointError(f"{self.path}: {key} = {value!r} is not supported; expected {right}")

    def take(self, key: str, kind: type, default: Any = ...) -> Any:
        """The value under `key`, of type `kind`; an int passes for a float, which is finite."""
        value = self.values.pop(key, default)
        if value is ...:
            raise CheckpointError(f"{self.path}: {key} is missing")
        if kind is float and type(value) is int and abs(value) < 2**53:
            value = float(value)
        wrong = not isinstance(value, kind) or (kind is not bool and isinstance(value, bool))
        if wrong or (kind is float and not math.isfinite(value)):
            raise self.error(key, value, f"a value of type {kind.__name__}")
        return value

    def positive(self, key: str, default: float) -> float:
        """A number above 0."""
        value = self.take(key, float, default)
        if value <= 0:
            raise self.error(key, value, "a number above 0")
        return value

    def size(self, key: str, default: Any = ...) -> int:
        """A positive integer."""
        value = self.take(key, int, default)
        if value < 1:
            raise self.error(key, value, "a positive integer")
        return value

    def sizes(self, key: str, default: Any = ...) -> tuple[int, ...]:
        """A list of positive integers."""
        value = self.take(key, list, default)
        if not value or not all(type(item) is int and item > 0 for item in value):
            raise self.error(key, value, "a list of positive integers")
        return tuple(value)

    def per_block(self, key: str, blocks: int, default: Any = ...) -> tuple[Any, ...]:
        """One value for all blocks, or a list with one for each."""
        value = self.values.pop(key, default)
        if value is ...:
            raise CheckpointError(f"{self.path}: {key} is missing")
        values = tuple(value) if isinstance(value, list) else (value,) * blocks
        if len(values) != blocks:
            raise self.error(key, value, f"one value, or a list of {blocks}, one per block")
        return values

    def sizes_per_block(self, key: str, blocks: int, default: int) -> tuple[int, ...]:
        """One positive integer for all blocks, or a list with one for each."""
        given = self.values.get(key)
        values = self.per_block(key, blocks, default)
        if not all(type(value) is int and value > 0 for value in values):
            raise self.error(key, given, "positive integers")
        return values

    def one_of(self, key: str, allowed: Sequence[Any], default: Any = ...) -> Any:
        """A value out of `allowed`; the first one stands for a key that is not there."""
        value = self.values.pop(key, allowed[0] if default is ... else default)
        # `True == 1` in Python, but not in a config.
        if not any(value == right and type(value) is type(right) for right in allowed):
            raise self.error(key, value, " or ".join(repr(right) for right in allowed))
        return value

    def drop(self, *keys: str) -> None:
        """Keys that say nothing about inference."""
        for key in keys:
            self.values.pop(key, None)

    def finish(self) -> None:
        """Refuses what is left; names that start with "_" are notes, not settings."""
        for key, value in self.values.items():
            if not key.startswith("_"):
                raise CheckpointError(f"{self.path}: unknown key {key} = {value!r}")


def read_config(folder: Path) -> Config:
    """Reads every configuration of a checkpoint in diffusers' layout.

    Raises CheckpointError, naming file, key and value, for anything that is not supported.
    """
    force_zeros = _read_model_index(folder / "model_index.json")
    config = Config(
        text_encoder=_read_text_encoder(folder / "text_encoder/config.json", projected=False),
        text_encoder_2=_read_text_encoder(folder / "text_encoder_2/config.json", projected=True),
        unet=_read_unet(folder / "unet/config.json"),
        vae=_read_vae(folder / "vae/config.json"),
        scheduler=_read_scheduler(folder / "scheduler/scheduler_config.json"),
        force_zeros_for_empty_prompt=force_zeros,
    )
    _check_fit(folder, config)
    return config


def _read_model_index(path: Path) -> bool:
    keys = Keys(path)
    name = keys.values.get("_class_name")
    if name != "StableDiffusionXLPipeline":
        raise keys.error("_class_name", name, "'StableDiffusionXLPipeline'")
    for component, rights in {
        "scheduler": ("EulerDiscreteScheduler",),
        "text_encoder": ("CLIPTextModel",),
        "text_encoder_2": ("CLIPTextModelWithProjection",),
        "tokenizer": ("CLIPTokenizer", "CLIPTokenizerFast"),
        "tokenizer_2": ("CLIPTokenizer", "CLIPTokenizerFast"),
        "unet": ("UNet2DConditionModel",),
        "vae": ("AutoencoderKL",),
    }.items():
        value = keys.take(component, list)
        if len(value) != 2 or value[1] not in rights:
            raise keys.error(component, value, f"the class {rights[0]!r}")
    keys.drop("add_watermarker")
    keys.one_of("image_encoder", ([None, None],))
    keys.drop("feature_extractor")
    force_zeros = keys.take("force_zeros_for_empty_prompt", bool, True)
    keys.finish()
    return force_zeros


def _read_text_encoder(path: Path, *, projected: bool) -> TextEncoderConfig:
    keys = Keys(path)
    keys.one_of("model_type", ("clip_text_model",))
    projection_dim = keys.size("projection_dim", 512)
    config = TextEncoderConfig(
        vocab_size=keys.size("vocab_size", 49408),
        hidden_size=keys.size("hidden_size", 512),
        intermediate_size=keys.size("intermediate_size", 2048),
        num_hidden_layers=keys.size("num_hidden_layers", 12),
        num_attention_heads=keys.size("num_attention_heads", 8),
        max_position_embeddings=keys.size("max_position_embeddings", 77),
        hidden_act=keys.one_of("hidden_act", ACTIVATIONS),
        layer_norm_eps=keys.positive("layer_norm_eps", 1e-5),
        eos_token_id=keys.take("eos_token_id", int, 49407),
        projection_dim=projection_dim if projected else None,
    )
    # Training-time settings, and notes about the file itself.
    keys.drop("architectures", "attention_dropout", "dropout", "initializer_factor")
    keys.drop("initializer_range", "bos_token_id", "pad_token_id", "torch_dtype", "dtype")
    keys.drop("transformers_version", "gradient_checkpointing", "tie_word_embeddings")
    keys.finish()
    if config.hidden_size % config.num_attention_heads:
        right = f"a divisor of hidden_size = {config.hidden_size}"
        raise keys.error("num_attention_heads", config.num_attention_heads, right)
    return config


def _read_unet(path: Path) -> UNetConfig:
    keys = Keys(path)
    keys.one_of("addition_embed_type", ("text_time",), default=None)
    channels = keys.sizes("block_out_channels", [320, 640, 1280, 1280])
    blocks = len(channels)
    layers = keys.sizes_per_block("layers_per_block", blocks, 2)
    down_types, up_types = (
        _block_types(keys, side, blocks, (f"CrossAttn{name}Block2D", f"{name}Block2D"))
        for side, name in (("down_block_types", "Down"), ("up_block_types", "Up"))
    )
    mid_type = keys.one_of("mid_block_type", ("UNetMidBlock2DCrossAttn", "UNetMidBlock2D"))
    depths = keys.per_block("transformer_layers_per_block", blocks, 1)
    in_channels = keys.size("in_channels", 4)
    config = UNetConfig(
        sample_size=_sample_size(keys),
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
        addition_time_embed_dim=keys.size("addition_time_embed_dim"),
        projection_class_embeddings_input_dim=keys.size("projection_class_embeddings_input_dim"),
    )
    keys.one_of("out_channels", (in_channels,), default=4)
    _refuse_other_unets(keys)
    keys.finish()
    _check_unet(keys, config)
    return config


def _refuse_other_unets(keys: Keys) -> None:
    """Options of UNet2DConditionModel that SDXL leaves alone, each with the values that do so."""
    for key in ("center_input_sample", "class_embeddings_concat", "dual_cross_attention"):
        keys.one_of(key, (False,))
    for key in ("only_cross_attention", "resnet_skip_time_act"):
        keys.one_of(key, (False,))
    for key in ("upcast_attention", "mid_block_only_cross_attention"):
        keys.one_of(key, (None, False))  # attention's softmax is float32 here in any case
    for key in ("class_embed_type", "cross_attention_norm", "encoder_hid_dim", "num_class_embeds"):
        keys.one_of(key, (None,))
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
    keys.one_of("use_linear_projection", (True,), default=False)
    keys.drop("dropout", "addition_embed_type_num_heads")


def _block_types(keys: Keys, key: str, blocks: int, allowed: tuple[str, str]) -> list[bool]:
    """For each block, whether it has attention."""
    names = keys.take(key, list)
    if len(names) != blocks or any(name not in allowed for name in names):
        raise keys.error(key, names, f"{blocks} of {allowed[0]!r} or {allowed[1]!r}")
    return [name == allowed[0] for name in names]


def _up_depths(
    keys: Keys, depths: Sequence[Any], layers: Sequence[int], has_attention: Sequence[bool]
) -> tuple[tuple[int, ...], ...]:
    key = "reverse_transformer_layers_per_block"
    if keys.values.get(key) is not None:
        return _depths(keys, key, keys.per_block(key, len(depths)), layers, has_attention)
    keys.drop(key)
    if any(isinstance(depth, list) for depth in depths):
        raise keys.error(key, None, "a list too where transformer_layers_per_block holds lists")
    return _depths(keys, "transformer_layers_per_block", depths[::-1], layers, has_attention)


def _depths(
    keys: Keys,
    key: str,
    depths: Sequence[Any],
    layers: Sequence[int],
    has_attention: Sequence[bool],
) -> tuple[tuple[int, ...], ...]:
    """Transformer layers after each ResNet of each block."""
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


def _sample_size(keys: Keys) -> tuple[int, int]:
    value = keys.values.get("sample_size")
    if isinstance(value, list):
        sizes = keys.sizes("sample_size")
        if len(sizes) != 2:
            raise keys.error("sample_size", value, "one size, or [height, width]")
        return sizes[0], sizes[1]
    size = keys.size("sample_size")
    return size, size


def _optional_size(keys: Keys, key: str, default: int) -> int:
    if keys.values.get(key) is None:
        keys.drop(key)
        return default
    return keys.size(key)


def _check_unet(keys: Keys, config: UNetConfig) -> None:
    for channels, heads in zip(config.block_out_channels, config.num_attention_heads, strict=True):
        if channels % heads:
            raise keys.error("attention_head_dim", heads, f"a divisor of {channels} channels")
        if channels % config.norm_num_groups:
            right = f"a divisor of {channels} channels"
            raise keys.error("norm_num_groups", config.norm_num_groups, right)
    if config.block_out_channels[0] % 2 or config.addition_time_embed_dim % 2:
        raise keys.error("addition_time_embed_dim", config.addition_time_embed_dim, "an even size")


def _read_vae(path: Path) -> VAEConfig:
    keys = Keys(path)
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
    if any(width % config.norm_num_groups for width in channels):
        right = f"a divisor of every one of {list(channels)} channels"
        raise keys.error("norm_num_groups", config.norm_num_groups, right)
    return config


def _per_channel(keys: Keys, key: str, channels: int) -> tuple[float, ...] | None:
    value = keys.values.pop(key, None)
    if value is None:
        return None
    right = isinstance(value, list) and all(type(item) in (int, float) for item in value)
    if not right or len(value) != channels:
        raise keys.error(key, value, f"a list of {channels} numbers, one per latent channel")
    return tuple(float(item) for item in value)


def _read_scheduler(path: Path) -> SchedulerConfig:
    keys = Keys(path)
    name = keys.values.get("_class_name")
    if name != "EulerDiscreteScheduler":
        raise keys.error("_class_name", name, "'EulerDiscreteScheduler'")
    config = SchedulerConfig(
        num_train_timesteps=keys.size("num_train_timesteps", 1000),
        beta_start=keys.positive("beta_start", 0.0001),
        beta_end=keys.positive("beta_end", 0.02),
        beta_schedule=keys.one_of("beta_schedule", ("linear", "scaled_linear")),
        prediction_type=keys.one_of("prediction_type", ("epsilon", "v_prediction")),
        timestep_spacing=keys.one_of("timestep_spacing", ("linspace", "leading", "trailing")),
        steps_offset=keys.take("steps_offset", int, 0),
        use_karras_sigmas=bool(keys.one_of("use_karras_sigmas", (False, True, None))),
    )
    keys.one_of("interpolation_type", ("linear",))
    keys.one_of("final_sigmas_type", ("zero",))
    keys.one_of("timestep_type", ("discrete",))
    for key in ("use_exponential_sigmas", "use_beta_sigmas", "rescale_betas_zero_snr"):
        keys.one_of(key, (False, None))
    for key in ("trained_betas", "sigma_min", "sigma_max"):
        keys.one_of(key, (None,))
    # Settings of other schedulers that published files carry along; Euler reads none of them.
    keys.drop("clip_sample", "clip_sample_range", "sample_max_value", "set_alpha_to_one")
    keys.drop("skip_prk_steps")
    keys.finish()
    for key, beta in (("beta_start", config.beta_start), ("beta_end", config.beta_end)):
        if beta >= 1:
            raise keys.error(key, beta, "a number below 1")
    if config.steps_offset < 0:
        raise keys.error("steps_offset", config.steps_offset, "0 or more")
    return config


def _check_fit(folder: Path, config: Config) -> None:
    """The components must fit together."""
    unet, first, second = config.unet, config.text_encoder, config.text_encoder_2
    file = folder / "unet/config.json"
    width = first.hidden_size + second.hidden_size
    assert second.projection_dim is not None  # _read_text_encoder(projected=True)
    added = second.projection_dim + 6 * unet.addition_time_embed_dim
    for key, value, right, why in (
        ("in_channels", unet.in_channels, config.vae.latent_channels, "the VAE's latent_channels"),
        ("cross_attention_dim", unet.cross_attention_dim, width, "both text encoders' width"),
        (
            "projection_class_embeddings_input_dim",
            unet.projection_class_embeddings_input_dim,
            added,
            "text_encoder_2's projection_dim + 6 * addition_time_embed_dim",
        ),
    ):
        if value != right:
            raise CheckpointError(f"{file}: {key} = {value} does not fit; expected {right}, {why}")
