"""The operator's own check of finished pictures."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np
from PIL import Image

from pipeline.errors import ScreenError

# A function that takes finished pictures and returns for each whether to blur it.
Screen: TypeAlias = Callable[[list[Image.Image]], Iterable[bool]]


def verdicts(screen: Screen, images: Sequence[np.ndarray]) -> list[bool]:
    """Return the screen's verdict on each of the pictures `[H, W, 3]` uint8.

    Raises:
        ScreenError: if the screen fails, or does not return one verdict per picture.
    """
    try:
        answers = list(map(bool, screen([Image.fromarray(image) for image in images])))
    except Exception as error:  # after any error no picture may pass
        raise ScreenError("the pictures could not be screened") from error
    if len(answers) != len(images):
        raise ScreenError(f"the screening of {len(images)} pictures gave {len(answers)} answers")
    return answers
