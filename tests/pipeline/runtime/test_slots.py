"""The slots on the host's side: which are free, and who shares the devices."""

from typing import Any

import numpy as np
import pytest

from pipeline.runtime.sampler import Context
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


def test_guidance_is_rounded_only_after_1_is_subtracted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks that take the guidance scale multiply the difference by 1000, and its error."""
    scale, given = 8.066351196001362, []
    assert np.float32(scale) - np.float32(1) != np.float32(scale - 1)
    pipe = shared_pipeline(1)
    condition = pipe._compiled.condition

    def spy(*arguments: Any) -> Context:
        given.append(arguments[4])
        return condition(*arguments)

    monkeypatch.setattr(pipe._compiled, "condition", spy)
    pipe.generate("a red star", guidance_scale=scale, num_inference_steps=1)
    assert [each.tolist() for each in given] == [[np.float32(scale - 1)] * 4]
