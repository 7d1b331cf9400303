"""The safety checker's input, the operator's own check, and the blurring of flagged pictures."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np
from PIL import Image

from pipeline.errors import ScreenError
from pipeline.models.clip_config import SafetyCheckerConfig

# Squares along a flagged picture's longer side; only their mean colours are left of the picture.
SQUARES = 6
# The operator's own check: it takes finished pictures, and returns for each whether to blur it.
Screen: TypeAlias = Callable[[list[Image.Image]], Iterable[bool]]


def prepare(images: Iterable[np.ndarray], config: SafetyCheckerConfig) -> np.ndarray:
    """Convert B pictures `[H, W, 3]` uint8 to `[B, S, S, 3]` uint8, as in CLIP's training.

    The shorter side is scaled by Pillow's bicubic filter, as CLIPImageProcessor in torch's
    diffusers does, and the middle is cut out.
    """
    return np.stack([_prepared(image, config) for image in images])


def _prepared(image: np.ndarray, config: SafetyCheckerConfig) -> np.ndarray:
    height, width = image.shape[:2]
    scale, shortest_side = config.shortest_edge, min(height, width)
    size = int(scale * width / shortest_side), int(scale * height / shortest_side)
    resized_image = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BICUBIC))
    side = config.vision.image_size
    left, top = ((length - side) // 2 for length in size)
    return resized_image[top : top + side, left : left + side]


def blur(image: np.ndarray) -> np.ndarray:
    """Blur a picture `[H, W, 3]` uint8 beyond recognition, in its own size and colours.

    The result depends only on the mean colours of a few squares, so it cannot be undone.
    """
    height, width = image.shape[:2]
    columns, rows = (max(1, round(SQUARES * n / max(height, width))) for n in (width, height))
    means = Image.fromarray(image).resize((columns, rows), Image.Resampling.BOX)
    return np.asarray(means.resize((width, height), Image.Resampling.BICUBIC))


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
