"""The configuration of the miniature that is trained: SDXL's classes and keys, far smaller."""

import json
from pathlib import Path

TEXT_WIDTHS = (96, 128)
PROJECTION = 128
LATENT_CHANNELS = 4
LATENT_SIZE = 32


def _text_encoder(width: int, vocab_size: int, name: str, activation: str) -> dict[str, object]:
    return {
        "_name_or_path": "",
        "architectures": [name],
        "model_type": "clip_text_model",
        "vocab_size": vocab_size,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "projection_dim": PROJECTION,
        "num_hidden_layers": 4,
        "num_attention_heads": width // 32,
        "max_position_embeddings": 77,
        "hidden_act": activation,
        "layer_norm_eps": 1e-5,
        "attention_dropout": 0.0,
        # The files are float16, to be small; without this key transformers would compute in
        # float16.
        "dtype": "float32",
        "bos_token_id": vocab_size - 2,
        "eos_token_id": vocab_size - 1,
        "pad_token_id": vocab_size - 1 if name == "CLIPTextModel" else 0,
    }


UNET: dict[str, object] = {
    "_class_name": "UNet2DConditionModel",
    "act_fn": "silu",
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 32,
    "attention_head_dim": [1, 2, 4, 6],
    "block_out_channels": [32, 64, 128, 240],
    "cross_attention_dim": sum(TEXT_WIDTHS),
    "down_block_types": ["DownBlock2D"] * 2 + ["CrossAttnDownBlock2D"] * 2,
    "flip_sin_to_cos": True,
    "freq_shift": 0,
    "in_channels": LATENT_CHANNELS,
    "layers_per_block": 1,
    "mid_block_type": "UNetMidBlock2DCrossAttn",
    "norm_eps": 1e-05,
    "norm_num_groups": 16,
    "out_channels": LATENT_CHANNELS,
    "projection_class_embeddings_input_dim": PROJECTION + 6 * 32,
    "resnet_time_scale_shift": "scale_shift",
    "sample_size": LATENT_SIZE,
    "time_embedding_dim": 384,
    "transformer_layers_per_block": [1, 1, 1, 1],
    "up_block_types": ["CrossAttnUpBlock2D"] * 2 + ["UpBlock2D"] * 2,
    "use_linear_projection": True,
}

VAE: dict[str, object] = {
    "_class_name": "AutoencoderKL",
    "act_fn": "silu",
    "block_out_channels": [8, 24, 48, 96],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "force_upcast": False,
    "in_channels": 3,
    "latent_channels": LATENT_CHANNELS,
    "layers_per_block": 1,
    # Attention depends on the size of the picture. Without it, training on crops fits whole
    # pictures too.
    "mid_block_add_attention": False,
    "norm_num_groups": 4,
    "out_channels": 3,
    "sample_size": 256,
    "scaling_factor": 0.13025,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
}

SCHEDULER: dict[str, object] = {
    "_class_name": "EulerDiscreteScheduler",
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "clip_sample": False,
    "interpolation_type": "linear",
    "num_train_timesteps": 1000,
    "prediction_type": "v_prediction",
    "sample_max_value": 1.0,
    "set_alpha_to_one": False,
    "skip_prk_steps": True,
    "steps_offset": 1,
    "timestep_spacing": "trailing",
    "trained_betas": None,
    "use_karras_sigmas": False,
}

MODEL_INDEX: dict[str, object] = {
    "_class_name": "StableDiffusionXLPipeline",
    "force_zeros_for_empty_prompt": True,
    "scheduler": ["diffusers", "EulerDiscreteScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "tokenizer_2": ["transformers", "CLIPTokenizer"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}


def write_configs(folder: Path, vocab_size: int) -> None:
    """Write every JSON file of the checkpoint except the tokenizers'."""
    first = _text_encoder(TEXT_WIDTHS[0], vocab_size, "CLIPTextModel", "quick_gelu")
    second = _text_encoder(TEXT_WIDTHS[1], vocab_size, "CLIPTextModelWithProjection", "gelu")
    for name, values in {
        "model_index.json": MODEL_INDEX,
        "scheduler/scheduler_config.json": SCHEDULER,
        "text_encoder/config.json": first,
        "text_encoder_2/config.json": second,
        "unet/config.json": UNET,
        "vae/config.json": VAE,
    }.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values, indent=2) + "\n")
