"""Parameters with the changes of adapters added, and those merged last."""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np

from pipeline.adapters.adapter import Change
from pipeline.checkpoints.weights import checkpoint_layout, from_checkpoint
from pipeline.runtime.parameters import Slot

KEPT_BYTES = 2**27  # the most that parameters merged earlier take of the host's memory
KEPT_SETS = 4  # and that many times the parameters that adapters change


@dataclass(frozen=True)
class Part:
    """The change of one adapter to one share of a parameter."""

    digest: str
    share: int
    strength: float
    change: Change = field(compare=False)


def merge(slot: Slot, pristine: np.ndarray, parts: Iterable[Part], result: np.ndarray) -> None:
    """Write a parameter with changes added, computed in float32, to `result`."""
    weight = pristine.astype(np.float32, copy=False)
    total = result if result.dtype == np.float32 else np.empty_like(weight)
    width = slot.shape[-1] // len(slot.names)
    for share in range(len(slot.names)):
        columns = np.s_[..., share * width : (share + 1) * width]
        before, after = weight[columns], total[columns]
        tensor = checkpoint_layout(slot.path, before)
        sum_so_far = before
        for part in parts:
            if part.share == share:
                delta = from_checkpoint(slot.path, part.change.delta(tensor, part.strength))
                sum_so_far = np.add(sum_so_far, delta, out=after)
        if sum_so_far is before:
            after[...] = before
    if total is not result:
        result[...] = total


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
