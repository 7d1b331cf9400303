"""Previews of pictures in the making, within a small share of the time that drawing takes."""

import io
import time
from collections.abc import Callable

import numpy as np
from PIL import Image as Pillow

# Previews take at most this share of the devices' time, and come no more often than eyes follow.
SHARE = 0.02
PAUSE_S = 0.25
QUALITY = 85


class Previews:
    """The previews of one request."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = clock()

    def make(self, look: Callable[[], np.ndarray]) -> tuple[bytes, ...]:
        """JPEG files of the pictures `[images, h, w, 3]` uint8 that `look` gives; none if too soon.

        Without a call of `look` when it is too soon.
        """
        began = self._clock()
        if began < self._due:
            return ()
        files = tuple(_jpeg(picture) for picture in look())
        ended = self._clock()
        self._due = ended + max(PAUSE_S, (ended - began) / SHARE)
        return files


def _jpeg(picture: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Pillow.fromarray(picture).save(buffer, format="JPEG", quality=QUALITY)
    return buffer.getvalue()
