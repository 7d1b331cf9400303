"""How the pictures of a run look so far: small ones, by a linear map from latents to colours.

To a good approximation a latent pixel tells the average colour of its part of the picture, so a
matrix and an offset per checkpoint do what the VAE's decoder does, but for detail. They are fitted
to that decoder at startup.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# The fit is best on patches of so many latent pixels; pictures are not made of single ones.
_PATCH = 2


@dataclass(frozen=True)
class Colours:
    """The colour that latents `[C]` stand for: `latents @ matrix + offset`, in 0..1.

    Attributes:
        matrix: `[C, 3]` float32.
        offset: `[3]` float32.
    """

    matrix: np.ndarray
    offset: np.ndarray

    def of(self, latents: np.ndarray) -> np.ndarray:
        """Latents `[..., C]` as they are without noise, to colours `[..., 3]` uint8."""
        levels = np.clip(latents @ self.matrix + self.offset, 0, 1)
        return np.round(levels * 255).astype(np.uint8)


def fit(decode: Callable[[np.ndarray], np.ndarray], shape: tuple[int, int, int, int]) -> Colours:
    """The colours that come closest to what `decode` makes of random patches.

    Args:
        decode: from latents `[B, h, w, C]` float32 to pictures `[B, H, W, 3]` float32 in 0..1.
        shape: `(B, h, w, C)`.
    """
    latents = _patches(shape)
    pictures = _shrunk(decode(latents), latents.shape[1:3])
    known = np.concatenate([latents, np.ones_like(latents[..., :1])], axis=-1)
    found = np.linalg.lstsq(
        known.reshape(-1, known.shape[-1]), pictures.reshape(-1, 3), rcond=None
    )[0].astype(np.float32)
    return Colours(matrix=found[:-1], offset=found[-1])


def _patches(shape: tuple[int, int, int, int]) -> np.ndarray:
    """Normally distributed like the latents of pictures, but for what the pictures show."""
    count, height, width, channels = shape
    rows, columns = (-(-side // _PATCH) for side in (height, width))
    drawn = np.random.default_rng(0).normal(size=(count, rows, columns, channels))
    patches = drawn.repeat(_PATCH, axis=1).repeat(_PATCH, axis=2)
    return patches[:, :height, :width].astype(np.float32)


def _shrunk(pictures: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """`[B, H, W, 3] -> [B, h, w, 3]`, the mean of each part."""
    (height, width), count = size, len(pictures)
    parts = pictures.reshape(count, height, -1, width, pictures.shape[2] // width, 3)
    return parts.mean(axis=(2, 4))
