"""Reading the weights of one component: choosing its files, and reading tensor by tensor."""

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from pipeline.errors import CheckpointError

STEMS = ("diffusion_pytorch_model", "model")
PICKLE_SUFFIXES = (".bin", ".ckpt", ".pt", ".pth", ".pkl", ".msgpack")
DTYPES = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
}
# Pages of a memory-mapped file count as this program's memory until the map is closed, so it is
# closed and opened again (under a millisecond) whenever this much has been read through it.
MAPPED_BYTES = 128 * 2**20


def choose_weight_files(
    names: Collection[str], component: str, prefer_fp16: bool = False
) -> list[str]:
    """Return the files that hold a component's weights.

    Args:
        names: every file of the checkpoint, as paths below its root (`unet/config.json`): a
            listing of a local folder or of a Hub repository.
        component: the component's folder, such as `unet`.
        prefer_fp16: whether to choose the fp16 variant where both are complete.

    Returns:
        One `.safetensors` file, or an index followed by its shards. An incomplete set of shards
        is returned only if there are no complete weights.

    Raises:
        CheckpointError: if there are no safetensors weights.
    """
    variants = (".fp16", "") if prefer_fp16 else ("", ".fp16")
    incomplete: list[str] = []
    for variant in variants:
        for stem in STEMS:
            single = f"{component}/{stem}{variant}.safetensors"
            if single in names:
                return [single]
            files, complete = _sharded_files(names, component, stem, variant)
            if complete:
                return files
            incomplete = incomplete or files
    if incomplete:
        return incomplete
    raise CheckpointError(_no_weights(names, component))


def _sharded_files(
    names: Collection[str], component: str, stem: str, variant: str
) -> tuple[list[str], bool]:
    """Return the index and the shards of one variant, and whether all shards are there.

    The shards' names give their number.
    """
    index = f"{component}/{stem}.safetensors.index{variant}.json"
    if index not in names:
        return [], False
    pattern = re.compile(
        re.escape(f"{component}/{stem}{variant}-") + r"(\d{5})-of-(\d{5})\.safetensors"
    )
    shards = [match for name in sorted(names) if (match := pattern.fullmatch(name))]
    complete = {int(shard[2]) for shard in shards} == {len(shards)}
    return [index, *(shard[0] for shard in shards)], complete


def _no_weights(names: Collection[str], component: str) -> str:
    expected = f"expected {component}/{STEMS[0]}.safetensors or {component}/{STEMS[1]}.safetensors"
    pickles = sorted(
        name
        for name in names
        if name.startswith(f"{component}/") and name.endswith(PICKLE_SUFFIXES)
    )
    if pickles:
        return (
            f"{pickles[0]}: only safetensors weights are read, and {component}/ has none; other "
            f"formats, pickle above all, can run code and are never opened ({expected})"
        )
    return f"{component}/: no weights found; {expected}"


@dataclass(frozen=True)
class Tensor:
    """A tensor in a file, not read yet."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    _shard: "_Shard" = field(repr=False)

    @property
    def file(self) -> Path:
        """Path of the tensor's file, for messages."""
        return self._shard.path

    def read(self) -> np.ndarray:
        """Return a copy of the values, in the file's own shape and dtype.

        Raises:
            CheckpointError: if the file cannot be read.
        """
        return self._shard.read(self.name)


class TensorFiles(Mapping[str, Tensor]):
    """The tensors of one component by name; close it (or use `with`) when done.

    Attributes:
        where: the path of the component's folder, for messages.
    """

    def __init__(
        self, where: Path, tensors: dict[str, Tensor], resources: contextlib.ExitStack
    ) -> None:
        self.where = where
        self._tensors = tensors
        self._resources = resources

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; tensors can no longer be read."""
        self._resources.close()


def open_tensors(folder: Path, names: Sequence[str] | None = None) -> TensorFiles:
    """Open the weights in a component's folder.

    Only headers are read here. Format: https://huggingface.co/docs/safetensors

    Args:
        folder: the component's folder.
        names: the result of `choose_weight_files` for the component. None chooses among the
            folder's files, and prefers full precision to fp16.

    Raises:
        CheckpointError: if there are no weights or none in safetensors, if a file is damaged or
            cannot be read, if a dtype is not supported, or if an index disagrees with its shards.
    """
    files = choose_weight_files(_list_folder(folder), folder.name) if names is None else names
    with contextlib.ExitStack() as resources:
        if files[0].endswith(".json"):
            tensors = _open_sharded(folder / Path(files[0]).name, resources)
        else:
            tensors = _open_shard(folder / Path(files[0]).name, resources)
        return TensorFiles(folder, tensors, resources.pop_all())


def _list_folder(folder: Path) -> list[str]:
    try:
        return [f"{folder.name}/{path.name}" for path in folder.iterdir()]
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read as a folder: {error.strerror}") from error


def _open_shard(path: Path, resources: contextlib.ExitStack) -> dict[str, Tensor]:
    shard = _Shard(path)
    resources.callback(shard.close)
    return shard.tensors()


def _open_sharded(index: Path, resources: contextlib.ExitStack) -> dict[str, Tensor]:
    """Open every shard of an index, which must name each tensor of each shard exactly once."""
    weight_map = _read_index(index)
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(weight_map.values())):
        for name, tensor in _open_shard(index.parent / file, resources).items():
            if name in tensors:
                raise CheckpointError(
                    f"{tensor.file}: tensor {name!r} is also in {tensors[name].file.name}; "
                    "every tensor must be in one shard only"
                )
            if name not in weight_map:
                raise CheckpointError(
                    f"{tensor.file}: tensor {name!r} is not listed in {index.name}"
                )
            tensors[name] = tensor
    for name, file in weight_map.items():
        if name not in tensors or tensors[name].file.name != file:
            raise CheckpointError(
                f"{index}: tensor {name!r} is listed in {file}, which does not hold it"
            )
    return tensors


def _read_index(index: Path) -> dict[str, str]:
    """Return the `weight_map` of a shard index: tensor name -> shard file beside the index."""
    try:
        content = json.loads(index.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{index}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{index}: not valid JSON: {error}") from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: 'weight_map' must name the shard of every tensor")
    for name, file in weight_map.items():
        # Only a file name is allowed: an index must not lead out of its folder.
        if (
            not isinstance(file, str)
            or Path(file).name != file
            or not file.endswith(".safetensors")
        ):
            raise CheckpointError(
                f"{index}: weight_map[{name!r}] is {file!r}, not the name of a .safetensors file "
                "beside the index"
            )
    return weight_map


class _Shard:
    """A memory-mapped safetensors file that is reopened to free the pages read so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mapped_bytes = 0
        self._file = self._open()

    def tensors(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name in self._file.offset_keys():
            entry = self._file.get_slice(name)
            dtype = DTYPES.get(entry.get_dtype())
            if dtype is None:
                raise CheckpointError(
                    f"{self.path}: tensor {name!r} has dtype {entry.get_dtype()}; supported are "
                    + ", ".join(DTYPES)
                )
            found[name] = Tensor(name, tuple(entry.get_shape()), dtype, self)
        return found

    def read(self, name: str) -> np.ndarray:
        if self._mapped_bytes >= MAPPED_BYTES:
            self.close()
            self._file = self._open()
            self._mapped_bytes = 0
        try:
            array = self._file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self.path}: tensor {name!r}: {error}") from error
        self._mapped_bytes += array.nbytes
        return array

    def close(self) -> None:
        self._file.__exit__(None, None, None)

    def _open(self) -> Any:
        try:
            # safetensors reports a file it may not read as one that does not exist.
            self.path.open("rb").close()
            return safe_open(self.path, framework="np").__enter__()
        except OSError as error:
            reason = error.strerror or error
            raise CheckpointError(f"{self.path}: cannot be read: {reason}") from error
        except SafetensorError as error:
            raise CheckpointError(
                f"{self.path}: not a complete safetensors file ({error}); fetch it again"
            ) from error
