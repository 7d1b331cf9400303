"""Pictures and masks of requests, as arrays."""

from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline.errors import InputError
from pipeline.images import inputs

PIXELS = np.random.default_rng(0).uniform(size=(12, 20, 3)).astype(np.float32)


def picture(mode: str, colour: Any) -> Image.Image:
    return Image.new(mode, (3, 2), colour)


@pytest.mark.parametrize(
    ("image", "colour"),
    [
        (picture("RGB", (255, 0, 51)), (1, 0, 0.2)),
        (picture("L", 51), (0.2, 0.2, 0.2)),
        (picture("1", 1), (1, 1, 1)),
        (picture("CMYK", (0, 255, 255, 0)), (1, 0, 0)),
        (picture("RGBA", (255, 0, 0, 255)), (1, 0, 0)),
        (picture("RGBA", (255, 0, 0, 0)), (1, 1, 1)),
        (picture("RGBA", (255, 0, 0, 51)), (1, 0.8, 0.8)),
        (picture("LA", (0, 0)), (1, 1, 1)),
    ],
)
def test_pictures_of_any_mode(image: Image.Image, colour: tuple[float, ...]) -> None:
    found = inputs.read_image(image)
    assert (found.shape, found.dtype) == ((2, 3, 3), np.float32)
    np.testing.assert_allclose(found, np.broadcast_to(colour, (2, 3, 3)), atol=1e-6)


def test_arrays_are_taken_as_they_are() -> None:
    assert inputs.read_image(PIXELS) is PIXELS


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("a.png", "image is of type str; expected a PIL picture or"),
        (PIXELS[..., :1], r"image has the shape \[12, 20, 1\]; expected .* 3\] float32 in 0..1"),
        (PIXELS[0], r"image has the shape \[20, 3\]"),
        (PIXELS[:0], r"image has the shape \[0, 20, 3\]"),
        (PIXELS.astype(np.float64), "image is float64"),
        (PIXELS * 255, "image has values from .* to 2[0-9]+"),
        (PIXELS * np.nan, "image has values from nan to nan"),
    ],
)
def test_other_pictures_are_refused(image: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        inputs.read_image(image)


def test_masks_are_rounded_to_black_and_white() -> None:
    values = np.array([[0, 0.4, 0.5, 1]], np.float32)
    right = [[0, 0, 1, 1]]
    assert inputs.read_mask(values).tolist() == right
    grey = Image.fromarray(np.array([[0, 127, 128, 255]], np.uint8))
    assert inputs.read_mask(grey).tolist() == right
    assert inputs.read_mask(grey.convert("RGB")).tolist() == right
    with pytest.raises(InputError, match=r"mask has the shape \[1, 4, 1\]; expected .*, width\]"):
        inputs.read_mask(values[..., None])


def test_transparent_pixels_are_redrawn() -> None:
    image = Image.fromarray(np.array([[[9, 9, 9, 0], [9, 9, 9, 255]]], np.uint8))
    found = inputs.transparent_mask(image)
    assert found is not None
    assert inputs.read_mask(found).tolist() == [[1, 0]]
    assert inputs.transparent_mask(image.convert("RGB")) is None


def test_unknown_pixels_get_the_colours_around_them() -> None:
    pixels = np.array([[[10] * 3, [99] * 3, [99] * 3, [20] * 3]], np.uint8)
    mask = np.array([[False, True, True, False]])
    assert inputs.spread(pixels, mask)[0, :, 0].tolist() == [10, 10, 20, 20]
    assert inputs.spread(pixels, np.ones_like(mask)).tolist() == pixels.tolist()


def test_a_picture_of_another_shape_is_cut_in_the_middle() -> None:
    for height, width in ((12, 20), (24, 40), (12, 12), (6, 20), (5, 3)):
        found = inputs.fitted(PIXELS, height, width)
        assert (found.shape, found.dtype) == ((height, width, 3), np.float32)
        assert 0 <= found.min() <= found.max() <= 1
    np.testing.assert_array_equal(inputs.fitted(PIXELS, 12, 12), PIXELS[:, 4:16])
    ramp = np.broadcast_to(np.linspace(0, 1, 40, dtype=np.float32)[None, :, None], (20, 40, 3))
    assert np.diff(inputs.fitted(ramp, 10, 20)[5, 2:-2, 0]).min() > 0


def test_a_mask_fits_its_picture_and_stays_black_and_white() -> None:
    mask = np.zeros((12, 20), np.float32)
    mask[3:9, 10:16] = 1
    found = inputs.fitted(mask, 24, 24)
    assert {*np.unique(found)} == {0, 1}
    np.testing.assert_array_equal(found[::2, ::2], mask[:, 4:16])


def test_the_masked_part_is_grey_for_the_network() -> None:
    mask = np.zeros((12, 20), np.float32)
    mask[:4] = 1
    found = inputs.masked(PIXELS, mask)
    assert found.dtype == np.float32
    assert (found[:4] == 0.5).all()
    np.testing.assert_array_equal(found[4:], PIXELS[4:])
    assert inputs.latent_mask(mask, 4)[..., 0].tolist() == [[1] * 5, [0] * 5, [0] * 5]
