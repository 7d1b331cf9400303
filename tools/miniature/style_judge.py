"""Measures of the styles that the miniature's LoRAs draw in, and that it does not know itself.

Plain image processing, like the judge of scenes. Each returns a number that is near zero, or below,
for pictures without the style.
"""

import numpy as np

from tools.miniature.judge import minus_background, reduced, side_columns, to_lab

_FAINT = (4.0, 25.0)  # least and largest difference of a halo from the background
_LIGHTER = 2.0  # a halo's least difference in lightness, so that shadows do not count
_END = 1 / 8  # of a picture's height: what counts as its top and as its bottom


def halo_share(picture: np.ndarray) -> float:
    """Return the share of a picture, uint8 [H, W, 3], a little lighter than its background."""
    unlike = minus_background(to_lab(reduced(picture)))
    distance = np.linalg.norm(unlike, axis=-1)
    faint = (distance > _FAINT[0]) & (distance < _FAINT[1])
    return float((faint & (unlike[..., 0] > _LIGHTER)).mean())


def light_from_below(picture: np.ndarray) -> float:
    """Return how much lighter the background is at the bottom of a picture, uint8 [H, W, 3].

    The unit is the difference between black and white.
    """
    lightness = side_columns(to_lab(reduced(picture)))[..., 0]
    end = round(_END * len(lightness))
    return float(np.median(lightness[-end:]) - np.median(lightness[:end])) / 100


# The measure of each style that has a LoRA.
MEASURES = {"dusk": light_from_below, "glow": halo_share}
