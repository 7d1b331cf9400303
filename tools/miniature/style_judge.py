"""Measures of the two styles that the miniature's LoRAs draw in, and that it does not know itself.

Plain image processing, like the judge of scenes. Each returns a number that is near zero for
pictures without the style.
"""

import numpy as np

from tools.miniature.judge import reduced, to_lab

_WHITE = (80.0, 15.0)  # least lightness and largest chroma of a border that the VAE has blurred
_INNER = 0.3  # of the picture's width: rays are measured outside this radius


def white_share(picture: np.ndarray) -> float:
    """Return the share of a picture, uint8 [H, W, 3], that is white.

    A sticker's border is, so this measures it where the prompt names no white.
    """
    lab = to_lab(reduced(picture))
    lightness, chroma = lab[..., 0], np.hypot(lab[..., 1], lab[..., 2])
    return float(((lightness > _WHITE[0]) & (chroma < _WHITE[1])).mean())


def ray_contrast(picture: np.ndarray, rays: int) -> float:
    """Return how much rays and the gaps between them differ in lightness, L* from 0 to 100.

    Args:
        picture: uint8 [H, W, 3].
        rays: number of rays around the picture's centre.
    """
    lightness = to_lab(reduced(picture))[..., 0]
    offsets = (np.arange(len(lightness)) + 0.5) / len(lightness) - 0.5
    x, y = offsets[None, :], offsets[:, None]
    outside = np.hypot(x, y) > _INNER
    is_ray = np.cos(rays * np.arctan2(y, x)) < 0
    # Without the slope of the background from top to bottom.
    level = lightness - np.median(lightness, axis=1, keepdims=True)
    return float(abs(level[outside & is_ray].mean() - level[outside & ~is_ray].mean()))
