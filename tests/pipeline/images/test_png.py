"""PNG files: Pillow can read them, and they are compared in size with Pillow's own files."""

import io
import zlib

import numpy as np
import pytest
from PIL import Image

from pipeline.images.png import encode_png, filtered

RNG = np.random.default_rng(1)
COLUMNS, ROWS = np.meshgrid(np.arange(120), np.arange(90))


def painted(red: np.ndarray, green: np.ndarray, blue: np.ndarray) -> np.ndarray:
    return np.stack([red, green, blue], axis=-1).astype(np.uint8)


PICTURES = {
    "noise": RNG.integers(0, 256, (90, 120, 3), dtype=np.uint8),
    "grain": np.clip(RNG.normal(128, 3, (90, 120, 3)), 0, 255).astype(np.uint8),
    "columns": painted(COLUMNS * 37, COLUMNS * 91, COLUMNS * 11),
    "rows": painted(ROWS * 37, ROWS * 91, ROWS * 11),
    "slope": painted(COLUMNS + ROWS, 2 * COLUMNS - ROWS, ROWS),
    "checks": painted(*[(COLUMNS // 8 + ROWS // 8) % 2 * 200] * 3),
}
EXTREMES = {
    "black": np.zeros((90, 120, 3), np.uint8),
    "black and white": RNG.choice(np.array([0, 255], np.uint8), (90, 120, 3)),
}


def decoded(png: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(png)) as image:
        assert (image.format, image.mode) == ("PNG", "RGB")
        return np.asarray(image)


@pytest.mark.parametrize("pixels", [*PICTURES.values(), *EXTREMES.values()])
def test_pixels_survive(pixels: np.ndarray) -> None:
    np.testing.assert_array_equal(decoded(encode_png(pixels)), pixels)


@pytest.mark.parametrize("name", PICTURES)
def test_files_are_no_larger_than_pillows(name: str) -> None:
    theirs = io.BytesIO()
    image = Image.fromarray(PICTURES[name])
    image.save(theirs, "PNG", compress_level=1, compress_type=zlib.Z_RLE)
    assert len(encode_png(PICTURES[name])) <= 1.01 * theirs.tell()


@pytest.mark.parametrize("height", [1, 2, 63, 64, 65, 129])
@pytest.mark.parametrize("width", [1, 2, 7])
def test_pixels_of_any_size_survive(height: int, width: int) -> None:
    pixels = RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)
    np.testing.assert_array_equal(decoded(encode_png(pixels)), pixels)


def test_every_filter_has_its_use() -> None:
    used = {int(kind) for pixels in PICTURES.values() for kind in filtered(pixels)[:, 0]}
    assert used == {1, 2, 3, 4}


def test_chunks_come_before_the_pixels_and_sums_are_right() -> None:
    png = encode_png(PICTURES["slope"], [(b"tEXt", b"parameters\0a dog")])
    assert png.index(b"IHDR") < png.index(b"tEXt") < png.index(b"IDAT") < png.index(b"IEND")
    with Image.open(io.BytesIO(png)) as image:
        image.verify()  # checks the chunks' checksums
    with Image.open(io.BytesIO(png)) as image:
        assert image.info == {"parameters": "a dog"}
