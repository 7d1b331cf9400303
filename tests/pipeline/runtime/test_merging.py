"""The parameters that were merged last: within a limit, and forgotten with their LoRAs."""

import numpy as np

from pipeline.adapters.changes import Difference
from pipeline.checkpoints.arrays import BLOCK_BYTES, empty_arrays
from pipeline.runtime.merging import Part, RecentlyMerged
from pipeline.runtime.parameters import Slot


def slot(*shape: int, dtype: type = np.float32) -> Slot:
    return Slot("unet", (0,), ("conv_in", "bias"), ("conv_in.bias",), shape, np.dtype(dtype))


def parts(digest: str, strength: float = 1.0) -> tuple[Part, ...]:
    return (Part(digest, 0, strength, Difference(np.zeros(4, np.float32))),)


def test_the_parameters_used_longest_ago_go_first() -> None:
    recent, place = RecentlyMerged(), slot(4)
    arrays = {strength: np.full(4, strength, np.float32) for strength in (0.5, 1.0, 1.5)}
    recent.limit = 2 * place.bytes
    recent.keep(place, parts("one", 0.5), arrays[0.5])
    recent.keep(place, parts("one", 1.0), arrays[1.0])
    assert recent.get(place, parts("one", 0.5)) is arrays[0.5]
    recent.keep(place, parts("one", 1.5), arrays[1.5])
    assert recent.get(place, parts("one", 1.0)) is None
    assert recent.get(place, parts("one", 0.5)) is arrays[0.5]
    assert recent.get(place, parts("one", 1.5)) is arrays[1.5]
    assert recent.get(slot(4), parts("one", 0.5)) is None  # another parameter


def test_parameters_are_forgotten_with_their_adapters() -> None:
    recent, place = RecentlyMerged(), slot(4)
    recent.limit = 2 * place.bytes
    for names in (("one",), ("one", "two")):
        both = tuple(part for name in names for part in parts(name))
        recent.keep(place, both, np.zeros(4, np.float32))
    recent.forget_all_but({"one"})
    assert recent.get(place, parts("one")) is not None
    assert recent.get(place, parts("one") + parts("two")) is None
    recent.keep(place, parts("one", 2.0), np.zeros(4, np.float32))
    assert recent.get(place, parts("one")) is not None  # what was forgotten takes no room


def test_a_block_counts_until_its_last_parameter_goes() -> None:
    recent = RecentlyMerged()
    slots = [slot(BLOCK_BYTES // 8) for _ in range(4)]  # two in a block
    recent.limit = 3 * BLOCK_BYTES // 2  # more than three of them take, and less than two blocks
    for number, (place, array) in enumerate(zip(slots, empty_arrays(slots), strict=True)):
        recent.keep(place, parts("one", number), array)
    kept = [recent.get(place, parts("one", number)) for number, place in enumerate(slots)]
    assert [array is not None for array in kept] == [False, False, True, True]
