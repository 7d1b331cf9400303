"""Configuration of CLIP's text encoders and of the safety checker, from a checkpoint's JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.strict_json import StrictJson

ACTIVATIONS = ("quick_gelu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")
BICUBIC = 3  # Pillow's number for bicubic resampling
# Settings of training, and notes about the file itself.
NOTES = (
    *("architectures", "attention_dropout", "dropout", "initializer_factor", "initializer_range"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "torch_dtype", "dtype"),
    *("transformers_version", "gradient_checkpointing", "tie_word_embeddings"),
)
# Keys that transformers wrote into every configuration, whatever the network: settings of text
# generation, class labels and output options. They have no effect on CLIP's encoders.
OF_OTHER_NETWORKS = (
    *("add_cross_attention", "bad_words_ids", "begin_suppress_tokens", "chunk_size_feed_forward"),
    *("cross_attention_hidden_size", "decoder_start_token_id", "diversity_penalty", "do_sample"),
    *("early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty"),
    *("finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "id2label", "is_decoder"),
    *("is_encoder_decoder", "label2id", "length_penalty", "max_length", "min_length"),
    *("no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences"),
    *("output_attentions", "output_hidden_states", "output_scores", "prefix", "problem_type"),
    *("pruned_heads", "remove_invalid_values", "repetition_penalty", "return_dict"),
    *("return_dict_in_generate", "sep_token_id", "suppress_tokens", "task_specific_params"),
    *("temperature", "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p"),
    *("torchscript", "typical_p", "use_bfloat16"),
)
# The preprocessing of the safety checker's pictures. They are RGB already.
PREPROCESSING: Mapping[str, Sequence[Any]] = {
    **dict.fromkeys(("do_resize", "do_center_crop", "do_rescale", "do_normalize"), (True,)),
    "do_convert_rgb": (True, False),
    "resample": (BICUBIC,),
    "use_square_size": (False,),
    "default_to_square": (False,),
}
# Keys of the preprocessing that no picture depends on.
PREPROCESSING_NOTES = (
    *("feature_extractor_type", "image_processor_type", "processor_class"),
    *("data_format", "input_data_format", "device", "return_tensors"),
)


@dataclass(frozen=True)
class EncoderConfig:
    """Configuration of a transformer of pre-norm layers."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    hidden_act: str
    layer_norm_eps: float


@dataclass(frozen=True)
class TextEncoderConfig(EncoderConfig):
    """Configuration of a CLIP text encoder.

    `projection_dim` is None for an encoder without a projection, which returns no pooled state.
    `penultimate`: True takes the prompt's states before the last layer and the final norm (SDXL),
    False takes them after both (Stable Diffusion 1 and 2).
    """

    vocab_size: int
    max_position_embeddings: int
    eos_token_id: int
    projection_dim: int | None
    penultimate: bool


@dataclass(frozen=True)
class VisionEncoderConfig(EncoderConfig):
    """Configuration of a CLIP vision encoder of square pictures, `image_size` pixels a side."""

    image_size: int
    patch_size: int


@dataclass(frozen=True)
class SafetyCheckerConfig:
    """Configuration of StableDiffusionSafetyChecker and of the preprocessing of its pictures.

    `shortest_edge`: length in pixels of the shorter side after scaling, before the center crop.
    `image_mean`, `image_std`: per colour, for values in 0..1.
    """

    vision: VisionEncoderConfig
    projection_dim: int
    shortest_edge: int
    image_mean: tuple[float, float, float]
    image_std: tuple[float, float, float]


def read_text_encoder(path: Path, *, projected: bool, penultimate: bool) -> TextEncoderConfig:
    """Read a text encoder's `config.json`.

    Args:
        path: the file.
        projected: whether the encoder has a projection, and so a pooled state.
        penultimate: as in `TextEncoderConfig`.

    Raises:
        CheckpointError: if a setting is not supported; the message names file, key and value.
    """
    keys = StrictJson(path)
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
        penultimate=penultimate,
    )
    keys.finish(*NOTES)
    _check_heads(keys, config)
    return config


def read_safety_checker(path: Path) -> SafetyCheckerConfig:
    """Read a safety checker's `config.json`, and the configuration of its preprocessing.

    The latter is in the folder `feature_extractor` beside the safety checker's.

    Raises:
        CheckpointError: if a setting is not supported; the message names file, key and value.
    """
    keys = StrictJson(path)
    keys.one_of("model_type", ("clip",))
    projection_dim = keys.size("projection_dim", 512)
    # If a file has vision_config_dict, transformers reads it and ignores vision_config.
    configs = [keys.inner(key) for key in ("vision_config", "vision_config_dict")]
    vision = _read_vision_encoder(
        next((inner for inner in reversed(configs) if inner.values), configs[0])
    )
    keys.finish("text_config", "text_config_dict", "logit_scale_init_value", *NOTES)
    shortest_edge, mean, std = _read_preprocessor(
        StrictJson(path.parents[1] / "feature_extractor/preprocessor_config.json"),
        vision.image_size,
    )
    return SafetyCheckerConfig(vision, projection_dim, shortest_edge, mean, std)


def _read_vision_encoder(keys: StrictJson) -> VisionEncoderConfig:
    keys.one_of("model_type", ("clip_vision_model",))
    config = VisionEncoderConfig(
        hidden_size=keys.size("hidden_size", 768),
        intermediate_size=keys.size("intermediate_size", 3072),
        num_hidden_layers=keys.size("num_hidden_layers", 12),
        num_attention_heads=keys.size("num_attention_heads", 12),
        hidden_act=keys.one_of("hidden_act", ACTIVATIONS),
        layer_norm_eps=keys.positive("layer_norm_eps", 1e-5),
        image_size=keys.size("image_size", 224),
        patch_size=keys.size("patch_size", 32),
    )
    keys.one_of("num_channels", (3,))
    keys.finish("projection_dim", *OF_OTHER_NETWORKS, *NOTES)  # the outer projection_dim is used
    _check_heads(keys, config)
    if config.patch_size > config.image_size:
        right = f"at most the image_size, {config.image_size}"
        raise keys.error("patch_size", config.patch_size, right)
    return config


def _read_preprocessor(
    keys: StrictJson, image_size: int
) -> tuple[int, tuple[float, float, float], tuple[float, float, float]]:
    """Return the shortest edge, the mean and the standard deviation."""
    keys.expect(PREPROCESSING)
    factor = keys.positive("rescale_factor", 1 / 255)
    if not math.isclose(factor, 1 / 255, rel_tol=1e-6):
        raise keys.error("rescale_factor", factor, "1/255")
    size, crop = keys.take("size", object, 224), keys.take("crop_size", object, 224)
    shortest_edge = size.get("shortest_edge") if isinstance(size, dict) else size
    if crop not in (image_size, {"height": image_size, "width": image_size}):
        raise keys.error("crop_size", crop, f"the vision encoder's image_size, {image_size}")
    if type(shortest_edge) is not int or not image_size <= shortest_edge <= 8192:
        right = f"a shortest_edge of the image_size, {image_size}, or more"
        raise keys.error("size", size, right)
    mean = keys.numbers("image_mean", 3, [0.48145466, 0.4578275, 0.40821073])
    std = keys.numbers("image_std", 3, [0.26862954, 0.26130258, 0.27577711])
    if min(std) <= 0:
        raise keys.error("image_std", list(std), "numbers above 0")
    keys.finish(*PREPROCESSING_NOTES)
    return shortest_edge, mean, std


def _check_heads(keys: StrictJson, config: EncoderConfig) -> None:
    if config.hidden_size % config.num_attention_heads:
        right = f"a divisor of hidden_size = {config.hidden_size}"
        raise keys.error("num_attention_heads", config.num_attention_heads, right)
