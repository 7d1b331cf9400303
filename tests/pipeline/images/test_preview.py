"""Colours from latents: the fit to a decoder, and the previews of a run."""

import numpy as np
import pytest

from pipeline.images import preview
from tests.checkpoints import miniature

SHAPE = (2, 8, 6, 4)
MATRIX = np.array([[0.1, 0, 0], [0, 0.05, 0.02], [0.03, 0, -0.1], [0, -0.06, 0]], np.float32)


def decoder(latents: np.ndarray) -> np.ndarray:
    """Decode latents to colours at eight times the size, with detail of mean zero."""
    colours = (latents @ MATRIX + 0.5).repeat(8, axis=1).repeat(8, axis=2)
    checks = 0.1 * (-1.0) ** np.indices(colours.shape[1:3]).sum(axis=0)
    return (colours + checks[..., None]).astype(np.float32)


def test_a_linear_decoder_is_found() -> None:
    colours = preview.fit(decoder, SHAPE)
    np.testing.assert_allclose(colours.matrix, MATRIX, atol=1e-5)
    np.testing.assert_allclose(colours.offset, 0.5, atol=1e-5)


def test_colours_are_levels_of_any_latents() -> None:
    colours = preview.Colours(MATRIX, np.full(3, 0.5, np.float32))
    latents = np.zeros((2, 3, 4), np.float32)
    latents[0, 0] = (1, 0, 0, 0)
    latents[0, 1] = (1e30, -1e30, 0, 1e30)
    found = colours.of(latents)
    assert (found.shape, found.dtype) == ((2, 3, 3), np.uint8)
    assert found[0, 0].tolist() == [153, 128, 128]
    assert found[0, 1].tolist() == [255, 0, 0]


def test_sizes_that_are_no_multiple_of_a_patch() -> None:
    colours = preview.fit(decoder, (1, 7, 9, 4))
    np.testing.assert_allclose(colours.matrix, MATRIX, atol=1e-5)


@pytest.mark.slow
def test_previews_of_the_miniature_look_like_its_pictures() -> None:
    looks: list[np.ndarray] = []
    result = miniature().generate(
        ["a large red star on a blue background", "a small yellow moon on a white background"],
        seed=7,
        images=2,
        output_type="np",
        on_preview=lambda look: looks.append(look()),
    )
    small = np.array([_means(picture, looks[-1].shape[1:3]) for picture in result.images])
    off = np.abs(looks[-1] / 255 - small).mean()
    assert off < 0.1
    assert np.abs(looks[0] / 255 - small).mean() > 2 * off  # the first one shows little yet


def _means(picture: np.ndarray, sides: tuple[int, int]) -> np.ndarray:
    """Divide a picture `[H, W, 3]` into `sides` tiles; return their mean colours."""
    height, width = sides
    rows, columns = picture.shape[0] // height, picture.shape[1] // width
    return picture.reshape(height, rows, width, columns, 3).mean((1, 3))
