"""The slots on the host's side: which are free, and who shares the devices."""

import pytest

from pipeline.runtime.slots import Slots, slot_mask
from tests.checkpoints import shared_pipeline


@pytest.mark.parametrize(
    ("devices", "taken", "count", "free"),
    [
        (1, [], 2, [0, 1]),
        (1, [0, 2], 4, [1, 3]),
        (1, [0, 1, 2, 3], 4, []),
        # On two devices there are two slots each.
        (2, [], 2, [0, 2]),
        (2, [0], 1, [2]),
        (2, [0, 1], 2, [2, 3]),
        (2, [], 4, [0, 1, 2, 3]),
        (4, [1], 2, [0, 2]),
    ],
)
def test_free_slots_are_spread_over_the_devices(
    devices: int, taken: list[int], count: int, free: list[int]
) -> None:
    slots = Slots(shared_pipeline(devices)._compiled)
    slots.taken.update(taken)
    assert slots.free(count) == free


def test_a_slot_that_is_left_is_free() -> None:
    slots = Slots(shared_pipeline(1)._compiled)
    slots.taken.update(range(4))
    slots.leave(2)
    assert slots.free(4) == [2]
    assert slot_mask(4, [1, 3]).tolist() == [False, True, False, True]
