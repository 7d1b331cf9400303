"""Thin checkpoints of every kind of single file, in diffusers' layout and as one file.

The width by which Stable Diffusion 2 is told apart is that of published models, and so is the
vocabulary; the rest is as small as the format permits.
"""

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from pipeline.checkpoints.weights import checkpoint_names, checkpoint_shape
from pipeline.families import read_config
from pipeline.families.single_files import CONFIGS
from pipeline.runtime.loading import module_factories
from pipeline.text.tokenizer import completed
from tests.checkpoints import change_json
from tests.original_layout import export

CHANNELS = {"sd_1": [32, 64, 64, 64], "sd_2": [64, 64, 128, 128], "sdxl": [64, 64, 128]}
CHANNELS |= {"sd_2_base": CHANNELS["sd_2"], "sdxl_refiner": [64, 64, 128, 128]}
WIDTHS = {"sd_1": [64], "sd_2": [1024], "sd_2_base": [1024], "sdxl": [64, 128]}
WIDTHS["sdxl_refiner"] = [128]
SCALE = 0.05


def thin_folder(folder: Path, kind: str, **unet: Any) -> Path:
    """Write a checkpoint with random weights in diffusers' layout.

    Args:
        folder: the folder to make.
        kind: a folder of `CONFIGS`.
        unet: keys of the UNet's configuration.
    """
    shutil.copytree(CONFIGS / kind, folder)
    channels = CHANNELS[kind]
    heads = {} if kind == "sd_1" else {"attention_head_dim": [width // 64 for width in channels]}
    sizes = {"block_out_channels": channels, "sample_size": 8, **heads}
    widths = WIDTHS[kind]
    if (numbers := {"sdxl": 6, "sdxl_refiner": 5}.get(kind)) is not None:
        sizes["transformer_layers_per_block"] = [1, 1, 2, 1][: len(channels)]
        sizes["projection_class_embeddings_input_dim"] = widths[-1] + numbers * 256
    sizes |= {"cross_attention_dim": sum(widths), **unet}
    change_json(folder / "unet/config.json", **sizes)
    change_json(folder / "vae/config.json", block_out_channels=[32, 32, 64, 64], layers_per_block=1)
    for encoder, width in zip(sorted(folder.glob("text_encoder*")), widths, strict=True):
        change_json(
            encoder / "config.json",
            hidden_size=width,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=width // 64,
            projection_dim=width,
        )
    for tokenizer in folder.glob("tokenizer*"):
        with completed(tokenizer) as whole:
            shutil.copytree(whole, tokenizer, dirs_exist_ok=True)
        change_json(tokenizer / "tokenizer_config.json", vocabulary=...)
    write_weights(folder)
    return folder


def write_weights(folder: Path, seed: int = 0) -> None:
    """Write random float16 weights for all networks of a folder's configuration."""
    config = read_config(folder)
    rng = np.random.default_rng(seed)
    for name, make in module_factories(config).items():
        file = "model" if "encoder" in name else "diffusion_pytorch_model"
        shapes = tensor_shapes(nnx.eval_shape(partial(make, np.float32)))
        tensors = {
            tensor: (SCALE * rng.standard_normal(shape, np.float32)).astype(np.float16)
            for tensor, shape in shapes.items()
        }
        save_file(tensors, folder / name / f"{file}.safetensors")


def tensor_shapes(module: nnx.Module) -> Mapping[str, tuple[int, ...]]:
    """Return the shape of each of a module's tensors in a checkpoint, by its name there."""
    shapes = {}
    for path, param in nnx.to_flat_state(nnx.state(module)):
        names = checkpoint_names(path)
        share = (*param.shape[:-1], param.shape[-1] // len(names))
        shapes |= dict.fromkeys(names, checkpoint_shape(path, share))
    return shapes


def thin_file(folder: Path, file: Path, **options: Any) -> Path:
    """Write a folder's checkpoint as one file; the options are those of `export`."""
    export(folder, file, **options)
    return file
