"""Previews of a run: small pictures, by a linear map from latents to colours.

A latent pixel determines the average colour of its part of the picture to a good approximation. A
matrix and an offset per checkpoint therefore replace the VAE's decoder, without detail. They are
fitted to that decoder at startup. A tiny VAE, where there is one, draws previews in their place.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# Side of the random patches, in latent pixels. The fit is best with patches of this side, because
# pictures are not made of single latent pixels.
_PATCH = 2


@dataclass(frozen=True)
class Colours:
    """The linear map from latents `[C]` to colours in 0..1: `latents @ matrix + offset`.

    Attributes:
        matrix: `[C, 3]` float32.
        offset: `[3]` float32.
    """

    matrix: np.ndarray
    offset: np.ndarray

    def of(self, latents: np.ndarray) -> np.ndarray:
        """Convert latents `[..., C]` without noise to colours `[..., 3]` uint8."""
        values = np.clip(latents @ self.matrix + self.offset, 0, 1)
        return np.round(values * 255).astype(np.uint8)


def fit(decode: Callable[[np.ndarray], np.ndarray], shape: tuple[int, int, int, int]) -> Colours:
    """Fit the map to the pictures that `decode` returns for random patches.

    Args:
        decode: decodes latents `[B, h, w, C]` float32 to pictures `[B, H, W, 3]` float32 in 0..1.
        shape: the shape of the latents, `(B, h, w, C)`.
    """
    latents = _patches(shape)
    pictures = _shrunk(decode(latents), latents.shape[1:3])
    features = np.concatenate([latents, np.ones_like(latents[..., :1])], axis=-1)
    coefficients = np.linalg.lstsq(
        features.reshape(-1, features.shape[-1]), pictures.reshape(-1, 3), rcond=None
    )[0].astype(np.float32)
    return Colours(matrix=coefficients[:-1], offset=coefficients[-1])


def _patches(shape: tuple[int, int, int, int]) -> np.ndarray:
    """Return random latents with the distribution of pictures' latents, but without content."""
    count, height, width, channels = shape
    rows, columns = (-(-side // _PATCH) for side in (height, width))
    noise = np.random.default_rng(0).normal(size=(count, rows, columns, channels))
    patches = noise.repeat(_PATCH, axis=1).repeat(_PATCH, axis=2)
    return patches[:, :height, :width].astype(np.float32)


def _shrunk(pictures: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """Shrink pictures `[B, H, W, 3]` to `[B, h, w, 3]`, the mean of each part."""
    (height, width), count = size, len(pictures)
    parts = pictures.reshape(count, height, -1, width, pictures.shape[2] // width, 3)
    return parts.mean(axis=(2, 4))
