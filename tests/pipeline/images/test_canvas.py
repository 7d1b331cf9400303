"""Outpainting, and the masked part of a picture alone."""

import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

from pipeline.errors import InputError
from pipeline.images import canvas, inputs
from pipeline.images.canvas import Box, Frame

RNG = np.random.default_rng(0)
PIXELS = RNG.uniform(size=(60, 80, 3)).astype(np.float32)


def rectangle(box: Box, shape: tuple[int, int] = (60, 80)) -> np.ndarray:
    mask = np.zeros(shape, np.float32)
    box.of(mask)[:] = 1
    return mask


def test_a_picture_grows_at_the_sides_that_are_asked_for() -> None:
    larger, mask = canvas.extended(PIXELS, right=24, top=8, overlap=4)
    assert larger.shape == (68, 104, 3)
    np.testing.assert_array_equal(larger[8:, :80], PIXELS)
    np.testing.assert_array_equal(larger[:8, :80], np.broadcast_to(PIXELS[0], (8, 80, 3)))
    kept = Box(8 + 4, 0, 68, 80 - 4)
    assert not kept.of(mask).any()
    assert mask.sum() == mask.size - kept.height * kept.width


def test_sides_that_do_not_grow() -> None:
    with pytest.raises(InputError, match="no pixels are added"):
        canvas.extended(PIXELS)


@pytest.mark.parametrize(
    ("masked", "right"),
    [
        (Box(20, 30, 30, 40), Box(15, 25, 35, 45)),  # padding alone
        (Box(20, 30, 30, 60), Box(5, 25, 45, 65)),  # as high as wide
        (Box(0, 0, 10, 10), Box(0, 0, 20, 20)),  # moved into the picture
        (Box(55, 70, 60, 80), Box(40, 60, 60, 80)),
        (Box(0, 10, 60, 70), Box(0, 5, 60, 75)),  # no room for the padding above and below
    ],
)
def test_the_box_has_the_shape_of_the_drawing(masked: Box, right: Box) -> None:
    assert canvas.masked_box(rectangle(masked), 64, 64, padding=5) == right


def test_the_box_holds_every_mask() -> None:
    for _ in range(100):
        mask = (RNG.random((60, 80)) > RNG.uniform(0.9, 1)).astype(np.float32)
        mask[RNG.integers(60), RNG.integers(80)] = 1
        height, width = RNG.integers(8, 100, 2)
        box = canvas.masked_box(mask, int(height), int(width), padding=int(RNG.integers(20)))
        assert box.of(mask).sum() == mask.sum()
        assert box.height > 0
        assert box.width > 0


@pytest.mark.parametrize("masked", [Box(20, 30, 45, 55), Box(0, 0, 30, 80), Box(0, 0, 60, 80)])
@pytest.mark.parametrize("padding", [0, 6])
def test_nothing_outside_the_mask_changes(masked: Box, padding: int) -> None:
    mask = rectangle(masked)
    box = canvas.masked_box(mask, 64, 64, padding)
    part = np.ones((box.height, box.width, 3), np.float32)
    found = Frame.around(PIXELS, box, mask).filled(part)
    np.testing.assert_array_equal(found[mask == 0], PIXELS[mask == 0])
    centre = (masked.top + masked.bottom) // 2, (masked.left + masked.right) // 2
    assert (found[centre] == 1).all()


def test_the_edge_is_soft() -> None:
    share = canvas.soft_edge(rectangle(Box(10, 10, 50, 70)))
    np.testing.assert_allclose(share[30, 8:20], [0, 0, *np.arange(1, 9) / 8, 1, 1])


def test_thin_lines_are_redrawn_too() -> None:
    mask = rectangle(Box(10, 10, 13, 70))
    mask[40:, 40] = 1
    share = canvas.soft_edge(mask)
    np.testing.assert_allclose(share[9:14, 30], [0, 0.5, 1, 0.5, 0])
    assert (share[40:, 40] == 1).all()


def test_a_mask_of_many_regions_is_not_sorted() -> None:
    """A sort of all pixels, by region, would take longer than all else."""
    mask = np.zeros((64, 64), np.float32)
    mask[::2, ::2] = 1
    called: list[str] = []

    def note(_frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call":
            called.append(function.__name__)

    sys.setprofile(note)
    try:
        share = canvas.soft_edge(mask)
    finally:
        sys.setprofile(None)
    assert (share == mask).all()
    assert not [name for name in called if "sort" in name]
    assert called


def test_the_edge_is_that_of_exact_distances_without_their_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected: list[tuple[np.ndarray, np.ndarray]] = []
    for size, side in ((64, 1), (13, 5), (4, 16), (1, 3)):
        mask = np.kron(RNG.random((size, size + 3)) > 0.5, np.ones((side, side), bool))
        mask[0, 0] = False
        depths = np.minimum(np.asarray(ndimage.distance_transform_edt(mask)), canvas.SOFT)
        regions = np.zeros(mask.shape, np.int32)
        ndimage.label(mask, np.ones((3, 3)), output=regions)
        largest = np.ones(regions.max() + 1)
        np.maximum.at(largest, regions, depths)
        expected.append((mask, (depths / largest[regions]).astype(np.float32)))
    monkeypatch.delattr(ndimage, "distance_transform_edt")
    for mask, share in expected:
        np.testing.assert_array_equal(canvas.soft_edge(mask.astype(np.float32)), share)


def test_a_part_comes_back_in_its_own_size() -> None:
    mask = rectangle(Box(20, 30, 30, 40))
    box = canvas.masked_box(mask, 64, 64, padding=5)
    drawn = inputs.resized(box.of(PIXELS), 64, 64)
    found = Frame.around(PIXELS, box, mask).filled(drawn)
    assert np.abs(found - PIXELS).max() < 0.2
