"""The safety checker's input, and the blurring of pictures that it flags."""

import numpy as np
from PIL import Image

from pipeline.models.clip_config import SafetyCheckerConfig

# Squares along a flagged picture's longer side; only their mean colours are left of the picture.
SQUARES = 6


def prepare(images: np.ndarray, config: SafetyCheckerConfig) -> np.ndarray:
    """Convert pictures `[B, H, W, 3]` uint8 to `[B, S, S, 3]` uint8, as in CLIP's training.

    The shorter side is scaled by Pillow's bicubic filter, as CLIPImageProcessor in torch's
    diffusers does, and the middle is cut out.
    """
    height, width = images.shape[1:3]
    scale, short = config.shortest_edge, min(height, width)
    size = int(scale * width / short), int(scale * height / short)
    scaled = [
        np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BICUBIC))
        for image in images
    ]
    side = config.vision.image_size
    left, top = ((length - side) // 2 for length in size)
    return np.stack(scaled)[:, top : top + side, left : left + side]


def blur(image: np.ndarray) -> np.ndarray:
    """Blur a picture `[H, W, 3]` uint8 beyond recognition, in its own size and colours.

    The result depends only on the mean colours of a few squares, so it cannot be undone.
    """
    height, width = image.shape[:2]
    columns, rows = (max(1, round(SQUARES * n / max(height, width))) for n in (width, height))
    means = Image.fromarray(image).resize((columns, rows), Image.Resampling.BOX)
    return np.asarray(means.resize((width, height), Image.Resampling.BICUBIC))
