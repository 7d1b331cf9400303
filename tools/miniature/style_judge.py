"""Measures of the two styles that the miniature's LoRAs draw in, and that it does not know itself.

Plain image processing, like the judge of scenes. Each returns a number that is near zero for
pictures without the style.
"""

import numpy as np

from tools.miniature.judge import minus_background, reduced, to_lab

_WHITE = (80.0, 15.0)  # least lightness and largest chroma of a border that the VAE has blurred
_FAINT = (4.0, 25.0)  # least and largest difference of a halo from the background
_LIGHTER = 2.0  # a halo's least difference in lightness, so that shadows do not count


def white_share(picture: np.ndarray) -> float:
    """Return the share of a picture, uint8 [H, W, 3], that is white.

    A sticker's border is, so this measures it where the prompt names no white.
    """
    lab = to_lab(reduced(picture))
    lightness, chroma = lab[..., 0], np.hypot(lab[..., 1], lab[..., 2])
    return float(((lightness > _WHITE[0]) & (chroma < _WHITE[1])).mean())


def halo_share(picture: np.ndarray) -> float:
    """Return the share of a picture, uint8 [H, W, 3], a little lighter than its background."""
    unlike = minus_background(to_lab(reduced(picture)))
    distance = np.linalg.norm(unlike, axis=-1)
    faint = (distance > _FAINT[0]) & (distance < _FAINT[1])
    return float((faint & (unlike[..., 0] > _LIGHTER)).mean())
