"""Arrays for parameters, and the fast copy of a file's tensors into them.

A copy changes the dtype and the order of the axes. It goes through small blocks, which stay in the
processor's caches.
"""

import math
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, TypeVar

import numpy as np

# A CPU device uses the memory of arrays with this alignment, and copies others.
ALIGNMENT = 64
# The system provides blocks of this size much faster than as many bytes in small ones. It takes
# them back as soon as they are freed, which it does not do below 32 MiB.
BLOCK_BYTES = 2**26
ROWS, NUMBERS = 64, 2**14  # of a tensor, copied at once


S = TypeVar("S")  # whatever has a shape and a dtype


def bytes_of(spec: Any) -> int:
    """Return the size of an array."""
    return math.prod(spec.shape) * spec.dtype.itemsize


def groups(specs: Iterable[S], max_bytes: int) -> Iterator[list[S]]:
    """Yield shapes in groups of up to `max_bytes` bytes, or of a single larger one."""
    group: list[S] = []
    total = 0
    for spec in specs:
        if group and total + bytes_of(spec) > max_bytes:
            yield group
            group, total = [], 0
        group.append(spec)
        total += bytes_of(spec)
    if group:
        yield group


def empty_arrays(specs: Iterable[Any]) -> Iterator[np.ndarray]:
    """Yield an array without values for each shape.

    The arrays of a group share a block of memory, which is freed with the last of them.
    """
    for group in groups(specs, BLOCK_BYTES):
        sizes = [math.ceil(bytes_of(spec) / ALIGNMENT) * ALIGNMENT for spec in group]
        block = np.empty(sum(sizes) + ALIGNMENT, np.uint8)
        start = -block.ctypes.data % ALIGNMENT
        for spec, size in zip(group, sizes, strict=True):
            yield block[start : start + bytes_of(spec)].view(spec.dtype).reshape(spec.shape)
            start += size


def copy(tensor: np.ndarray, result: np.ndarray) -> None:
    """Copy the values of an array into another one of the same shape, as `astype` casts them.

    Either may be a view with its axes in another order.
    """
    if tensor.ndim < 2:
        result[...] = tensor
        return
    columns = max(1, NUMBERS // (ROWS * math.prod(tensor.shape[2:])))
    bits = np.dtype(f"u{result.itemsize}")  # NumPy copies these faster than bfloat16
    for i in range(0, tensor.shape[0], ROWS):
        for j in range(0, tensor.shape[1], columns):
            block = np.s_[i : i + ROWS, j : j + columns]
            result[block].view(bits)[...] = _cast(tensor[block], result.dtype).view(bits)


def _cast(block: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    if block.itemsize > 2:
        return block.astype(dtype)
    bits = block.view(f"u{block.itemsize}")
    if block.dtype == dtype:
        return bits.copy()
    return np.take(_numbers(block.dtype, dtype), bits, mode="clip")


@cache
def _numbers(dtype: np.dtype[Any], target: np.dtype[Any]) -> np.ndarray:
    """Return all numbers of a dtype in another one, in the order of their bits.

    To look a number up is faster than NumPy's casts of 16 bits.
    """
    size = dtype.itemsize
    with np.errstate(all="ignore"):
        return np.arange(2 ** (8 * size)).astype(f"u{size}").view(dtype).astype(target)
