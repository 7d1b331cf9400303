"""Outpainting, and drawing of the masked part of a picture alone.

Pictures are `[H, W, 3]` float32 in 0..1. Masks are `[H, W]` float32, 1 where the picture is redrawn
and 0 where it is kept.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.errors import InputError
from pipeline.images.inputs import REDRAWN, resized

OVERLAP = 16  # pixels at the edge of a picture that are redrawn too when it is extended
SOFT = 8  # pixels over which a redrawn part fades into the picture


class Box(NamedTuple):
    """A part of a picture, in pixels."""

    top: int
    left: int
    bottom: int
    right: int

    @property
    def height(self) -> int:
        """Number of rows."""
        return self.bottom - self.top

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.right - self.left

    def of(self, pixels: np.ndarray) -> np.ndarray:
        """Return this part of a picture or mask; it is not copied."""
        return pixels[self.top : self.bottom, self.left : self.right]


def extended(
    pixels: np.ndarray,
    *,
    top: int = 0,
    left: int = 0,
    bottom: int = 0,
    right: int = 0,
    overlap: int = OVERLAP,
) -> tuple[np.ndarray, np.ndarray]:
    """Return a larger picture, for outpainting, and the mask of its new part.

    The new part has the colours of the picture's edge.

    Args:
        pixels: the picture.
        top, left, bottom, right: the number of pixels to add at each side.
        overlap: the number of pixels of the picture that are redrawn at these sides, so that
            the new part goes on where the old one ends.

    Raises:
        InputError: if all numbers are 0.
    """
    if not any((top, left, bottom, right)):
        raise InputError("no pixels are added at any side; expected a number above 0 at one")
    picture = np.pad(pixels, ((top, bottom), (left, right), (0, 0)), mode="edge")
    mask = np.ones(picture.shape[:2], np.float32)
    height, width = pixels.shape[:2]
    kept_rows = slice(top + overlap * (top > 0), top + height - overlap * (bottom > 0))
    kept_columns = slice(left + overlap * (left > 0), left + width - overlap * (right > 0))
    mask[kept_rows, kept_columns] = 0
    return picture, mask


def masked_box(mask: np.ndarray, height: int, width: int, padding: int) -> Box:
    """Return the part of a picture to draw so that its masked part is drawn at full size.

    Args:
        mask: the mask, which is not empty.
        height, width: the size at which the part will be drawn; the box has its shape, as far as
            the picture has room for it.
        padding: the number of pixels around the masked part to draw with it.
    """
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    edges = [
        (int(indices[0]) - padding, int(indices[-1]) + 1 + padding) for indices in (rows, columns)
    ]
    min_lengths = [end - start for start, end in edges]
    scale = max(min_lengths[0] / height, min_lengths[1] / width)
    lengths = round(scale * height), round(scale * width)
    (top, bottom), (left, right) = (
        _widened(start, end, max(length, end - start), room)
        for (start, end), length, room in zip(edges, lengths, mask.shape, strict=True)
    )
    return Box(top, left, bottom, right)


def _widened(start: int, end: int, length: int, room: int) -> tuple[int, int]:
    """Return a range of `length` around another one, moved or cut to fit into 0 to `room`."""
    length = min(length, room)
    first = (start + end - length) // 2
    first = min(max(first, 0), room - length)
    return first, first + length


@dataclass(frozen=True)
class Frame:
    """A picture around a part of it that is redrawn; nothing outside the mask changes.

    Attributes:
        pixels: the picture.
        box: the place of the part.
        share: `[box.height, box.width, 1]` float32, the share of the redrawn part in each pixel.
    """

    pixels: np.ndarray
    box: Box
    share: np.ndarray

    @classmethod
    def around(cls, pixels: np.ndarray, box: Box, mask: np.ndarray) -> "Frame":
        """Return the frame of a part; `mask` is that of the whole picture."""
        # Whether a pixel at the box's edge is at the mask's edge depends on its neighbours outside.
        height, width = mask.shape
        top, left = max(box.top - SOFT, 0), max(box.left - SOFT, 0)
        surroundings = Box(top, left, min(box.bottom + SOFT, height), min(box.right + SOFT, width))
        relative_box = Box(box.top - top, box.left - left, box.bottom - top, box.right - left)
        return cls(pixels, box, relative_box.of(soft_edge(surroundings.of(mask)))[..., None])

    def filled(self, part: np.ndarray) -> np.ndarray:
        """Return the picture with a part that was drawn in any size."""
        result = self.pixels.copy()
        patch = resized(part, self.box.height, self.box.width)
        self.box.of(result)[:] = self.share * patch + (1 - self.share) * self.box.of(self.pixels)
        return result


def soft_edge(mask: np.ndarray) -> np.ndarray:
    """Return the share `[H, W]` of a redrawn part in each pixel of a picture.

    It rises from 0 outside the mask to 1 inside it, over `SOFT` pixels, or over half the thickness
    of a region that is thinner.
    """
    inside = mask >= REDRAWN
    if inside.all():
        return np.ones(mask.shape, np.float32)
    from scipy import ndimage  # here: it takes 0.2 s of a start

    squares = _squared_depths(inside)
    regions = np.zeros(mask.shape, np.int32)
    ndimage.label(inside, np.ones((3, 3)), output=regions)
    largest = np.zeros(regions.max() + 1, np.uint8)
    # Not `ndimage.maximum`, which sorts all pixels.
    np.maximum.at(largest, regions.ravel(), squares.ravel())
    depths = np.sqrt(np.arange(SOFT**2 + 1))
    shares = (depths / np.maximum(depths, 1)[:, None]).astype(np.float32)
    return shares[largest[regions], squares]


def _squared_depths(inside: np.ndarray) -> np.ndarray:
    """Return the square `[H, W]` of each pixel's distance from those outside a mask.

    It is at most that of `SOFT`. So it is quicker than `ndimage.distance_transform_edt`, and takes
    the same time for every mask.
    """
    squares = np.where(inside, np.uint8(SOFT**2), np.uint8(0))
    for _ in range(2):  # down the columns, then along the rows
        nearest = squares.copy("K")
        for pixels in range(1, SOFT):
            further = squares + np.uint8(pixels**2)
            np.minimum(nearest[pixels:], further[:-pixels], out=nearest[pixels:])
            np.minimum(nearest[:-pixels], further[pixels:], out=nearest[:-pixels])
        squares = nearest.T
    return squares
