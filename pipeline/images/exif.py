"""EXIF blocks in pictures, read in bounded memory and time.

Sources:
    EXIF, section 4.6: https://www.cipa.jp/std/documents/e/DC-X008-Translation-2019-E.pdf
    TIFF, section 2, which EXIF is: https://www.itu.int/itudoc/itu-t/com16/tiff-fx/docs/tiff6.pdf
"""

import struct
from collections.abc import Iterable

from pipeline.errors import PictureError, TooLargeError
from pipeline.images.containers import Kind, Part, Span

MAX_ENTRIES = 1000  # of a directory; cameras write fewer than 100

# The parts of files with an EXIF block, and the mark that precedes it there.
_PARTS: dict[Kind, bytes] = {"PNG": b"eXIf", "JPEG": b"\xe1", "WEBP": b"EXIF"}
_MARK = b"Exif\0\0"
_ORIENTATION, _SHORT = 0x0112, 3  # a tag, and the type of its value
_ORIENTATIONS = range(1, 9)


def find(kind: Kind, parts: Iterable[Part]) -> Span | None:
    """Return the TIFF structure in the first EXIF block of a file; None where there is none.

    Args:
        kind: the file's format.
        parts: all its chunks or segments.
    """
    block: Span | None = None
    for part in parts:
        if part.kind == _PARTS[kind] and block is None:
            # Only in JPEG files, other data can be in the same kind of part.
            block = _without_mark(part.data) or (None if kind == "JPEG" else part.data)
    return block


def _without_mark(data: Span) -> Span | None:
    size = len(_MARK)
    if data.size < size or data.read(0, size) != _MARK:
        return None
    return data.part(size, data.size - size)


def orientation(block: Span) -> int:
    """Return how a picture has to be turned, 1 to 8 as in the standard; 1 means not at all.

    Raises:
        PictureError: if the block is damaged.
        TooLargeError: if it is over a limit.
    """
    order, at = header(block)
    kind, _, value = entry(block, at, order, _ORIENTATION)
    (number,) = struct.unpack(f"{order}H", value[:2]) if kind == _SHORT else (1,)
    return number if number in _ORIENTATIONS else 1


def header(block: Span) -> tuple[str, int]:
    """Return the order of bytes, as `struct` writes it, and the offset of the first directory.

    Raises:
        PictureError: if there is no header.
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(block.read(0, 4))
    if order is None:
        raise PictureError("its EXIF block has no header")
    return order, offset(block.read(4, 4), order)


def offset(value: bytes, order: str) -> int:
    """Return the offset in an entry's 4 bytes."""
    (at,) = struct.unpack(f"{order}I", value)
    return at


def entry(block: Span, at: int, order: str, tag: int) -> tuple[int, int, bytes]:
    """Return the type, the count and the 4 bytes of a directory's last entry with this tag.

    The type is 0 if there is no such entry. The 4 bytes are the value itself or its offset.

    Raises:
        PictureError: if the directory is cut off.
        TooLargeError: if it has too many entries.
    """
    (count,) = struct.unpack(f"{order}H", block.read(at, 2))
    if count > MAX_ENTRIES:
        raise TooLargeError(f"a directory in its EXIF block has more than {MAX_ENTRIES} entries")
    fields = (0, 0, b"")
    for entry_tag, *rest in struct.iter_unpack(f"{order}HHI4s", block.read(at + 2, 12 * count)):
        if entry_tag == tag:
            fields = rest[0], rest[1], rest[2]
    return fields
