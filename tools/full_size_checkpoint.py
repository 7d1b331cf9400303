"""Full-size checkpoints with random weights: SDXL, its distilled forms, Stable Diffusion 1.5, 2.1.

    .venv-reference/bin/python -m tools.full_size_checkpoint runs/full_size --family sdxl

The configurations are exactly those of stabilityai/stable-diffusion-xl-base-1.0,
stable-diffusion-v1-5/stable-diffusion-v1-5 and stabilityai/stable-diffusion-2-1 on
https://huggingface.co. SSD-1B, Segmind-Vega and KOALA-700M are SDXL with fewer layers in the UNet;
how many is also in ComfyUI's `comfy/model_detection.py`. Weights are float16 on disk (SDXL 6.9 GB,
SSD-1B 4.5, the others 2.6 to 3.3), with the file names of the published `fp16` variants. The
tokenizers know few words: a comparison of networks does not need the real vocabulary.
"""

import argparse
import gc
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    EulerDiscreteScheduler,
    PNDMScheduler,
    SchedulerMixin,
    UNet2DConditionModel,
)
from diffusers.pipelines.stable_diffusion import StableDiffusionSafetyChecker
from safetensors.numpy import save_file
from transformers import (
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
)

from tools.tiny_checkpoints import SDXL_SCHEDULE, draw, unet, vae
from tools.vocabulary import write_tokenizer

SEED = 20


@dataclass(frozen=True)
class FullSize:
    """A published checkpoint: its configurations and its number of parameters."""

    title: str
    parameters: int
    text_encoder: CLIPTextConfig
    text_encoder_2: CLIPTextConfig | None
    unet: dict[str, Any]
    vae: dict[str, Any]
    scheduler: SchedulerMixin
    safety_checker: CLIPConfig | None = None


def _text(width: int, layers: int, heads: int, act: str, projection_dim: int) -> CLIPTextConfig:
    return CLIPTextConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        hidden_act=act,
        projection_dim=projection_dim,
        eos_token_id=2,
    )


def _unet(width: int, **options: Any) -> dict[str, Any]:
    """Return the arguments of Stable Diffusion 1's or 2's UNet."""
    return unet(
        (320, 640, 1280, 1280),
        "xxx-",
        addition_embed_type=None,
        cross_attention_dim=width,
        **options,
    )


def _vae(side: int, scaling_factor: float) -> dict[str, Any]:
    return vae(
        (128, 256, 512, 512), layers_per_block=2, sample_size=side, scaling_factor=scaling_factor
    )


def _sdxl(title: str, parameters: int, **unet_options: Any) -> FullSize:
    return FullSize(
        title=title,
        parameters=parameters,
        text_encoder=_text(768, 12, 12, "quick_gelu", 768),
        text_encoder_2=_text(1280, 32, 20, "gelu", 1280),
        unet=unet(
            (320, 640, 1280),
            "-xx",
            sample_size=128,
            attention_head_dim=[5, 10, 20],
            cross_attention_dim=2048,
            addition_time_embed_dim=256,
            projection_class_embeddings_input_dim=2816,
            **unet_options,
        ),
        vae=_vae(1024, 0.13025),
        scheduler=EulerDiscreteScheduler(
            **SDXL_SCHEDULE, timestep_spacing="leading", steps_offset=1
        ),
    )


FAMILIES = {
    "sdxl": _sdxl("SDXL base", 3_468_837_867, transformer_layers_per_block=[1, 2, 10]),
    "ssd_1b": _sdxl(
        "SSD-1B",
        2_232_708_587,
        mid_block_type="UNetMidBlock2D",
        transformer_layers_per_block=[[1, 1], [2, 2], [4, 4]],
        reverse_transformer_layers_per_block=[[4, 4, 10], [2, 1, 1], [1, 1, 1]],
    ),
    "vega": _sdxl(
        "Segmind-Vega",
        1_646_599_787,
        mid_block_type="UNetMidBlock2D",
        transformer_layers_per_block=[[1, 1], [1, 1], [2, 2]],
        reverse_transformer_layers_per_block=[[2, 2, 2], [1, 1, 1], [1, 1, 1]],
    ),
    "koala_700m": _sdxl(
        "KOALA-700M",
        1_684_196_907,
        layers_per_block=1,
        mid_block_type=None,
        transformer_layers_per_block=[1, 2, 5],
    ),
    "sd_1": FullSize(
        title="Stable Diffusion 1.5",
        parameters=1_370_216_895,
        text_encoder=_text(768, 12, 12, "quick_gelu", 768),
        text_encoder_2=None,
        unet=_unet(768, sample_size=64, attention_head_dim=8, use_linear_projection=False),
        vae=_vae(512, 0.18215),
        scheduler=PNDMScheduler(**SDXL_SCHEDULE, skip_prk_steps=True, steps_offset=1),
        safety_checker=CLIPConfig(
            text_config={"hidden_size": 768, "num_attention_heads": 12},  # unused: no text encoder
            vision_config={
                "hidden_size": 1024,
                "intermediate_size": 4096,
                "num_attention_heads": 16,
                "num_hidden_layers": 24,
                "patch_size": 14,
            },
            projection_dim=768,
        ),
    ),
    "sd_2": FullSize(
        title="Stable Diffusion 2.1",
        parameters=1_289_952_427,
        text_encoder=_text(1024, 23, 16, "gelu", 512),
        text_encoder_2=None,
        unet=_unet(1024, sample_size=96, attention_head_dim=[5, 10, 20, 20], upcast_attention=True),
        vae=_vae(768, 0.18215),
        scheduler=DDIMScheduler(
            **SDXL_SCHEDULE,
            prediction_type="v_prediction",
            set_alpha_to_one=False,
            clip_sample=False,
            steps_offset=1,
        ),
    ),
}
SAFETY_CHECKER = ["stable_diffusion", "StableDiffusionSafetyChecker"]


def write_checkpoint(family: FullSize, folder: Path, seed: int = SEED) -> int:
    """Write every component, one at a time; return the number of parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizers = {"tokenizer": "<|endoftext|>"}
    if family.text_encoder_2 is not None:
        tokenizers["tokenizer_2"] = "!"
    index = _model_index(family)
    (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")
    family.scheduler.save_pretrained(folder / "scheduler")
    if family.safety_checker is not None:
        CLIPImageProcessorPil().save_pretrained(folder / "feature_extractor")
    for name, pad_token in tokenizers.items():
        write_tokenizer(folder / name, ["a", "red", "star"], pad_token)
    count = 0
    for number, (name, network) in enumerate(_networks(family).items()):
        if isinstance(network, UNet2DConditionModel | AutoencoderKL):
            network.save_config(folder / name)
            stem, prefix = "diffusion_pytorch_model", ""
        else:
            network.config.save_pretrained(folder / name)
            stem, prefix = "model", "text_model." if name.startswith("text_encoder") else ""
        tensors = _draw_all(network, np.random.default_rng([seed, number]))
        prefixed_tensors = {_prefixed(key, prefix): tensor for key, tensor in tensors.items()}
        file = folder / name / f"{stem}.fp16.safetensors"
        save_file(prefixed_tensors, file, metadata={"format": "pt"})
        count += sum(tensor.size for tensor in tensors.values())
        del tensors, prefixed_tensors
        gc.collect()
    return count


def _model_index(family: FullSize) -> dict[str, Any]:
    index = {
        "_class_name": "StableDiffusionPipeline",
        "scheduler": ["diffusers", type(family.scheduler).__name__],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    if family.text_encoder_2 is not None:
        index["_class_name"] = "StableDiffusionXLPipeline"
        index["force_zeros_for_empty_prompt"] = True
        index["text_encoder_2"] = ["transformers", "CLIPTextModelWithProjection"]
        index["tokenizer_2"] = ["transformers", "CLIPTokenizer"]
    if family.safety_checker is not None:
        index["safety_checker"] = SAFETY_CHECKER
    return index


def _networks(family: FullSize) -> dict[str, torch.nn.Module]:
    """Return the networks by name, as meta tensors, which take no memory."""
    with torch.device("meta"):
        networks: dict[str, torch.nn.Module] = {"text_encoder": CLIPTextModel(family.text_encoder)}
        if family.text_encoder_2 is not None:
            networks["text_encoder_2"] = CLIPTextModelWithProjection(family.text_encoder_2)
        networks["unet"] = UNet2DConditionModel(**family.unet)
        networks["vae"] = AutoencoderKL(**family.vae)
        if family.safety_checker is not None:
            networks["safety_checker"] = StableDiffusionSafetyChecker(family.safety_checker)
    return networks


def _draw_all(network: torch.nn.Module, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        name: draw(name, tuple(parameter.shape), rng)
        for name, parameter in network.named_parameters()
    }


def _prefixed(name: str, prefix: str) -> str:
    return name if name.startswith((prefix, "text_projection.")) else prefix + name


def main() -> None:
    """Write the checkpoint and check its number of parameters."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--family", choices=FAMILIES, default="sdxl")
    options = parser.parse_args()
    family = FAMILIES[options.family]
    count = write_checkpoint(family, options.folder)
    print(f"{count:,} parameters")
    if count != family.parameters:
        raise SystemExit(f"{family.title} has {family.parameters:,}")


if __name__ == "__main__":
    main()
