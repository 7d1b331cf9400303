"""Previews of unfinished pictures, within a small share of the time that drawing takes."""

import io
import time
from collections.abc import Callable, Mapping

import numpy as np
from PIL import Image as Pillow

# All previews together take at most SHARE of the devices' time, and the previews of one drawing are
# at least PAUSE_S seconds apart.
SHARE = 0.02
PAUSE_S = 0.25
QUALITY = 85
SIDE = 256  # the largest side of a finished picture among previews


class Previews:
    """Previews of one drawing, limited in time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = clock()

    def make(
        self, look: Callable[[], Mapping[int, np.ndarray]], among: int = 1
    ) -> dict[int, bytes]:
        """Return previews as JPEG files by index, none if it is too soon after the last ones.

        Args:
            look: returns the pictures `[h, w, 3]` uint8 by index; not called if it is too soon.
            among: the number of drawings that share the time for previews.
        """
        began = self._clock()
        if began < self._due:
            return {}
        files = {index: jpeg_of(Pillow.fromarray(picture)) for index, picture in look().items()}
        ended = self._clock()
        self._due = ended + max(PAUSE_S, (ended - began) * among / SHARE)
        return files


def jpeg_of(picture: Pillow.Image) -> bytes:
    """Return a picture as a small JPEG file, without its settings."""
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=QUALITY)
    return buffer.getvalue()


def small_jpeg_of(picture: Pillow.Image) -> bytes:
    """Return a finished picture as a JPEG file for its place among previews."""
    small = picture.copy()
    small.thumbnail((SIDE, SIDE))
    return jpeg_of(small)
