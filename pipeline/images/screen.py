"""An operator's own look at finished pictures."""

from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np
from PIL import Image

from pipeline.errors import ScreenError

# Given finished pictures, says of each whether it is to be blurred.
Screen: TypeAlias = Callable[[list[Image.Image]], Iterable[bool]]


def verdicts(screen: Screen, images: np.ndarray) -> list[bool]:
    """What it says of pictures `[B, H, W, 3]` uint8.

    Raises:
        ScreenError: it fails, or does not say one thing of each picture.
    """
    try:
        found = list(map(bool, screen([Image.fromarray(image) for image in images])))
    except Exception as error:  # whatever it raises, nothing passes
        raise ScreenError("the pictures could not be screened") from error
    if len(found) != len(images):
        raise ScreenError(f"the screening of {len(images)} pictures gave {len(found)} answers")
    return found
