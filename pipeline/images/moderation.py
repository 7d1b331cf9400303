"""What the safety checker is given of a picture, and what is shown of one that it flags."""

import numpy as np
from PIL import Image

from pipeline.models.clip_config import SafetyCheckerConfig

# Of a flagged picture, only the mean colours of so many squares along its longer side are left.
SQUARES = 6


def prepare(images: np.ndarray, config: SafetyCheckerConfig) -> np.ndarray:
    """Pictures `[B, H, W, 3]` uint8 -> `[B, S, S, 3]` uint8, as CLIP saw them in training.

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
    """A picture `[H, W, 3]` uint8 of which nothing can be recognised, in its own size and colours.

    The result depends on the mean colours of a few squares alone, so nothing can bring back more.
    """
    height, width = image.shape[:2]
    columns, rows = (max(1, round(SQUARES * n / max(height, width))) for n in (width, height))
    means = Image.fromarray(image).resize((columns, rows), Image.Resampling.BOX)
    return np.asarray(means.resize((width, height), Image.Resampling.BICUBIC))
