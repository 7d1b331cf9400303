"""Reading the weights of one component: choosing its files, and reading tensor by tensor."""

import contextlib
import json
import math
import os
import re
import stat
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from pipeline.errors import CheckpointError
from pipeline.file_versions import Version, version_of
from pipeline.strict_json import StrictJson, unique_names

STEMS = ("diffusion_pytorch_model", "model")
PICKLE_SUFFIXES = (".bin", ".ckpt", ".pt", ".pth", ".pkl", ".msgpack")
DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
}
# The headers of published files have at most 8 MiB, most of which are notes of the training.
MAX_HEADER_BYTES = 16 * 2**20
# Strings of a header: five for each tensor, of which published files have less than 20,000.
MAX_STRINGS = 250_000
MAX_NAME = 1000  # characters of a tensor's name
MAX_AXES = 8
METADATA = "__metadata__"
# ComfyUI's scaled float8: the ends of the names of the weights' scales, and the names of what only
# products in float8 need.
SCALES = (".scale_weight", ".weight_scale")
ONLY_FLOAT8 = re.compile(r"(^|\.)(scaled_fp8|scale_input|input_scale|comfy_quant)$")
FETCH = "bytes; fetch it again"
_PICKLE = "pickle, which can run code and is never opened; convert the file to safetensors"
_PAGE = "a web page in place of the file; a download that needs a login ends so"
# The beginnings of files in other formats, and what to say of them. The first bytes of a file in
# safetensors are the length of its header, which could be any: only damaged files are compared.
OTHER_FORMATS = {
    b"PK\x03\x04": f"torch's zip format, which holds {_PICKLE}",
    **{bytes([0x80, version]): _PICKLE for version in range(2, 6)},
    b"version https://git-lfs": "a pointer of Git LFS; fetch the file itself with `git lfs pull`",
    **dict.fromkeys((b"<!", b"<?xml", b"<html", b"<HTML"), _PAGE),
    b"GGUF": "GGUF, which is not supported; expected safetensors",
    b"\x1f\x8b": "compressed with gzip; unpack it first",
    **dict.fromkeys((b'{"', b"{\n", b"{\r", b"{ "), "JSON; choose the file with the weights"),
}


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
    incomplete_files: list[str] = []
    for variant in variants:
        for stem in STEMS:
            single = f"{component}/{stem}{variant}.safetensors"
            if single in names:
                return [single]
            files, complete = _sharded_files(names, component, stem, variant)
            if complete:
                return files
            incomplete_files = incomplete_files or files
    if incomplete_files:
        return incomplete_files
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
    """A tensor in a file, or a view of one, not read yet.

    Attributes:
        name: its name in the file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    _shard: "_Shard" = field(repr=False)
    _rows: tuple[int, int] | None = None
    _transposed: bool = False
    _scale: "Tensor | None" = None

    @property
    def file(self) -> Path:
        """Path of the tensor's file, for messages."""
        return self._shard.path

    @property
    def version(self) -> Version:
        """Version of the tensor's file, which changes when the file is replaced or written to."""
        return self._shard.version

    def thirds(self) -> "list[Tensor]":
        """Return three views of equal numbers of rows; each reads only its own.

        Raises:
            CheckpointError: if the rows cannot be divided by three.
        """
        count, rest = divmod(self.shape[0], 3) if self.shape else (0, 1)
        if rest:
            raise CheckpointError(
                f"{self.file}: tensor {self.name!r} has shape {list(self.shape)}; expected a first"
                " axis that can be divided by 3"
            )
        shape = (count, *self.shape[1:])
        return [
            replace(self, shape=shape, _rows=(start * count, (start + 1) * count))
            for start in range(3)
        ]

    def transposed(self) -> "Tensor":
        """Return a view with the axes in reverse order."""
        return replace(self, shape=self.shape[::-1], _transposed=not self._transposed)

    def squeezed(self) -> "Tensor":
        """Return a view of a 1x1 convolution's kernel as the matrix of a linear layer.

        Other tensors are returned as they are.
        """
        is_pointwise = len(self.shape) == 4 and self.shape[2:] == (1, 1)
        return replace(self, shape=self.shape[:2]) if is_pointwise else self

    def read(self) -> np.ndarray:
        """Return a copy of the values, in the file's own dtype, or scaled in float32.

        Raises:
            CheckpointError: if the file cannot be read.
        """
        array = self._shard.read(self.name, self._rows)
        if self._scale is not None:
            array = array.astype(np.float32) * np.float32(self._scale.read().item())
        return (array.T if self._transposed else array).reshape(self.shape)


class TensorFiles(dict[str, Tensor], contextlib.AbstractContextManager["TensorFiles"]):
    """The tensors of one component by name; close it (or use `with`) when done.

    Attributes:
        where: the path of the component's folder or file, for messages.
        metadata: the notes in the header of a single file, by key.
        beside: all tensors of the file that these were selected from.
    """

    def __init__(
        self,
        where: Path,
        tensors: Mapping[str, Tensor],
        resources: contextlib.ExitStack,
        metadata: Mapping[str, str] | None = None,
        beside: "TensorFiles | None" = None,
    ) -> None:
        super().__init__(tensors)
        self.where = where
        self.metadata = metadata or {}
        self.beside = self if beside is None else beside
        self._resources = resources

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def versions(self) -> dict[Path, Version]:
        """Versions of the files that hold the tensors, by path."""
        return {tensor.file: tensor.version for tensor in self.values()}

    def selected(self, tensors: Mapping[str, Tensor]) -> "TensorFiles":
        """Return some of the tensors, under new names; the result is the one to close."""
        return TensorFiles(self.where, tensors, self._resources.pop_all(), self.metadata, self)

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
            shard = _Shard(folder / Path(files[0]).name)
            tensors = resources.enter_context(contextlib.closing(shard)).tensors()
        return TensorFiles(folder, tensors, resources.pop_all())


def open_file(path: Path, unused: re.Pattern[str] | None = None) -> TensorFiles:
    """Open one safetensors file.

    Args:
        path: the file.
        unused: a pattern of the names of tensors to leave out, whatever their dtype.

    Raises:
        CheckpointError: if the file is damaged or cannot be read, or a dtype is not supported.
    """
    with contextlib.ExitStack() as resources:
        shard = resources.enter_context(contextlib.closing(_Shard(path)))
        return TensorFiles(path, shard.tensors(unused), resources.pop_all(), shard.metadata)


def _with_scales(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors without the scales of weights, which are multiplied when these are read."""
    for scale in [tensor for name, tensor in tensors.items() if name.endswith(SCALES)]:
        weight = tensors.get(f"{scale.name.rpartition('.')[0]}.weight")
        if weight is None or math.prod(scale.shape) != 1:
            raise CheckpointError(
                f"{scale.file}: tensor {scale.name!r} is no scale of a float8 tensor; only float8"
                " with one scale for each weight is read"
            )
        del tensors[scale.name]
        tensors[weight.name] = replace(weight, dtype=np.dtype(np.float32), _scale=scale)
    return tensors


def read_header(file: BinaryIO) -> bytes:
    """Read the header of a safetensors file, to be parsed as JSON.

    Args:
        file: the file, which was just opened.

    Raises:
        OSError: if it cannot be read.
        ValueError: if the file ends within the header, or the header is so large that parsing it
            would take long.
    """
    length = int.from_bytes(start := file.read(8), "little")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"its header has {length} bytes; the most is {MAX_HEADER_BYTES}")
    header = file.read(length)
    if len(start) < 8 or len(header) < length:
        raise ValueError(f"it ends within its header, after {len(start) + len(header)} {FETCH}")
    # A quote that ends a string may follow two backslashes, one that begins it none.
    strings = (header.count(b'"') - header.count(b'\\"')) // 2
    brackets = header.count(b"[") + header.count(b"{")
    if max(strings, brackets) > MAX_STRINGS:
        count = f"{strings} strings and {brackets} lists"
        raise ValueError(f"its header has {count}; the most is {MAX_STRINGS} of each")
    return header


def described_size(header: bytes) -> int | None:
    """Return how many bytes a file with a header should have; None if the header is damaged."""
    try:
        entries = json.loads(header)
        ends = [entry["data_offsets"][1] for key, entry in entries.items() if key != METADATA]
        return 8 + len(header) + max(ends, default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return None


def _list_folder(folder: Path) -> list[str]:
    try:
        return [f"{folder.name}/{path.name}" for path in folder.iterdir()]
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read as a folder: {error.strerror}") from error


def _open_sharded(index: Path, resources: contextlib.ExitStack) -> dict[str, Tensor]:
    """Open every shard of an index, which must name each tensor of each shard exactly once."""
    weight_map = _read_index(index)
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(weight_map.values())):
        shard = resources.enter_context(contextlib.closing(_Shard(index.parent / file)))
        for name, tensor in shard.tensors().items():
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
    weight_map = StrictJson(index).take("weight_map", dict)
    if not weight_map:
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
    """An open safetensors file.

    It is read, not memory-mapped: a mapped file that is cut short kills the process, and the pages
    that were read count as its memory.

    Attributes:
        version: its version when it was opened.
        metadata: the notes in its header.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # To open a pipe would wait until something writes into it.
            if not stat.S_ISREG(path.stat().st_mode):
                raise CheckpointError(f"{path}: is not a file; expected a .safetensors file")
            self._file = path.open("rb")
            with contextlib.ExitStack() as resources:
                resources.callback(self.close)
                self.version = self._version_now()
                self._entries, self._data = self._read_header()
                resources.pop_all()
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
        self.metadata: dict[str, str] = self._entries.pop(METADATA, {})

    def tensors(self, unused: re.Pattern[str] | None = None) -> dict[str, Tensor]:
        """Return all tensors, in the order of the file, but those whose names match `unused`."""
        tensors: dict[str, Tensor] = {}
        for name, entry in sorted(self._entries.items(), key=lambda item: item[1]["data_offsets"]):
            if ONLY_FLOAT8.search(name) or (unused is not None and unused.search(name)):
                continue
            dtype = DTYPES.get(entry["dtype"])
            if dtype is None:
                raise CheckpointError(
                    f"{self.path}: tensor {name!r} has dtype {entry['dtype']}; supported are "
                    + ", ".join(DTYPES)
                )
            tensors[name] = Tensor(name, tuple(entry["shape"]), dtype, self)
        return _with_scales(tensors)

    def read(self, name: str, rows: tuple[int, int] | None = None) -> np.ndarray:
        """Return a tensor's values, or the rows from the first number to before the second.

        Several threads may read at once.
        """
        entry = self._entries[name]
        dtype, shape, start = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"][0]
        if rows is not None:
            start += rows[0] * math.prod(shape[1:]) * dtype.itemsize
            shape = [rows[1] - rows[0], *shape[1:]]
        content = np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
        try:
            done, at = 0, self._data + start
            while count := os.preadv(self._file.fileno(), [content.data[done:]], at + done):
                done += count
            changed = done != content.size or self._version_now() != self.version
        except (OSError, ValueError) as error:  # ValueError: it is closed
            raise CheckpointError(f"{self.path}: tensor {name!r}: {error}") from error
        if changed:
            raise CheckpointError(
                f"{self.path}: the file changed while it was read, at tensor {name!r}; load it"
                " again when it is complete"
            )
        return content.view(dtype).reshape(shape)

    def close(self) -> None:
        self._file.close()

    def _version_now(self) -> Version:
        return version_of(os.fstat(self._file.fileno()))

    def _read_header(self) -> tuple[dict[str, Any], int]:
        """Return the header, and the position of the data behind it."""
        try:
            text = read_header(self._file)
        except ValueError as error:
            raise self._damaged(str(error)) from error
        try:
            # The library checks the header: its offsets, shapes and dtypes, and the file's length.
            safe_open(self.path, framework="np").__enter__().__exit__(None, None, None)
        except SafetensorError as error:
            size, described = os.fstat(self._file.fileno()).st_size, described_size(text)
            reason = textwrap.shorten(str(error).rpartition("deserializing header: ")[2], 200)
            if isinstance(described, int) and described > size:
                reason = f"it has {size} of {described} {FETCH}"
            elif described is not None and described < size:
                reason = f"its header describes {described} of its {size} bytes"
            raise self._damaged(reason) from error
        if not os.path.samestat(os.fstat(self._file.fileno()), self.path.stat()):
            raise self._damaged("it was replaced while it was opened")
        try:
            header = json.loads(text, object_pairs_hook=unique_names)
        except (ValueError, RecursionError) as error:
            raise self._damaged(str(error)) from error
        self._check_entries(header)
        return header, 8 + len(text)

    def _check_entries(self, header: Mapping[str, Any]) -> None:
        """Raise CheckpointError for more than messages and what follows can do with."""
        names = header.keys() - {METADATA}
        if (longest := max(map(len, names), default=0)) > MAX_NAME:
            raise self._damaged(f"a tensor's name has {longest} characters; the most is {MAX_NAME}")
        axes = max((len(header[name]["shape"]) for name in names), default=0)
        if axes > MAX_AXES:
            raise self._damaged(f"a tensor has {axes} axes; the most is {MAX_AXES}")

    def _damaged(self, reason: str) -> CheckpointError:
        beginning = os.pread(self._file.fileno(), max(map(len, OTHER_FORMATS)), 0)
        for start, meaning in OTHER_FORMATS.items():
            if beginning.startswith(start):
                return CheckpointError(f"{self.path}: not a safetensors file: it is {meaning}")
        right = "complete" if reason.endswith(FETCH) else "valid"
        return CheckpointError(f"{self.path}: not a {right} safetensors file: {reason}")
