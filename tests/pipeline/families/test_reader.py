"""Published files are read; unsupported ones are refused with the file, key and value named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import CheckpointError, InputError
from pipeline.families import FamilyReader, read_config
from pipeline.families.family import Config
from pipeline.families.reader import fetch_tiny_vae
from pipeline.families.sdxl import SDXL_REFINER as FAMILY
from pipeline.models.clip_config import SafetyCheckerConfig, TextEncoderConfig, VisionEncoderConfig
from pipeline.models.tiny_vae import TinyVAE
from pipeline.models.vae_config import VAEConfig
from pipeline.runtime.loading import trace_networks
from pipeline.schedulers.config import FLOW_CLASS, SCHEDULERS, Betas, Flow, SchedulerConfig
from tests.checkpoints import GOLDEN, SMALLEST, change_json, copy_checkpoint
from tools.published_configs import SD_1, SD_2, SDXL_BASE, SDXL_REFINER, Files, write

UNET = "unet/config.json"
VAE = "vae/config.json"
TEXT = "text_encoder/config.json"
TEXT_2 = "text_encoder_2/config.json"
SCHEDULER = "scheduler/scheduler_config.json"
INDEX = "model_index.json"
CHECKER = "safety_checker/config.json"
PREPROCESSOR = "feature_extractor/preprocessor_config.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write SDXL base 1.0's configuration files, and return their folder."""
    return write(tmp_path, SDXL_BASE)


def changed(folder: Path, file: str, **changes: Any) -> Config:
    change_json(folder / file, **changes)
    return read_config(folder)


def test_sdxl_base(folder: Path) -> None:
    config = read_config(folder)
    text_encoder_2 = config.networks["text_encoder_2"]
    unet = config.networks["unet"]
    vae = config.networks["vae"]
    assert config.force_zeros_for_empty_prompt
    assert config.networks["text_encoder"] == TextEncoderConfig(
        vocab_size=49408,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        max_position_embeddings=77,
        hidden_act="quick_gelu",
        layer_norm_eps=1e-5,
        eos_token_id=2,
        projection_dim=None,
        penultimate=True,
    )
    assert (text_encoder_2.hidden_size, text_encoder_2.projection_dim) == (1280, 1280)
    assert unet.sample_size == (128, 128)
    assert unet.num_attention_heads == (5, 10, 20)
    assert unet.layers_per_block == (2, 2, 2)
    assert unet.down_depths == ((), (2, 2), (10, 10))
    assert unet.mid_depth == 10
    assert unet.up_depths == ((10, 10, 10), (2, 2, 2), ())
    assert unet.time_embed_dim == 1280
    assert vae == VAEConfig(
        in_channels=3,
        latent_channels=4,
        block_out_channels=(128, 256, 512, 512),
        layers_per_block=2,
        norm_num_groups=32,
        scaling_factor=0.13025,
        latents_mean=None,
        latents_std=None,
        use_quant_conv=True,
        use_post_quant_conv=True,
        mid_block_add_attention=True,
    )
    assert vae.scale_factor == 8
    assert config.scheduler == SchedulerConfig(
        name="euler",
        num_train_timesteps=1000,
        training=Betas(0.00085, 0.012, "scaled_linear"),
        prediction_type="epsilon",
        timestep_spacing="leading",
        steps_offset=1,
        sigma_schedule="default",
        set_alpha_to_one=True,
    )


def test_the_refiner(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, SDXL_REFINER))
    unet = config.networks["unet"]
    assert config.family is FAMILY
    assert list(config.text_encoders) == ["text_encoder_2"]
    assert not config.force_zeros_for_empty_prompt
    assert unet.block_out_channels == (384, 768, 1536, 1536)
    assert unet.down_depths == ((), (4, 4), (4, 4), ())
    assert (unet.mid_depth, unet.addition.input_dim) == (4, 1280 + 5 * 256)
    with pytest.raises(CheckpointError, match=r"= 2816 does not fit; expected 2560.* \+ 5 \* "):
        changed(tmp_path, UNET, projection_class_embeddings_input_dim=2816)


def test_a_whole_model_for_pictures_is_no_refiner(folder: Path) -> None:
    config = changed(folder, INDEX, _class_name="StableDiffusionXLImg2ImgPipeline")
    assert config.family.name == "Stable Diffusion XL"
    assert list(config.text_encoders) == ["text_encoder", "text_encoder_2"]


def test_stable_diffusion_1(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, SD_1))
    text_encoder = config.networks["text_encoder"]
    unet = config.networks["unet"]
    assert list(config.text_encoders) == ["text_encoder"]
    assert "text_encoder_2" not in config.networks
    assert (text_encoder.hidden_size, text_encoder.hidden_act) == (768, "quick_gelu")
    assert (text_encoder.penultimate, text_encoder.projection_dim) == (False, None)
    assert not config.force_zeros_for_empty_prompt
    assert unet.sample_size == (64, 64)
    assert unet.num_attention_heads == (8, 8, 8, 8)
    assert unet.down_depths == ((1, 1), (1, 1), (1, 1), ())
    assert unet.mid_depth == 1
    assert unet.up_depths == ((), (1, 1, 1), (1, 1, 1), (1, 1, 1))
    assert (unet.use_linear_projection, unet.addition) == (False, None)
    assert config.networks["vae"].scaling_factor == 0.18215
    assert config.scheduler.name == "pndm"
    assert config.scheduler.timestep_spacing == "leading"
    assert (config.scheduler.steps_offset, config.scheduler.set_alpha_to_one) == (1, False)
    assert config.safety_checker == SafetyCheckerConfig(
        vision=VisionEncoderConfig(
            hidden_size=1024,
            intermediate_size=4096,
            num_hidden_layers=24,
            num_attention_heads=16,
            hidden_act="quick_gelu",
            layer_norm_eps=1e-5,
            image_size=224,
            patch_size=14,
        ),
        projection_dim=768,
        shortest_edge=224,
        image_mean=(0.48145466, 0.4578275, 0.40821073),
        image_std=(0.26862954, 0.26130258, 0.27577711),
    )
    assert read_config(tmp_path, safety_checker=False).safety_checker is None


def test_other_spellings_of_a_safety_checkers_files(tmp_path: Path) -> None:
    published = read_config(write(tmp_path, SD_1)).safety_checker
    extent = {"height": 224, "width": 224}
    change_json(
        tmp_path / PREPROCESSOR,
        size={"shortest_edge": 224},
        crop_size=extent,
        rescale_factor=0.00392156862745098,
        image_processor_type="CLIPImageProcessor",
        use_square_size=False,
        do_rescale=True,
    )
    change_json(tmp_path / CHECKER, vision_config_dict=...)
    assert read_config(tmp_path).safety_checker == published
    change_json(tmp_path / CHECKER, vision_config=..., vision_config_dict={"num_hidden_layers": 3})
    config = read_config(tmp_path).safety_checker
    assert config is not None
    assert (config.vision.num_hidden_layers, config.vision.hidden_size) == (3, 768)


def test_a_checkpoint_may_have_no_safety_checker(tmp_path: Path) -> None:
    write(tmp_path, SD_1)
    for none in ([None, None], ...):
        assert changed(tmp_path, INDEX, safety_checker=none).safety_checker is None


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        (INDEX, "safety_checker", ["flux", "FluxSafetyChecker"]),
        (INDEX, "safety_checker", "StableDiffusionSafetyChecker"),
        (CHECKER, "model_type", "siglip"),
        (CHECKER, "projection_dim", "768"),
        (CHECKER, "vision_config", []),
        (CHECKER, "vision_config_dict", 7),
        (CHECKER, "vision_config_dict", {"patch_size": 0}),
        (CHECKER, "vision_config_dict", {"patch_size": 225}),
        (CHECKER, "vision_config_dict", {"num_channels": 1}),
        (CHECKER, "vision_config_dict", {"num_attention_heads": 7}),
        (CHECKER, "vision_config_dict", {"qkv_bias": True}),
        (CHECKER, "threshold", 0.5),
        (PREPROCESSOR, "do_center_crop", False),
        (PREPROCESSOR, "resample", 2),
        (PREPROCESSOR, "rescale_factor", 1.0),
        (PREPROCESSOR, "size", 223),
        (PREPROCESSOR, "size", {"height": 224, "width": 224}),
        (PREPROCESSOR, "size", True),
        (PREPROCESSOR, "crop_size", 225),
        (PREPROCESSOR, "crop_size", {"height": 224, "width": 225}),
        (PREPROCESSOR, "image_mean", [0.5]),
        (PREPROCESSOR, "image_mean", [0.5, 0.5, "0.5"]),
        (PREPROCESSOR, "image_std", [0.5, 0.0, 0.5]),
        (PREPROCESSOR, "do_flip", True),
    ],
)
def test_a_safety_checker_that_is_not_supported(
    tmp_path: Path, file: str, key: str, value: Any
) -> None:
    write(tmp_path, SD_1)
    with pytest.raises(CheckpointError) as caught:
        changed(tmp_path, file, **{key: value})
    message = str(caught.value)
    assert message.startswith(str(tmp_path / file))
    [(inner, shown)] = (
        value.items() if key == "vision_config_dict" and value != 7 else [(key, value)]
    )
    assert f"{inner} = {shown!r}" in message
    assert file == INDEX or message.endswith("(or turn the safety checker off)")


def test_stable_diffusion_2(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, SD_2))
    text_encoder = config.networks["text_encoder"]
    unet = config.networks["unet"]
    assert (text_encoder.hidden_size, text_encoder.hidden_act) == (1024, "gelu")
    assert unet.sample_size == (96, 96)
    assert unet.num_attention_heads == (5, 10, 20, 20)
    assert (unet.use_linear_projection, unet.addition) == (True, None)
    assert config.scheduler.name == "ddim"
    assert config.scheduler.prediction_type == "v_prediction"


@pytest.mark.parametrize(
    ("version", "side"), [("0.2.2", 64), ("0.8.0.dev0", 64), ("0.9.0", 32), ("0.10.0", 32)]
)
def test_a_small_sample_size_in_an_old_file_means_64(
    tmp_path: Path, version: str, side: int
) -> None:
    write(tmp_path, SD_1)
    config = changed(tmp_path, UNET, sample_size=32, _diffusers_version=version)
    assert config.networks["unet"].sample_size == (side, side)


@pytest.mark.parametrize(
    ("file", "key", "value", "right"),
    [
        (INDEX, "_class_name", "StableDiffusion3Pipeline", "this is Stable Diffusion 3"),
        (INDEX, "_class_name", "FluxPipeline", "this is FLUX"),
        (INDEX, "_class_name", "StableDiffusionControlNetPipeline", "this is a ControlNet"),
        (INDEX, "_class_name", "KandinskyInpaintPipeline", "this is an inpainting model"),
        (INDEX, "image_encoder", ["transformers", "CLIPVisionModelWithProjection"], "None"),
        (INDEX, "text_encoder_2", ["transformers", "CLIPTextModelWithProjection"], "unknown key"),
        (UNET, "in_channels", 8, "expected 4; this UNet is for editing pictures"),
        (UNET, "addition_embed_type", "text_time", "expected None"),
        (UNET, "addition_time_embed_dim", 256, "expected None"),
        (UNET, "cross_attention_dim", 1024, "expected 768, the text encoders' width"),
    ],
)
def test_other_families_are_refused_by_name(
    tmp_path: Path, file: str, key: str, value: Any, right: str
) -> None:
    write(tmp_path, SD_1)
    with pytest.raises(CheckpointError) as caught:
        changed(tmp_path, file, **{key: value})
    message = str(caught.value)
    assert message.startswith(str(tmp_path / file))
    assert f"{key} = {value!r}" in message
    assert right in message


@pytest.mark.parametrize("name", sorted(path.parent.name for path in GOLDEN.glob("*/checkpoint")))
def test_configurations_of_current_diffusers_are_read(name: str) -> None:
    read_config(GOLDEN / name / "checkpoint")


def test_nested_depths(folder: Path) -> None:
    config = changed(
        folder,
        UNET,
        transformer_layers_per_block=[1, [2, 3], [4, 5]],
        reverse_transformer_layers_per_block=[[4, 4, 10], [2, 1, 1], 1],
        mid_block_type="UNetMidBlock2D",
    )
    unet = config.networks["unet"]
    assert unet.down_depths == ((), (2, 3), (4, 5))
    assert (unet.mid_resnets, unet.mid_depth) == (1, None)
    assert unet.up_depths == ((4, 4, 10), (2, 1, 1), ())


def test_a_unet_may_have_no_middle_block(folder: Path) -> None:
    unet = changed(folder, UNET, mid_block_type=None).networks["unet"]
    assert (unet.mid_resnets, unet.mid_depth) == (0, None)


def test_a_nested_mid_block_takes_the_first_depth(folder: Path) -> None:
    config = changed(
        folder,
        UNET,
        transformer_layers_per_block=[1, 2, [4, 5]],
        reverse_transformer_layers_per_block=[3, 2, 1],
    )
    unet = config.networks["unet"]
    assert unet.mid_depth == 4
    assert unet.up_depths == ((3, 3, 3), (2, 2, 2), ())


def test_values_per_block(folder: Path) -> None:
    config = changed(
        folder,
        UNET,
        layers_per_block=[1, 2, 3],
        attention_head_dim=[1, 2, 4],
        sample_size=[96, 128],
        time_embedding_dim=640,
    )
    unet = config.networks["unet"]
    assert unet.layers_per_block == (1, 2, 3)
    assert unet.num_attention_heads == (1, 2, 4)
    assert unet.down_depths == ((), (2, 2), (10, 10, 10))
    assert unet.up_depths == ((10, 10, 10, 10), (2, 2, 2), ())
    assert unet.sample_size == (96, 128)
    assert unet.time_embed_dim == 640
    assert changed(folder, UNET, attention_head_dim=5).networks["unet"].num_attention_heads == (
        5,
        5,
        5,
    )


def test_vae_levels_and_latents(folder: Path) -> None:
    vae = {
        "block_out_channels": [32, 32, 64, 64, 96],
        "down_block_types": ["DownEncoderBlock2D"] * 5,
        "up_block_types": ["UpDecoderBlock2D"] * 5,
        "latent_channels": 8,
        "latents_mean": [0] * 8,
        "latents_std": [1.5] * 8,
    }
    change_json(folder / UNET, in_channels=8, out_channels=8)
    config = changed(folder, VAE, **vae).networks["vae"]
    assert (config.scale_factor, config.latent_channels) == (16, 8)
    assert (config.latents_mean, config.latents_std) == ((0.0,) * 8, (1.5,) * 8)


def test_keys_that_may_be_left_out(folder: Path) -> None:
    change_json(folder / INDEX, force_zeros_for_empty_prompt=..., add_watermarker=...)
    change_json(folder / TEXT, layer_norm_eps=..., vocab_size=..., hidden_act=...)
    change_json(folder / UNET, norm_eps=..., act_fn=..., mid_block_type=..., freq_shift=...)
    change_json(folder / VAE, layers_per_block=...)
    leave_out = {"timestep_spacing": ..., "beta_schedule": ..., "steps_offset": ...}
    config = changed(folder, SCHEDULER, **leave_out)
    assert config.force_zeros_for_empty_prompt
    assert config.networks["text_encoder"].vocab_size == 49408
    assert config.networks["vae"].layers_per_block == 1
    assert config.scheduler.timestep_spacing == "linspace"
    assert config.scheduler.betas.schedule == "linear"
    assert config.scheduler.steps_offset == 0


REFUSED: list[tuple[str, str, Any]] = [
    # Other pipelines and components
    (INDEX, "_class_name", "StableDiffusion3Pipeline"),
    (INDEX, "_class_name", "FluxPipeline"),
    (INDEX, "_class_name", "KandinskyV22InpaintPipeline"),
    (INDEX, "_class_name", "StableDiffusionControlNetPipeline"),
    (INDEX, "_class_name", "StableDiffusionImg2ImgPipeline"),
    (INDEX, "_class_name", ...),
    (INDEX, "scheduler", ["diffusers", "DEISMultistepScheduler"]),
    (INDEX, "scheduler", "EulerDiscreteScheduler"),
    (INDEX, "text_encoder", [None, None]),
    (INDEX, "text_encoder", "CLIPTextModel"),
    (INDEX, "text_encoder_2", ["transformers", "T5EncoderModel"]),
    (INDEX, "tokenizer_2", ["transformers", "T5Tokenizer"]),
    (INDEX, "tokenizer", ...),
    (INDEX, "unet", ["diffusers", "SD3Transformer2DModel"]),
    (INDEX, "vae", ["diffusers", "AutoencoderTiny"]),
    (INDEX, "vae", ...),
    (INDEX, "image_encoder", ["transformers", "CLIPVisionModelWithProjection"]),
    (INDEX, "force_zeros_for_empty_prompt", "yes"),
    (INDEX, "safety_checker", ["diffusers", "StableDiffusionSafetyChecker"]),
    # Text encoders
    (TEXT, "model_type", "clip_vision_model"),
    (TEXT, "hidden_act", "mish"),
    (TEXT, "hidden_size", "768"),
    (TEXT, "hidden_size", 0),
    (TEXT, "hidden_size", True),
    (TEXT, "num_attention_heads", 7),
    (TEXT, "num_hidden_layers", 12.0),
    (TEXT, "layer_norm_eps", None),
    (TEXT, "layer_norm_eps", 0),
    (TEXT, "eos_token_id", [2]),
    (TEXT, "rope_theta", 10000),
    (TEXT_2, "projection_dim", -1),
    # UNet
    (UNET, "addition_embed_type", None),
    (UNET, "addition_embed_type", ...),
    (UNET, "addition_embed_type", "image"),
    (UNET, "addition_time_embed_dim", None),
    (UNET, "addition_time_embed_dim", ...),
    (UNET, "use_linear_projection", None),
    (UNET, "act_fn", "gelu"),
    (UNET, "attention_type", "gated"),
    (UNET, "attention_head_dim", [5, 10]),
    (UNET, "attention_head_dim", [5, 10, 33]),
    (UNET, "attention_head_dim", [5, 10, "20"]),
    (UNET, "attention_head_dim", None),
    (UNET, "attention_head_dim", 0),
    (UNET, "block_out_channels", []),
    (UNET, "block_out_channels", [320, 640, -1280]),
    (UNET, "block_out_channels", 320),
    (UNET, "class_embed_type", "timestep"),
    (UNET, "center_input_sample", True),
    (UNET, "conv_in_kernel", 5),
    (UNET, "cross_attention_dim", [2048, 2048, 2048]),
    (UNET, "down_block_types", ["DownBlock2D", "CrossAttnDownBlock2D", "AttnDownBlock2D"]),
    (UNET, "down_block_types", ["DownBlock2D", "CrossAttnDownBlock2D"]),
    (UNET, "down_block_types", ...),
    (UNET, "up_block_types", ["UpBlock2D", "UpBlock2D", ["UpBlock2D"]]),
    (UNET, "dual_cross_attention", True),
    (UNET, "dual_cross_attention", 0),
    (UNET, "encoder_hid_dim_type", "ip_image_proj"),
    (UNET, "flip_sin_to_cos", 1),
    (UNET, "layers_per_block", "2"),
    (UNET, "layers_per_block", 0),
    (UNET, "layers_per_block", None),
    (UNET, "layers_per_block", [2, [2], 2]),
    (UNET, "mid_block_type", "UNetMidBlock2DSimpleCrossAttn"),
    (UNET, "norm_eps", float("nan")),
    (UNET, "norm_eps", 10**400),
    (UNET, "norm_num_groups", 48),
    (UNET, "norm_num_groups", None),
    (UNET, "num_attention_heads", 8),
    (UNET, "only_cross_attention", True),
    (UNET, "out_channels", 8),
    (UNET, "resnet_time_scale_shift", "scale"),
    (UNET, "resnet_out_scale_factor", 1.5),
    (UNET, "reverse_transformer_layers_per_block", [10, 2]),
    (UNET, "reverse_transformer_layers_per_block", [[10, 10], 2, 1]),
    (UNET, "reverse_transformer_layers_per_block", [1.5, 2, 1]),
    (UNET, "sample_size", None),
    (UNET, "sample_size", [128]),
    (UNET, "sample_size", [128, 0]),
    (UNET, "time_cond_proj_dim", 255),
    (UNET, "time_cond_proj_dim", 2),
    (UNET, "time_embedding_dim", -1),
    (UNET, "time_embedding_type", "fourier"),
    (UNET, "transformer_layers_per_block", [1, 2]),
    (UNET, "transformer_layers_per_block", [1, 2, "10"]),
    (UNET, "transformer_layers_per_block", [1, 2, -1]),
    (UNET, "transformer_layers_per_block", [1, 2, 1000]),
    (UNET, "upcast_attention", "yes"),
    (UNET, "motion_module", True),
    (UNET, "in_channels", 7),
    # VAE
    (VAE, "act_fn", "relu"),
    (VAE, "block_out_channels", "128"),
    (VAE, "down_block_types", ["DownEncoderBlock2D"] * 3),
    (VAE, "down_block_types", ["DownEncoderBlock2D"] * 3 + ["AttnDownEncoderBlock2D"]),
    (VAE, "in_channels", 1),
    (VAE, "latents_mean", [0.0, 0.0]),
    (VAE, "latents_mean", [10**400] * 4),
    (VAE, "latents_mean", [float("nan")] * 4),
    (VAE, "layers_per_block", 10**9),
    (UNET, "layers_per_block", 10**9),
    (VAE, "latents_mean", ["a", "b", "c", "d"]),
    (VAE, "latents_std", [1.0, 1.0, 1.0, 1.0]),
    (VAE, "layers_per_block", [2, 2, 2, 2]),
    (VAE, "norm_num_groups", 96),
    (VAE, "scaling_factor", 0),
    (VAE, "scaling_factor", float("inf")),
    (VAE, "shift_factor", 0.1),
    (VAE, "use_quant_conv", None),
    (VAE, "patch_size", 2),
    # Scheduler
    (SCHEDULER, "_class_name", "DEISMultistepScheduler"),
    (SCHEDULER, "_class_name", "DDIMScheduler"),  # the index names another class
    (SCHEDULER, "_class_name", ...),
    (SCHEDULER, "beta_end", 1.2),
    (SCHEDULER, "beta_start", 0),
    (SCHEDULER, "beta_start", -0.1),
    (SCHEDULER, "beta_schedule", "squaredcos_cap_v2"),
    (SCHEDULER, "final_sigmas_type", "sigma_min"),
    (SCHEDULER, "interpolation_type", "log_linear"),
    (SCHEDULER, "num_train_timesteps", 0),
    (SCHEDULER, "prediction_type", "flow_prediction"),
    (SCHEDULER, "rescale_betas_zero_snr", 1),
    (SCHEDULER, "sigma_max", 80.0),
    (SCHEDULER, "steps_offset", -1),
    (SCHEDULER, "steps_offset", 1.5),
    (SCHEDULER, "thresholding", True),
    (SCHEDULER, "timestep_spacing", "karras"),
    (SCHEDULER, "timestep_type", "continuous"),
    (SCHEDULER, "trained_betas", [0.1, 0.2]),
    (SCHEDULER, "use_beta_sigmas", 1),
    (SCHEDULER, "use_exponential_sigmas", "yes"),
    (SCHEDULER, "use_karras_sigmas", 1),
]


@pytest.mark.parametrize(
    ("file", "key", "value"), REFUSED, ids=[f"{key}={str(value)[:40]}" for _, key, value in REFUSED]
)
def test_refused_with_file_key_and_value(folder: Path, file: str, key: str, value: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        changed(folder, file, **{key: value})
    message = str(caught.value)
    assert str(folder / file) in message
    assert key in message
    if value is ...:
        assert any(f"{key} {state}" in message for state in ("is missing", "= None", "= False"))
    else:
        # For a list, the message may show only the wrong entry.
        shown = [value, *value] if isinstance(value, list) else [value]
        assert any(f"{key} = {part!r}" in message for part in shown)


# Sizes in one component that contradict another component.
MISFITS: list[tuple[str, dict[str, Any], str]] = [
    (UNET, {"in_channels": 9, "out_channels": 9}, "in_channels = 9"),
    (VAE, {"latent_channels": 16}, "in_channels = 4"),
    (UNET, {"cross_attention_dim": 768}, "cross_attention_dim = 768"),
    (TEXT, {"hidden_size": 1536}, "cross_attention_dim = 2048"),
    (TEXT_2, {"projection_dim": 512}, "projection_class_embeddings_input_dim = 2816"),
    (UNET, {"addition_time_embed_dim": 128}, "projection_class_embeddings_input_dim = 2816"),
]


@pytest.mark.parametrize(("file", "changes", "named"), MISFITS)
def test_sizes_that_do_not_fit(
    folder: Path, file: str, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=f"{UNET}: {named} does not fit; expected"):
        changed(folder, file, **changes)


@pytest.mark.parametrize("published", [SD_1, SD_2, SDXL_BASE])
def test_an_inpainting_model(tmp_path: Path, published: Files) -> None:
    write(tmp_path, published)
    change_json(tmp_path / UNET, in_channels=9, out_channels=4)
    xl = "XL" if published is SDXL_BASE else ""
    change_json(tmp_path / INDEX, _class_name=f"StableDiffusion{xl}InpaintPipeline")
    config = read_config(tmp_path)
    assert config.takes_mask
    assert (config.networks["unet"].in_channels, config.networks["unet"].out_channels) == (9, 4)
    assert config.architecture.latents_shape(512, 512)[2] == 4
    change_json(tmp_path / VAE, latent_channels=8)
    with pytest.raises(CheckpointError, match=r"in_channels = 9 does not fit; expected 17, 2 \* 8"):
        read_config(tmp_path)


def test_an_inpainting_pipeline_whose_unet_takes_no_mask(folder: Path) -> None:
    config = changed(
        folder,
        INDEX,
        _class_name="StableDiffusionXLInpaintPipeline",
        requires_aesthetics_score=False,
    )
    assert not config.takes_mask


def test_lists_of_depths_need_their_reverse(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="reverse_transformer_layers_per_block = None"):
        changed(folder, UNET, transformer_layers_per_block=[1, [2, 3], [4, 5]])


def test_odd_embedding_sizes(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="addition_time_embed_dim = 255"):
        changed(
            folder,
            UNET,
            addition_time_embed_dim=255,
            projection_class_embeddings_input_dim=1280 + 6 * 255,
        )


@pytest.mark.parametrize("file", SDXL_BASE)
def test_a_missing_file(folder: Path, file: str) -> None:
    (folder / file).unlink()
    with pytest.raises(CheckpointError) as caught:
        read_config(folder)
    assert str(folder / file) in str(caught.value)
    assert "missing" in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"in_channels": }',
        b"\xff\xfe\x00",
        b"\x80abc",
        b"[" * 100_000,
        b'{"in_channels": ' + b"1" * 5000 + b"}",
    ],
    ids=["empty", "cut off", "no value", "utf-16", "binary", "deep", "huge number"],
)
def test_a_file_that_is_not_json(folder: Path, content: bytes) -> None:
    (folder / UNET).write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{UNET}: not a readable JSON file: ."):
        read_config(folder)


@pytest.mark.parametrize("content", ["[]", "null", "1", '"text"'])
def test_a_file_that_holds_no_object(folder: Path, content: str) -> None:
    (folder / UNET).write_text(content)
    with pytest.raises(CheckpointError, match=f"{UNET}: expected a JSON object"):
        read_config(folder)


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    folder = copy_checkpoint(tmp_path)
    (folder / UNET).unlink()
    (folder / UNET).mkdir()
    with pytest.raises(CheckpointError, match=f"{UNET}: not a readable JSON file: .*directory"):
        read_config(folder)


def test_text_encoders_whose_states_lie_side_by_side_have_one_length(folder: Path) -> None:
    change_json(folder / "tokenizer_2/tokenizer_config.json", model_max_length=64)
    with pytest.raises(CheckpointError, match=r"model_max_length \(77, 64\); expected one length"):
        read_config(folder)


def test_a_tiny_vae_may_be_used_beside_a_checkpoint() -> None:
    config = FamilyReader(tiny_vae=fetch_tiny_vae(GOLDEN / "tiny_vae")).read(SMALLEST)
    networks = trace_networks(config, np.dtype(np.float32))
    assert isinstance(networks["tiny_vae"], TinyVAE)
    plain = read_config(SMALLEST)
    assert plain.networks.keys() == config.networks.keys() - {"tiny_vae"}
    assert plain.architecture.tiny_decode is None
    assert config.architecture.tiny_decode is not None


def test_a_model_of_flow_matching(folder: Path) -> None:
    shifted = {"_class_name": FLOW_CLASS.name, "num_train_timesteps": 1000, "shift": 3.0}
    (folder / SCHEDULER).write_text(json.dumps(shifted))
    change_json(folder / INDEX, scheduler=["diffusers", FLOW_CLASS.name])
    schedulers = read_config(folder).schedulers
    assert schedulers.own.training == Flow(3.0)
    assert [*schedulers.configs] == ["euler"]
    assert schedulers.refused.keys() == SCHEDULERS.keys() - {"euler"}
    assert schedulers.sigma_schedules == ("default",)
    with pytest.raises(InputError, match=r"'ddim' does not fit this model: .* by 'euler' alone"):
        schedulers.choose("ddim")
    with pytest.raises(InputError, match="sigma_schedule cannot be used"):
        schedulers.choose("euler", sigma_schedule="karras")
    with pytest.raises(InputError, match="timesteps cannot be used"):
        schedulers.choose("euler", timesteps=(900, 10))
    change_json(folder / SCHEDULER, use_dynamic_shifting=True)
    with pytest.raises(CheckpointError, match="use_dynamic_shifting = True"):
        read_config(folder)
