"""Parameters with the changes of adapters added."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from pipeline.adapters.adapter import Change, LowRank
from pipeline.checkpoints.weights import checkpoint_layout, checkpoint_shape, from_checkpoint
from pipeline.runtime.parameters import Slot

BLOCK_NUMBERS = 2**18  # of a parameter, merged at once


@dataclass(frozen=True)
class Part:
    """The change of one adapter to one share of a parameter."""

    digest: str
    share: int
    strength: float
    change: Change = field(compare=False)


def merge(slot: Slot, pristine: np.ndarray, parts: Collection[Part], result: np.ndarray) -> None:
    """Write a parameter with changes added, computed in float32, to `result`."""
    width = slot.shape[-1] // len(slot.names)
    for share in range(len(slot.names)):
        columns = np.s_[..., share * width : (share + 1) * width]
        before, after = pristine[columns], result[columns]
        addends = [part for part in parts if part.share == share]
        if slot.path[-1] == "kernel" and all(isinstance(part.change, LowRank) for part in addends):
            _add_products(slot.path, before, addends, after)
            continue
        total = weight = before.astype(np.float32)
        tensor = checkpoint_layout(slot.path, weight)
        for part in addends:
            total = total + from_checkpoint(slot.path, part.change.delta(tensor, part.strength))
        after[...] = total


def _add_products(
    path: tuple[Any, ...], before: np.ndarray, parts: Iterable[Part], after: np.ndarray
) -> None:
    """Write a kernel with products of two matrices added to `after`.

    This goes through blocks of rows that stay in the processor's caches.
    """
    shape, width = checkpoint_shape(path, before.shape), before.shape[-1]
    factors = []
    for part in parts:
        up, down = cast(LowRank, part.change).factors(part.strength)
        kernel = from_checkpoint(path, down.reshape(len(down), *shape[1:]))
        factors.append((kernel.reshape(-1, len(down)), up.T))
    before, after = (array.reshape(-1, width) for array in (before, after))
    rows = max(1, BLOCK_NUMBERS // width)
    total, product = np.empty((2, rows, width), np.float32)
    for start in range(0, len(before), rows):
        block = slice(start, start + rows)
        rows_before = before[block]
        sums, products = total[: len(rows_before)], product[: len(rows_before)]
        sums[...] = rows_before
        for down, up in factors:
            sums += np.matmul(down[block], up, out=products)
        after[block] = sums
