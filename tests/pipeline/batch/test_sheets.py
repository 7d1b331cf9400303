"""Contact sheets show every picture over its number, and are made again only if need be."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline.batch import sheets
from pipeline.batch.prompts import Batch, read_batch
from pipeline.batch.sheets import TILE, write_sheets


@pytest.fixture
def batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Batch:
    """Return a batch of five pictures on sheets of up to four, all red but for the last."""
    monkeypatch.setattr(sheets, "COLUMNS", 2)
    monkeypatch.setattr(sheets, "ROWS", 2)
    (tmp_path / "list.txt").write_text("a star\n" * 5)
    found = read_batch(tmp_path / "list.txt", {})
    for item in found.items:
        colour = "blue" if item.index == 4 else "red"
        Image.new("RGB", (64, 32), colour).save(tmp_path / item.name)
    return found


def centre(sheet: Path, column: int, row: int) -> tuple[int, ...]:
    with Image.open(sheet) as image:
        pixels = np.asarray(image).astype(int)
    top = 4 + row * (TILE + 24) + TILE // 2
    left = 4 + column * (TILE + 4) + TILE // 2
    return tuple(pixels[top, left] // 64)


def test_the_pictures_are_in_order(tmp_path: Path, batch: Batch):
    found = write_sheets(tmp_path, batch.items, {0, 1, 3, 4})
    assert [file.name for file in found] == [f"contact-sheet-{n:06}.jpg" for n in (0, 4)]
    first, second = found
    assert [centre(first, *place) for place in ((0, 0), (1, 0), (1, 1))] == [(3, 0, 0)] * 3
    assert centre(first, 0, 1) == (3, 3, 3)  # grey for a picture that failed
    assert centre(second, 0, 0) == (0, 0, 3)
    with Image.open(first) as image:
        assert image.size == (2 * (TILE + 4) + 4, 2 * (TILE + 24) + 4)
        number = np.asarray(image.convert("L"))[4 + TILE : 4 + TILE + 20]
        assert number.min() < 64  # black letters
        assert not np.array_equal(number[:, :TILE], number[:, TILE + 4 : -4])


def test_only_sheets_of_new_pictures_are_made_again(tmp_path: Path, batch: Batch):
    drawn = {0, 1, 2, 3, 4}
    for item in batch.items:
        os.utime(tmp_path / item.name, (1, 1))
    made = [file.stat().st_ino for file in write_sheets(tmp_path, batch.items, drawn)]
    again = [file.stat().st_ino for file in write_sheets(tmp_path, batch.items, drawn)]
    assert again == made
    Image.new("RGB", (64, 32), "blue").save(tmp_path / batch.items[1].name)
    future = (tmp_path / "contact-sheet-000000.jpg").stat().st_mtime + 1
    os.utime(tmp_path / batch.items[1].name, (future, future))
    first, second = write_sheets(tmp_path, batch.items, drawn)
    assert centre(first, 1, 0) == (0, 0, 3)
    assert second.stat().st_ino == made[1]
