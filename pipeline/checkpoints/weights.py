"""A checkpoint's tensors into NNX modules, strictly: every name and shape must match.

The only file that knows diffusers' and transformers' key names. `checkpoint_names` is the contract:
it gives every parameter the names its tensors have in a checkpoint of today; `modern_name` turns
the spellings that older files have into them.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import jax
import numpy as np
from flax import nnx

from pipeline.checkpoints.tensors import TensorFiles, open_tensors
from pipeline.errors import CheckpointError
from pipeline.kernels.matmul_conv import summed_taps

# Where a module here is called otherwise than in the checkpoint.
NAMES = (
    (r"\.to_out\.", ".to_out.0."),
    (r"\.ff\.proj_in\.", ".ff.net.0.proj."),
    (r"\.ff\.proj_out\.", ".ff.net.2."),
    (r"\.downsample\.", ".downsamplers.0.conv."),
    (r"\.upsample\.", ".upsamplers.0.conv."),
    # The VAE's attention keeps its norm among its projections.
    (r"(mid_block\.attentions\.0)\.attention\.", r"\1."),
    (
        r"^(vision_model\.)?((token|position|patch|class)_embedding)\b",
        r"\1embeddings.\2",
    ),
    (r"^(vision_model\.)?layers\.", r"\1encoder.layers."),
    (r"\.pre_layernorm\.", ".pre_layrnorm."),
)
# Projections that are one here, side by side along the output axis, and several there.
JOINED = {"to_qkv": ("to_q", "to_k", "to_v"), "to_kv": ("to_k", "to_v")}
LEAVES = {"kernel": "weight", "taps": "weight", "scale": "weight", "embedding": "weight"}

OLD_NAMES = (
    # CLIP's encoders saved before transformers 5.
    (r"^text_model\.", ""),
    (r"^vision_model\.vision_model\.", "vision_model."),
    # VAEs saved before diffusers 0.18.
    (r"(mid_block\.attentions\.0)\.query\.", r"\1.to_q."),
    (r"(mid_block\.attentions\.0)\.key\.", r"\1.to_k."),
    (r"(mid_block\.attentions\.0)\.value\.", r"\1.to_v."),
    (r"(mid_block\.attentions\.0)\.proj_attn\.", r"\1.to_out.0."),
)
# Buffers that CLIP's encoders saved once: 0, 1, 2, ...
IGNORED = re.compile(r"^((text|vision)_model\.)*embeddings\.position_ids$")

Place = Callable[[np.ndarray], jax.Array]
M = TypeVar("M", bound=nnx.Module)


def checkpoint_names(path: tuple[Any, ...]) -> tuple[str, ...]:
    """A parameter's path in its module -> the names in the checkpoint of the tensors it is made of.

    Nearly always one; of several, each is an equal share of the output axis.
    """
    *layers, leaf = path
    leaf = LEAVES.get(leaf, leaf)
    parts = JOINED.get(layers[-1]) if layers else None
    if parts is None:
        return (_checkpoint_name((*layers, leaf)),)
    return tuple(_checkpoint_name((*layers[:-1], part, leaf)) for part in parts)


def _checkpoint_name(path: tuple[Any, ...]) -> str:
    name = ".".join(map(str, path))
    for pattern, replacement in NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def modern_name(name: str) -> str:
    """A tensor's name in any supported file -> its name in a checkpoint of today."""
    for pattern, replacement in OLD_NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def checkpoint_shape(path: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that a parameter of `shape` has in the checkpoint, where axes run otherwise."""
    if path[-1] == "taps":
        return shape[-1], shape[-2], 3, 3
    if path[-1] != "kernel":
        return shape
    if len(shape) == 4:  # H W I O -> O I H W
        return shape[3], shape[2], shape[0], shape[1]
    return shape[::-1]


def from_checkpoint(path: tuple[Any, ...], tensor: np.ndarray) -> np.ndarray:
    """A checkpoint's tensor as the module has it: a view, or for folded upsampling sums."""
    if path[-1] not in ("kernel", "taps"):
        return tensor
    kernel = tensor.transpose(2, 3, 1, 0) if tensor.ndim == 4 else tensor.T
    return summed_taps(kernel.astype(np.float32)) if path[-1] == "taps" else kernel


def to_checkpoint(module: nnx.Module) -> dict[str, np.ndarray]:
    """All parameters of a module that is not folded, under their checkpoint's names."""
    tensors = {}
    for path, param in nnx.to_flat_state(nnx.state(module, nnx.Param)):
        names = checkpoint_names(path)
        shares = np.split(np.asarray(param.get_value()), len(names), axis=-1)
        for name, value in zip(names, shares, strict=True):
            if path[-1] == "kernel":
                value = value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T
            tensors[name] = np.ascontiguousarray(value)
    return tensors


class _NoKeys:
    """The part of nnx.Rngs that layers use; without a key they draw nothing."""

    def params(self) -> None:
        return None


def shape_rngs() -> nnx.Rngs:
    """For a module made for its shapes alone.

    Nothing is drawn: nnx.Rngs counts its draws inside the trace, each slower than the one before,
    a minute of computing for SDXL's UNet.
    """
    return cast(nnx.Rngs, _NoKeys())


@dataclass(frozen=True)
class Stored(Generic[M]):
    """A module whose parameters are in the files of a component's folder, still to be read.

    Attributes:
        module: shapes and dtypes in place of its parameters.
    """

    module: M
    _folder: Path
    _files: Sequence[str] | None
    _sources: dict[Any, list[str]]

    def load(self, place: Place, progress: Callable[[int], object] = lambda _: None) -> M:
        """The module with its parameters; one tensor at a time is read, cast and placed.

        Args:
            place: puts a host array on the device or devices.
            progress: told the number of bytes placed after each tensor.

        Raises CheckpointError, naming the file, for one that cannot be read.
        """
        graphdef, state = nnx.split(self.module)
        flat = dict(nnx.to_flat_state(state))
        with open_tensors(self._folder, self._files) as files:
            for path, param in flat.items():
                shares = [from_checkpoint(path, files[name].read()) for name in self._sources[path]]
                tensor = np.concatenate(shares, axis=-1) if len(shares) > 1 else shares[0]
                array = place(np.ascontiguousarray(tensor.astype(param.dtype)))
                flat[path] = param.replace(array)
                progress(array.nbytes)
        return nnx.merge(graphdef, nnx.from_flat_state(flat))


def find(module: M, folder: Path, names: Sequence[str] | None = None) -> Stored[M]:
    """Finds a module's parameters in the safetensors files of a component's folder.

    Args:
        module: with shapes and dtypes in place of its parameters.
        folder: holds the component's weights, for instance `.../unet`.
        names: the weight files to read, as in `open_tensors`.

    Raises CheckpointError, naming file and tensor, for an unknown, missing, duplicate or wrongly
    shaped tensor, and for a file that cannot be read.
    """
    with open_tensors(folder, names) as files:
        params = dict(nnx.to_flat_state(nnx.state(module)))
        return Stored(module, folder, names, _match(folder, files, params))


def _match(folder: Path, files: TensorFiles, params: dict[Any, Any]) -> dict[Any, list[str]]:
    """For every parameter the names of its tensors; refuses anything that does not pair up."""
    found: dict[str, str] = {}
    for name in _named(files):
        modern = modern_name(name)
        if modern in found:
            raise CheckpointError(f"{folder}: {name} and {found[modern]} are the same tensor")
        found[modern] = name
    sources = {}
    for path, param in params.items():
        names = checkpoint_names(path)
        for name in names:
            if name not in found:
                raise CheckpointError(f"{folder}: the tensor {name} is missing")
        sources[path] = [found.pop(name) for name in names]
        share = (*param.shape[:-1], param.shape[-1] // len(names))
        right = checkpoint_shape(path, share)
        for source in sources[path]:
            if files[source].shape != right:
                raise CheckpointError(
                    f"{folder}: {source} has shape {list(files[source].shape)}; expected"
                    f" {list(right)} from the component's config.json"
                )
    for name in found.values():
        raise CheckpointError(f"{folder}: unknown tensor {name}")
    return sources


def _named(files: TensorFiles) -> Iterator[str]:
    return (name for name in files if not IGNORED.match(name))
