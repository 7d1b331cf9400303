"""Full-size checkpoints with random weights: SDXL, its distilled forms, Stable Diffusion 1, 2.1.

    .venv-reference/bin/python -m tests.reference.full_size_checkpoint runs/full_size --family sdxl

The configurations are those of `tools.published_configs`. SSD-1B, Segmind-Vega and KOALA-700M are
SDXL with fewer layers in the UNet; how many is also in ComfyUI's `comfy/model_detection.py`.
Weights are float16 on disk (SDXL 6.9 GB, SSD-1B 4.5, the others 2.6 to 3.3), with the file names of
the published `fp16` variants. The tokenizers know few words: a comparison of networks does not need
the real vocabulary.
"""

import argparse
import gc
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL, ModelMixin, UNet2DConditionModel
from diffusers.pipelines.stable_diffusion import StableDiffusionSafetyChecker
from safetensors.numpy import save_file
from transformers import CLIPTextModel, CLIPTextModelWithProjection

from tests.reference.tiny_checkpoints import draw
from tools.published_configs import SD_1, SD_2, SDXL_BASE, Files, write
from tools.vocabulary import write_tokenizer

SEED = 20
NETWORKS = {
    "text_encoder": CLIPTextModel,
    "text_encoder_2": CLIPTextModelWithProjection,
    "unet": UNet2DConditionModel,
    "vae": AutoencoderKL,
    "safety_checker": StableDiffusionSafetyChecker,
}
PAD_TOKENS = {"tokenizer": "<|endoftext|>", "tokenizer_2": "!"}


def _distilled(**unet: Any) -> Files:
    return {**SDXL_BASE, "unet/config.json": SDXL_BASE["unet/config.json"] | unet}


# The configurations of each checkpoint, and its number of parameters.
FAMILIES = {
    "sdxl": (SDXL_BASE, 3_468_837_867),
    "ssd_1b": (
        _distilled(
            mid_block_type="UNetMidBlock2D",
            transformer_layers_per_block=[[1, 1], [2, 2], [4, 4]],
            reverse_transformer_layers_per_block=[[4, 4, 10], [2, 1, 1], [1, 1, 1]],
        ),
        2_232_708_587,
    ),
    "vega": (
        _distilled(
            mid_block_type="UNetMidBlock2D",
            transformer_layers_per_block=[[1, 1], [1, 1], [2, 2]],
            reverse_transformer_layers_per_block=[[2, 2, 2], [1, 1, 1], [1, 1, 1]],
        ),
        1_646_599_787,
    ),
    "koala_700m": (
        _distilled(layers_per_block=1, mid_block_type=None, transformer_layers_per_block=[1, 2, 5]),
        1_684_196_907,
    ),
    "sd_1": (SD_1, 1_370_216_895),
    "sd_2": (SD_2, 1_289_952_427),
}


def write_checkpoint(files: Files, folder: Path, seed: int = SEED) -> int:
    """Write every component, one at a time; return the number of parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, files)
    for name, pad_token in PAD_TOKENS.items():
        if f"{name}/tokenizer_config.json" in files:
            write_tokenizer(folder / name, ["a", "red", "star"], pad_token)
    count = 0
    names = [name for name in NETWORKS if f"{name}/config.json" in files]
    for number, name in enumerate(names):
        network = make_network(name, files[f"{name}/config.json"])
        is_diffusers = isinstance(network, ModelMixin)
        stem = "diffusion_pytorch_model" if is_diffusers else "model"
        prefix = "text_model." if name.startswith("text_encoder") else ""
        rng = np.random.default_rng([seed, number])
        tensors = {
            _prefixed(key, prefix): draw(key, tuple(parameter.shape), rng)
            for key, parameter in network.named_parameters()
        }
        file = folder / name / f"{stem}.fp16.safetensors"
        save_file(tensors, file, metadata={"format": "pt"})
        count += sum(tensor.size for tensor in tensors.values())
        del tensors
        gc.collect()
    return count


def make_network(name: str, config: dict[str, Any]) -> torch.nn.Module:
    """Return a network of meta tensors, which take no memory."""
    kind = NETWORKS[name]
    with torch.device("meta"):
        if issubclass(kind, ModelMixin):
            return kind.from_config(config)
        return kind(kind.config_class.from_dict(config))


def _prefixed(name: str, prefix: str) -> str:
    return name if name.startswith((prefix, "text_projection.")) else prefix + name


def main() -> None:
    """Write the checkpoint and check its number of parameters."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--family", choices=FAMILIES, default="sdxl")
    options = parser.parse_args()
    files, expected = FAMILIES[options.family]
    count = write_checkpoint(files, options.folder)
    print(f"{count:,} parameters")
    if count != expected:
        raise SystemExit(f"{options.family} has {expected:,}")


if __name__ == "__main__":
    main()
