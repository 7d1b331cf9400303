"""Parameters with the changes of adapters added, and those merged last."""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from pipeline.adapters.adapter import Change
from pipeline.adapters.changes import LowRank
from pipeline.checkpoints.weights import checkpoint_layout, checkpoint_shape, from_checkpoint
from pipeline.runtime.parameters import Slot

KEPT_BYTES = 2**27  # the most that parameters merged earlier take of the host's memory
KEPT_SETS = 4  # and that many times the parameters that adapters change
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


class RecentlyMerged:
    """The parameters that were merged last, within a limit of bytes; the oldest go first.

    A block of memory that parameters share counts as a whole until the last of them goes.

    Attributes:
        limit: the most bytes; nothing is kept until it is set.
    """

    def __init__(self) -> None:
        self.limit = 0
        self._bytes = 0
        self._kept: OrderedDict[tuple[Slot, tuple[Part, ...]], np.ndarray] = OrderedDict()
        self._views: Counter[int] = Counter()  # kept parameters in a block, by its id

    def get(self, slot: Slot, parts: tuple[Part, ...]) -> np.ndarray | None:
        """Return a parameter with these changes; None if it is not kept."""
        array = self._kept.get((slot, parts))
        if array is not None:
            self._kept.move_to_end((slot, parts))
        return array

    def keep(self, slot: Slot, parts: tuple[Part, ...], array: np.ndarray) -> None:
        """Keep a parameter, to which nothing may write any more, in place of the oldest ones."""
        self._kept[slot, parts] = array
        block = _block(array)
        self._bytes += 0 if self._views[id(block)] else block.nbytes
        self._views[id(block)] += 1
        while self._bytes > self.limit:
            self._drop(next(iter(self._kept)))

    def forget_all_but(self, digests: Collection[str]) -> None:
        """Forget the parameters with changes of other adapters than these."""
        for slot, parts in [*self._kept]:
            if any(part.digest not in digests for part in parts):
                self._drop((slot, parts))

    def _drop(self, key: tuple[Slot, tuple[Part, ...]]) -> None:
        block = _block(self._kept.pop(key))
        self._views[id(block)] -= 1
        if not self._views[id(block)]:
            del self._views[id(block)]
            self._bytes -= block.nbytes


def _block(array: np.ndarray) -> np.ndarray:
    """Return the array whose memory a view uses, or an array that has its own."""
    return array if array.base is None else array.base
