"""Tiny ControlNets with random weights, in every layout in which they are published."""

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from pipeline.checkpoints.original_names import original_unet_names
from pipeline.checkpoints.weights import shape_rngs
from pipeline.models.controlnet import ControlNet
from pipeline.models.controlnet_config import ControlNetConfig, read_controlnet
from tests.single_files import tensor_shapes

UNION = {"_class_name": "ControlNetUnionModel", "num_trans_head": 4}
# Changes of the configuration by the kind of ControlNet; lists have a value for every block.
KINDS: Mapping[str, Callable[[int], dict[str, Any]]] = {
    "full": lambda _: {},
    # The smaller ones of SDXL have transformers without layers, "small" only in the middle block.
    "mid": lambda blocks: {"transformer_layers_per_block": [0] * (blocks - 1) + [1]},
    "small": lambda blocks: {
        "down_block_types": ["DownBlock2D"] * blocks,
        "transformer_layers_per_block": 0,
    },
    "resnets": lambda blocks: {
        "down_block_types": ["DownBlock2D"] * blocks,
        "mid_block_type": "UNetMidBlock2D",
    },
    "bgr": lambda _: {"controlnet_conditioning_channel_order": "bgr"},
    "pool": lambda _: {"global_pool_conditions": True},
    "union": lambda _: UNION,
    "promax": lambda _: {**UNION, "num_control_type": 8},
}
# Keys that UNets have and ControlNets do not.
ONLY_UNET = (
    *("sample_size", "out_channels", "up_block_types", "center_input_sample", "dropout"),
    *("time_cond_proj_dim", "mid_block_only_cross_attention", "dual_cross_attention"),
    *("reverse_transformer_layers_per_block", "time_embedding_type", "time_embedding_dim"),
    *("time_embedding_act_fn", "timestep_post_act", "conv_in_kernel", "conv_out_kernel"),
    *("class_embeddings_concat", "attention_type", "resnet_skip_time_act"),
    *("resnet_out_scale_factor", "cross_attention_norm"),
)


def controlnet_json(checkpoint: Path, kind: str) -> dict[str, Any]:
    """Return the `config.json` of a ControlNet that fits a checkpoint in diffusers' layout."""
    unet, vae = (
        json.loads((checkpoint / name / "config.json").read_text()) for name in ("unet", "vae")
    )
    levels = len(vae["block_out_channels"])
    width = unet["block_out_channels"][0]
    changes = KINDS[kind](len(unet["block_out_channels"]))
    values = {key: value for key, value in unet.items() if key not in ONLY_UNET}
    values |= {
        "_class_name": "ControlNetModel",
        "in_channels": vae["latent_channels"],
        "conditioning_embedding_out_channels": [3 + 2 * level for level in range(levels)],
        **changes,
    }
    if values["_class_name"] == UNION["_class_name"]:
        values |= {"num_trans_channel": width, "num_proj_channel": width}
    return values


def save_controlnet(
    folder: Path, checkpoint: Path, kind: str = "full", seed: int = 0, **changes: Any
) -> Path:
    """Write a ControlNet with random float16 weights in diffusers' layout.

    Args:
        folder: the folder to make.
        checkpoint: the checkpoint in diffusers' layout that it fits.
        kind: a key of `KINDS`.
        seed: what the weights are drawn from.
        changes: further keys of the configuration.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.json"
    config.write_text(json.dumps(controlnet_json(checkpoint, kind) | changes))
    save_file(
        random_tensors(read_controlnet(config), seed),
        folder / "diffusion_pytorch_model.safetensors",
    )
    return folder


def save_single_controlnet(
    file: Path,
    checkpoint: Path,
    kind: str = "full",
    seed: int = 0,
    *,
    prefix: str | None = "control_model.",
) -> Path:
    """Write the weights that `save_controlnet` writes as one file.

    With a `prefix` the names are original ones behind it; with None they are diffusers'.
    """
    config = file.parent / f"{file.stem}.json"
    config.write_text(json.dumps(controlnet_json(checkpoint, kind)))
    tensors = random_tensors(read_controlnet(config), seed)
    config.unlink()
    names = {name: name for name in tensors} if prefix is None else original_names(tensors)
    save_file({f"{prefix or ''}{names[name]}": array for name, array in tensors.items()}, file)
    return file


def random_tensors(config: ControlNetConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random weights with which every layer's output has about the size of its input."""
    make = partial(ControlNet, config, dtype=jnp.float32, rngs=shape_rngs())
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in tensor_shapes(nnx.eval_shape(make)).items():
        fan_in = np.prod(shape[1:]) if len(shape) > 1 else 100
        is_norm = len(shape) == 1 and name.endswith("weight")
        values = is_norm + rng.standard_normal(shape, np.float32) / np.sqrt(fan_in)
        tensors[name] = values.astype(np.float16)
    return tensors


def original_names(tensors: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return the names of a ControlNet's tensors in the original layout, by diffusers' names."""
    names = original_unet_names(tensors)
    blocks = sum(bool(re.match(r"controlnet_cond_embedding\.blocks\.\d+\.bias", x)) for x in names)
    hint = "controlnet_cond_embedding."
    for name, original in names.items():
        if match := re.match(r"controlnet_down_blocks\.(\d+)\.(\w+)", name):
            original = f"zero_convs.{match[1]}.0.{match[2]}"
        elif name.startswith("controlnet_mid_block."):
            original = name.replace("controlnet_mid_block", "middle_block_out.0")
        elif match := re.match(rf"{hint}blocks\.(\d+)\.(\w+)", name):
            original = f"input_hint_block.{2 * int(match[1]) + 2}.{match[2]}"
        elif name.startswith(hint):
            number = 0 if "conv_in" in name else 2 * blocks + 2
            original = f"input_hint_block.{number}.{name.rpartition('.')[2]}"
        names[name] = original
    return names
