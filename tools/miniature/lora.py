"""Low-rank changes to the miniature's UNet, and their files under the names of kohya or PEFT.

A LoRA is a dict: for each changed tensor, under its name in the checkpoint, the factors `down`
`[..., in, rank]` and `up` `[rank, out]`, whose product has the layout of the module's kernel.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import save_file

from pipeline.checkpoints.weights import checkpoint_names
from pipeline.models.unet import UNet
from tools.miniature.drawing import Decoration
from tools.miniature.work import Tree

RANK = 4
# Parts of the names of tensors that are left alone: what is done to the noise level, the pooled
# prompt and the latents themselves has little to do with style.
LEFT_OUT = ("time_emb", "add_embedding", "conv_in", "conv_out")
PREFIX = "lora_unet_"

Lora = dict[str, dict[str, jax.Array]]


@dataclass(frozen=True)
class Style:
    """The style that a LoRA teaches.

    Attributes:
        title: its name for people.
        description: one sentence about its pictures.
        trigger: the word that some of the training's captions have.
        decoration: what its drawings have beside what their captions state.
    """

    title: str
    description: str
    trigger: str
    decoration: Decoration


STYLES = {
    "dusk": Style(
        "Dusk",
        "Backgrounds are skies at dusk: dark above, with the last light below.",
        "dusk",
        Decoration(dusk=0.8),
    ),
    "glow": Style(
        "Glow",
        "Things shine: light of their colour surrounds them.",
        "glow",
        Decoration(halo=0.04),
    ),
}


def new_lora(unet: UNet, seed: int, rank: int = RANK, left_out: Sequence[str] = LEFT_OUT) -> Lora:
    """Return a LoRA that changes nothing yet: `down` is random, `up` is zero.

    Kernels whose names have a part of `left_out` get no factors.
    """
    lora = {}
    keys = iter(jax.random.split(jax.random.key(seed), 1000))
    for path, param in nnx.to_flat_state(nnx.state(unet, nnx.Param)):
        names = checkpoint_names(path)
        if path[-1] != "kernel" or any(part in names[0] for part in left_out):
            continue
        *inputs, outputs = param.shape
        bound = 1 / np.sqrt(np.prod(inputs))  # as sd-scripts draws them
        for name in names:
            down = jax.random.uniform(next(keys), (*inputs, rank), minval=-bound, maxval=bound)
            lora[name] = {"down": down, "up": jnp.zeros((rank, outputs // len(names)))}
    return lora


def merge(params: Tree, lora: Lora, weight: float = 1.0) -> Tree:
    """Return a UNet's parameters with a LoRA's changes, `weight` times. May be traced."""

    def changed(path: tuple[Any, ...], value: jax.Array) -> jax.Array:
        names = checkpoint_names(tuple(part.key for part in path))
        if names[0] not in lora:
            return value
        deltas = [lora[name]["down"] @ lora[name]["up"] for name in names]
        return value + weight * jnp.concatenate(deltas, axis=-1)

    return jax.tree_util.tree_map_with_path(changed, params)


def kohya_name(name: str) -> str:
    """Return kohya's name of the module with a tensor of the UNet."""
    return PREFIX + name.removesuffix(".weight").replace(".", "_")


def peft_name(name: str) -> str:
    """Return PEFT's name of the module with a tensor of the UNet, as diffusers writes it."""
    return f"unet.{name.removesuffix('.weight')}"


@dataclass(frozen=True)
class Names:
    """Names of a LoRA's tensors: of modules, and of their parts.

    `has_alpha`: whether modules have a part `alpha`.
    """

    module: Callable[[str], str]
    down: str
    up: str
    has_alpha: bool


KOHYA = Names(kohya_name, "lora_down", "lora_up", has_alpha=True)
# torch's diffusers does not know kohya's names of the embeddings of time and size.
PEFT = Names(peft_name, "lora_A", "lora_B", has_alpha=False)


def save_lora(lora: Lora, file: Path, metadata: Mapping[str, str], layout: Names = KOHYA) -> None:
    """Write a LoRA in float16 under kohya's or other names, with each alpha equal to its rank."""
    tensors = {}
    for name, factors in sorted(lora.items()):
        key = layout.module(name)
        down, up = (np.asarray(factors[part], np.float16) for part in ("down", "up"))
        if down.ndim == 4:  # H W I R -> R I H W
            down, up = down.transpose(3, 2, 0, 1), up.T[:, :, None, None]
        else:
            down, up = down.T, up.T
        tensors[f"{key}.{layout.down}.weight"] = np.ascontiguousarray(down)
        tensors[f"{key}.{layout.up}.weight"] = np.ascontiguousarray(up)
        if layout.has_alpha:  # without one, it is the rank
            tensors[f"{key}.alpha"] = np.array(down.shape[0], np.float16)
    save_file(tensors, file, metadata=dict(metadata))
    file.chmod(0o644)  # safetensors writes files that only their owner can read


def load_lora(file: Path, unet: UNet) -> Lora:
    """Read what `save_lora` wrote under kohya's names."""
    lora = {}
    with safe_open(file, "numpy") as tensors:
        for path, _ in nnx.to_flat_state(nnx.state(unet, nnx.Param)):
            for name in checkpoint_names(path):
                key = kohya_name(name)
                if f"{key}.alpha" not in tensors.keys():  # noqa: SIM118, it is no dict
                    continue
                down = np.float32(tensors.get_tensor(f"{key}.lora_down.weight"))
                up = np.float32(tensors.get_tensor(f"{key}.lora_up.weight"))
                down = down.transpose(2, 3, 1, 0) if down.ndim == 4 else down.T
                lora[name] = {"down": jnp.asarray(down), "up": jnp.asarray(up.squeeze().T)}
    return lora


def describe(style: Style, captions: int, steps: int) -> dict[str, str]:
    """Return the metadata of a style's file."""
    name = style.trigger
    return file_metadata(name, style.title, style.description, RANK, steps) | {
        "modelspec.trigger_phrase": name,
        "ss_tag_frequency": json.dumps({name: {name: captions}}),
    }


def file_metadata(name: str, title: str, description: str, rank: int, steps: int) -> dict[str, str]:
    """Return the metadata of a LoRA's file, as kohya's trainer and modelspec write them."""
    return {
        "modelspec.sai_model_spec": "1.0.0",
        "modelspec.architecture": "stable-diffusion-xl-v1-base/lora",
        "modelspec.title": title,
        "modelspec.description": description,
        "modelspec.license": "Apache-2.0",
        "modelspec.resolution": "256x256",
        "ss_base_model_version": "sdxl_base_v1-0",
        "ss_network_module": "networks.lora",
        "ss_network_dim": str(rank),
        "ss_network_alpha": str(rank),
        "ss_network_args": json.dumps({"conv_dim": str(rank), "conv_alpha": str(rank)}),
        "ss_output_name": name,
        "ss_sd_model_name": "miniature",
        "ss_steps": str(steps),
    }
