"""A checkpoint of SDXL base's exact configuration (3.469 B parameters) with random weights.

    .venv-reference/bin/python -m tools.full_size_checkpoint runs/full_size

The configurations are those of https://huggingface.co/stabilityai/stable-diffusion-xl-base-1.0;
float16 on disk (6.9 GB), under the names that the published `fp16` variant has. The tokenizers
know few words: the real vocabulary is not needed to compare networks.
"""

import argparse
import gc
import json
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, EulerDiscreteScheduler, UNet2DConditionModel
from safetensors.numpy import save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from tools.miniature.vocabulary import write_tokenizer
from tools.tiny_checkpoints import SDXL_SCHEDULE, draw, unet, vae

SEED = 20
PARAMETERS = 3_468_837_867
TEXT_ENCODER = CLIPTextConfig(
    hidden_size=768,
    intermediate_size=3072,
    num_hidden_layers=12,
    num_attention_heads=12,
    hidden_act="quick_gelu",
    projection_dim=768,
    eos_token_id=2,
)
TEXT_ENCODER_2 = CLIPTextConfig(
    hidden_size=1280,
    intermediate_size=5120,
    num_hidden_layers=32,
    num_attention_heads=20,
    hidden_act="gelu",
    projection_dim=1280,
    eos_token_id=2,
)
UNET = unet(
    (320, 640, 1280),
    "-xx",
    sample_size=128,
    attention_head_dim=[5, 10, 20],
    transformer_layers_per_block=[1, 2, 10],
    cross_attention_dim=2048,
    addition_time_embed_dim=256,
    projection_class_embeddings_input_dim=2816,
)
VAE = vae((128, 256, 512, 512), layers_per_block=2, sample_size=1024, scaling_factor=0.13025)
SCHEDULER = {**SDXL_SCHEDULE, "timestep_spacing": "leading", "steps_offset": 1}
MODEL_INDEX = {
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


def write_checkpoint(folder: Path) -> int:
    """Writes every component, one at a time, and returns the number of parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model_index.json").write_text(json.dumps(MODEL_INDEX, indent=2) + "\n")
    EulerDiscreteScheduler(**SCHEDULER).save_pretrained(folder / "scheduler")
    for name, pad_token in (("tokenizer", "<|endoftext|>"), ("tokenizer_2", "!")):
        write_tokenizer(folder / name, ["a", "red", "star"], pad_token)
    count = 0
    for number, (name, network) in enumerate(_networks().items()):
        if isinstance(network, CLIPTextModel | CLIPTextModelWithProjection):
            network.config.save_pretrained(folder / name)
            stem, prefix = "model", "text_model."
        else:
            network.save_config(folder / name)
            stem, prefix = "diffusion_pytorch_model", ""
        tensors = _draw_all(network, np.random.default_rng([SEED, number]))
        named = {_prefixed(key, prefix): tensor for key, tensor in tensors.items()}
        file = folder / name / f"{stem}.fp16.safetensors"
        save_file(named, file, metadata={"format": "pt"})
        count += sum(tensor.size for tensor in tensors.values())
        del tensors, named
        gc.collect()
    return count


def _networks() -> dict[str, torch.nn.Module]:
    """The networks' names and shapes; a meta tensor takes no memory."""
    with torch.device("meta"):
        return {
            "text_encoder": CLIPTextModel(TEXT_ENCODER),
            "text_encoder_2": CLIPTextModelWithProjection(TEXT_ENCODER_2),
            "unet": UNet2DConditionModel(**UNET),
            "vae": AutoencoderKL(**VAE),
        }


def _draw_all(network: torch.nn.Module, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        name: draw(name, tuple(parameter.shape), rng)
        for name, parameter in network.named_parameters()
    }


def _prefixed(name: str, prefix: str) -> str:
    return name if name.startswith((prefix, "text_projection.")) else prefix + name


def main() -> None:
    """Writes the checkpoint and checks its size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    count = write_checkpoint(parser.parse_args().folder)
    print(f"{count:,} parameters")
    if count != PARAMETERS:
        raise SystemExit(f"SDXL base has {PARAMETERS:,}")


if __name__ == "__main__":
    main()
