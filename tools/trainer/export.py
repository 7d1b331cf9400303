"""The export of trained networks to a checkpoint in diffusers' layout."""

import json
from pathlib import Path

import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from pipeline.checkpoints.weights import to_checkpoint

MAX_SHARD_BYTES = 9_000_000
STEMS = {
    "text_encoder": "model",
    "text_encoder_2": "model",
    "unet": "diffusion_pytorch_model",
    "vae": "diffusion_pytorch_model",
}


def write_weights(folder: Path, component: str, module: nnx.Module) -> None:
    """Replace a component's weights, in float16: one file, or shards with their index."""
    target = folder / component
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob("*.safetensors*"):
        old.unlink()
    half = {name: value.astype(np.float16) for name, value in to_checkpoint(module).items()}
    shards = _split(half)
    stem = STEMS.get(component, "diffusion_pytorch_model")
    if len(shards) == 1:
        _save(half, target / f"{stem}.safetensors")
        return
    weight_map = {}
    for i, shard in enumerate(shards, 1):
        name = f"{stem}-{i:05}-of-{len(shards):05}.safetensors"
        _save(shard, target / name)
        weight_map |= dict.fromkeys(shard, name)
    total = sum(value.nbytes for value in half.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (target / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def _save(tensors: dict[str, np.ndarray], file: Path) -> None:
    save_file(tensors, file, metadata={"format": "pt"})
    file.chmod(0o644)  # safetensors writes files that only their owner can read


def _split(tensors: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    shards: list[dict[str, np.ndarray]] = [{}]
    for name, value in tensors.items():
        size = sum(other.nbytes for other in shards[-1].values())
        if size + value.nbytes > MAX_SHARD_BYTES:
            shards.append({})
        shards[-1][name] = value
    return shards
