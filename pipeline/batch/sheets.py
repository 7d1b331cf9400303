"""Contact sheets: small versions of a batch's pictures with their numbers, up to 100 on each."""

import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from pipeline.batch.prompts import Item
from pipeline.images.files import write_durably

COLUMNS, ROWS = 10, 10
TILE = 160  # pixels
_TEXT, _GAP = 20, 4
_SIZE = 14  # of the letters
_QUALITY = 85


def write_sheets(folder: Path, items: Sequence[Item], drawn_indices: set[int]) -> list[Path]:
    """Write the contact sheets of a batch, and return their files.

    A sheet that is newer than all its pictures is kept.

    Args:
        folder: the folder of the pictures.
        items: all pictures of the batch, by index.
        drawn_indices: the indices of those that have files; the others' places stay grey.

    Raises:
        OSError: if a file cannot be read or written.
    """
    sheets: list[Path] = []
    for first in range(0, len(items), COLUMNS * ROWS):
        part = items[first : first + COLUMNS * ROWS]
        sheet = folder / f"contact-sheet-{first:06}.jpg"
        files = [folder / item.name if item.index in drawn_indices else None for item in part]
        if not _is_newer(sheet, [file for file in files if file is not None]):
            jpeg = io.BytesIO()
            _drawn(part, files).save(jpeg, "JPEG", quality=_QUALITY)
            write_durably(sheet, jpeg.getvalue())
        sheets.append(sheet)
    return sheets


def _is_newer(sheet: Path, files: Sequence[Path]) -> bool:
    if not sheet.exists():
        return False
    sheet_time = sheet.stat().st_mtime_ns
    return all(file.stat().st_mtime_ns < sheet_time for file in files)


def _drawn(items: Sequence[Item], files: Sequence[Path | None]) -> Image.Image:
    rows = -(-len(items) // COLUMNS)
    columns = min(COLUMNS, len(items))
    width, height = columns * (TILE + _GAP) + _GAP, rows * (TILE + _TEXT + _GAP) + _GAP
    sheet = Image.new("RGB", (width, height), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(_SIZE)
    for place, (item, file) in enumerate(zip(items, files, strict=True)):
        row, column = divmod(place, COLUMNS)
        left, top = _GAP + column * (TILE + _GAP), _GAP + row * (TILE + _TEXT + _GAP)
        sheet.paste(_tile(file), (left, top))
        pen.text((left + TILE // 2, top + TILE + 2), f"{item.index:06}", "black", font, "ma")
    return sheet


def _tile(file: Path | None) -> Image.Image:
    if file is None:
        return Image.new("RGB", (TILE, TILE), "lightgrey")
    with Image.open(file, formats=["PNG"]) as image:
        return ImageOps.pad(image.convert("RGB"), (TILE, TILE), color="white")
