"""PNG files: their pixels survive, their texts come first, and they are as small as can be."""

import io

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from pipeline.images.png import encode_png

RNG = np.random.default_rng(1)
COLUMNS, ROWS = np.meshgrid(np.arange(120), np.arange(90))
GRAIN = np.clip(RNG.normal(128, 3, (90, 120, 3)), 0, 255).astype(np.uint8)
SLOPE = np.stack([COLUMNS + ROWS, 2 * COLUMNS - ROWS, ROWS], axis=-1).astype(np.uint8)


@pytest.mark.parametrize("pixels", [GRAIN, SLOPE, GRAIN[:1], GRAIN[:, :1]])
def test_pixels_survive(pixels: np.ndarray) -> None:
    with Image.open(io.BytesIO(encode_png(pixels))) as image:
        assert (image.format, image.mode) == ("PNG", "RGB")
        np.testing.assert_array_equal(np.asarray(image), pixels)


def test_files_are_no_larger_than_pillows() -> None:
    theirs = io.BytesIO()
    Image.fromarray(GRAIN).save(theirs, "PNG")
    assert len(encode_png(GRAIN)) <= theirs.tell()


def test_texts_come_before_the_pixels_and_sums_are_right() -> None:
    info = PngInfo()
    info.add_text("parameters", "a dog")
    png = encode_png(SLOPE, info)
    assert png.index(b"IHDR") < png.index(b"tEXt") < png.index(b"IDAT") < png.index(b"IEND")
    with Image.open(io.BytesIO(png)) as image:
        image.verify()  # checks the chunks' checksums
    with Image.open(io.BytesIO(png)) as image:
        assert image.info == {"parameters": "a dog"}
