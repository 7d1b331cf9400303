"""Previews of unfinished pictures, within a small share of the time that drawing takes."""

import io
import time
from collections.abc import Callable

import numpy as np
from PIL import Image as Pillow

# Previews take at most SHARE of the devices' time, and are at least PAUSE_S seconds apart.
SHARE = 0.02
PAUSE_S = 0.25
QUALITY = 85


class Previews:
    """Previews of one request, limited in time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = clock()

    def make(self, decode: Callable[[], np.ndarray]) -> tuple[bytes, ...]:
        """Return previews as JPEG files, or () if it is too soon after the last ones.

        Args:
            decode: returns the pictures, `[images, h, w, 3]` uint8; not called if it is too soon.
        """
        began = self._clock()
        if began < self._due:
            return ()
        files = tuple(jpeg_of(Pillow.fromarray(picture)) for picture in decode())
        ended = self._clock()
        self._due = ended + max(PAUSE_S, (ended - began) / SHARE)
        return files


def jpeg_of(picture: Pillow.Image) -> bytes:
    """Return a picture as a small JPEG file, without its settings."""
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=QUALITY)
    return buffer.getvalue()
