"""Strict loading of a checkpoint's tensors into NNX modules: every name and shape must match.

This is the only file that knows diffusers' and transformers' key names. `checkpoint_names` returns
the names that a parameter's tensors have in current checkpoints. `modern_name` converts the names
in older files to current ones.
"""

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import jax
import numpy as np
from flax import nnx

from pipeline.checkpoints.arrays import copy, empty_arrays
from pipeline.checkpoints.original_names import replaced
from pipeline.checkpoints.tensors import TensorFiles
from pipeline.errors import CheckpointError
from pipeline.file_versions import Version
from pipeline.kernels.int8 import Quantized, quantize_kernel
from pipeline.kernels.matmul_conv import merged_upsample_kernels, upsample_kernel
from pipeline.platforms import usable_cores

# Patterns in the names of modules here, and their replacements in a checkpoint.
NAMES = (
    (r"\.to_out\.", ".to_out.0."),
    (r"\.ff\.proj_in\.", ".ff.net.0.proj."),
    (r"\.ff\.proj_out\.", ".ff.net.2."),
    (r"\.downsample\.", ".downsamplers.0.conv."),
    (r"\.upsample\.", ".upsamplers.0.conv."),
    # In a checkpoint the norm of the VAE's attention is beside the projections.
    (r"(mid_block\.attentions\.0)\.attention\.", r"\1."),
    (
        r"^(vision_model\.)?((token|position|patch|class)_embedding)\b",
        r"\1embeddings.\2",
    ),
    (r"^(vision_model\.)?layers\.", r"\1encoder.layers."),
    (r"\.pre_layernorm\.", ".pre_layrnorm."),
    (r"\.attn\.in_proj\.", ".attn.in_proj_"),
)
# Projections that are one parameter here, side by side along the output axis, and several tensors
# in a checkpoint.
JOINED = {"to_qkv": ("to_q", "to_k", "to_v"), "to_kv": ("to_k", "to_v")}
LEAVES = {"kernel": "weight", "merged_kernels": "weight", "scale": "weight", "embedding": "weight"}

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
# Buffers 0, 1, 2, ... that older versions of CLIP's encoders saved; a module may have another
# pattern, `unused_tensors`.
IGNORED = re.compile(r"^((text|vision)_model\.)*embeddings\.position_ids$")

READ_AHEAD = 32  # parameters that are read while others are placed

DevicePut = Callable[[np.ndarray], jax.Array]
OpenTensors = Callable[[], TensorFiles]
M = TypeVar("M", bound=nnx.Module)


def checkpoint_names(path: tuple[Any, ...]) -> tuple[str, ...]:
    """Return the names in a checkpoint of the tensors that make up a parameter.

    `path` is the parameter's path in its module. There is nearly always one tensor; if there are
    several, each is an equal share of the output axis.
    """
    *layers, leaf = path
    leaf = LEAVES.get(leaf, leaf)
    parts = JOINED.get(layers[-1]) if layers else None
    if parts is None:
        return (_checkpoint_name((*layers, leaf)),)
    return tuple(_checkpoint_name((*layers[:-1], part, leaf)) for part in parts)


def _checkpoint_name(path: tuple[Any, ...]) -> str:
    return replaced(".".join(map(str, path)), NAMES)


def modern_name(name: str) -> str:
    """Convert a tensor's name in any supported file to its name in a current checkpoint."""
    return replaced(name, OLD_NAMES)


def checkpoint_shape(path: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a parameter's shape in the checkpoint, which orders the axes differently."""
    if path[-1] == "merged_kernels":
        return shape[-1], shape[-2], 3, 3
    if path[-1] != "kernel":
        return shape
    if len(shape) == 4:  # H W I O -> O I H W
        return shape[3], shape[2], shape[0], shape[1]
    return shape[::-1]


def from_checkpoint(path: tuple[Any, ...], tensor: np.ndarray) -> np.ndarray:
    """Convert a checkpoint's tensor to the module's layout.

    The result is a view, except for `merged_kernels`, which are sums.
    """
    if path[-1] not in ("kernel", "merged_kernels"):
        return tensor
    kernel = tensor.transpose(2, 3, 1, 0) if tensor.ndim == 4 else tensor.T
    return (
        merged_upsample_kernels(kernel.astype(np.float32))
        if path[-1] == "merged_kernels"
        else kernel
    )


def checkpoint_layout(path: tuple[Any, ...], value: np.ndarray) -> np.ndarray:
    """Convert a parameter, or a share of its last axis, to the layout of a checkpoint's tensor.

    This undoes `from_checkpoint`. The result is a view, except for `merged_kernels`, where it has
    the rounding of their sums.
    """
    if path[-1] == "merged_kernels":
        value = upsample_kernel(value)
    elif path[-1] != "kernel":
        return value
    return value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T


def to_checkpoint(module: nnx.Module) -> dict[str, np.ndarray]:
    """Return all parameters of a module without merged kernels, by their names in a checkpoint."""
    tensors = {}
    for path, param in nnx.to_flat_state(nnx.state(module, nnx.Param)):
        names = checkpoint_names(path)
        shares = np.split(np.asarray(param.get_value()), len(names), axis=-1)
        for name, value in zip(names, shares, strict=True):
            tensors[name] = np.ascontiguousarray(checkpoint_layout(path, value))
    return tensors


class _NoKeys:
    """A stand-in for nnx.Rngs in layers; it has no key, so that nothing is drawn."""

    def params(self) -> None:
        return None


def shape_rngs() -> nnx.Rngs:
    """Return the `rngs` for a module of which only the shapes are needed.

    They draw nothing. nnx.Rngs counts its draws inside the trace, each slower than the one before,
    which takes a minute for SDXL's UNet.
    """
    return cast(nnx.Rngs, _NoKeys())


@dataclass(frozen=True)
class PendingWeights(Generic[M]):
    """A module whose parameters are still to be read.

    Attributes:
        module: the module, with shapes and dtypes in place of its parameters.
    """

    module: M
    _open: OpenTensors
    _sources: dict[Any, list[str]]
    _versions: dict[Path, Version]

    @property
    def paths(self) -> Collection[Path]:
        """The paths of the files."""
        return self._versions.keys()

    def load(self, place: DevicePut, progress: Callable[[int], object] = lambda _: None) -> M:
        """Return the module with its parameters; one tensor at a time is read, cast and placed.

        Args:
            place: copies a host array to the device or devices.
            progress: called after each tensor with the number of bytes placed.

        Raises:
            CheckpointError: if a file cannot be read, or is another one than when the weights were
                matched; the message names it.
        """
        graphdef, state = nnx.split(self.module)
        flat = dict(nnx.to_flat_state(state))
        for path, array in self.read(flat):
            is_quantized = isinstance(flat[path].get_value(), Quantized)
            value = quantize_kernel(array) if is_quantized else array
            # A copy that runs on would keep its array. The next ones are read meanwhile.
            device_value = jax.block_until_ready(jax.tree.map(place, value))
            flat[path] = flat[path].replace(device_value)
            progress(sum(leaf.nbytes for leaf in jax.tree.leaves(device_value)))
        return nnx.merge(graphdef, nnx.from_flat_state(flat))

    def read(self, paths: Iterable[Any]) -> Iterator[tuple[Any, np.ndarray]]:
        """Yield paths of parameters and their values in the module's dtype, not quantised.

        Raises:
            CheckpointError: if a file cannot be read, or is another one than when the weights were
                matched; the message names it.
        """
        params = dict(nnx.to_flat_state(nnx.state(self.module)))
        futures: deque[Future[tuple[Any, np.ndarray]]] = deque()
        with self._open() as files, ThreadPoolExecutor(usable_cores(), "read") as threads:
            versions = files.versions
            if versions != self._versions:  # networks of two models would be mixed
                replaced_files = (
                    file
                    for file, version in self._versions.items()
                    if versions.get(file) != version
                )
                raise CheckpointError(
                    f"{next(replaced_files, files.where)}: the file was replaced while the"
                    " checkpoint was loaded; load it again when it is complete"
                )
            paths = [*paths]
            for path, array in zip(paths, empty_arrays(params[x] for x in paths), strict=True):
                futures.append(threads.submit(self._fill, files, path, array))
                if len(futures) > READ_AHEAD:
                    yield futures.popleft().result()
            while futures:
                yield futures.popleft().result()

    def _fill(self, files: TensorFiles, path: Any, array: np.ndarray) -> tuple[Any, np.ndarray]:
        """Read a parameter into an array; return both its path and the array."""
        names = self._sources[path]
        for name, share in zip(names, np.split(array, len(names), axis=-1), strict=True):
            tensor = files[name].read()
            if path[-1] == "merged_kernels":
                share[...] = from_checkpoint(path, tensor)
            else:
                copy(tensor, checkpoint_layout(path, share))
        return path, array


def match_weights(module: M, open_files: OpenTensors) -> PendingWeights[M]:
    """Find a module's parameters among the tensors of a component.

    Args:
        module: the module, with shapes and dtypes in place of its parameters. It may have a pattern
            `unused_tensors` of names to leave out.
        open_files: opens the component's tensors. It is called again to read them.

    Raises:
        CheckpointError: if a tensor is unknown, missing, duplicate or of the wrong shape, or if a
            file cannot be read; the message names file and tensor.
    """
    with open_files() as files:
        params = dict(nnx.to_flat_state(nnx.state(module)))
        unused: re.Pattern[str] = getattr(module, "unused_tensors", IGNORED)
        sources = _match(files, params, [name for name in files if not unused.match(name)])
        return PendingWeights(module, open_files, sources, files.versions)


def _match(
    files: TensorFiles, params: dict[Any, Any], names: Iterable[str]
) -> dict[Any, list[str]]:
    """Return the names of every parameter's tensors; each of `names` must belong to a parameter."""
    originals: dict[str, str] = {}
    for name in names:
        new_name = modern_name(name)
        if new_name in originals:
            duplicates = f"{files[name].name} and {files[originals[new_name]].name}"
            raise CheckpointError(f"{files.where}: {duplicates} name the same tensor")
        originals[new_name] = name
    sources = {}
    for path, param in params.items():
        names = checkpoint_names(path)
        for name in names:
            if name not in originals:
                raise CheckpointError(f"{files.where}: the tensor {name} is missing")
        sources[path] = [originals.pop(name) for name in names]
        share = (*param.shape[:-1], param.shape[-1] // len(names))
        shape = checkpoint_shape(path, share)
        for source in sources[path]:
            if files[source].shape != shape:
                raise CheckpointError(
                    f"{files.where}: {files[source].name} has shape {list(files[source].shape)};"
                    f" expected {list(shape)} from the network's configuration"
                )
    for name in originals.values():
        raise CheckpointError(f"{files.where}: unknown tensor {files[name].name}")
    return sources
