"""EXIF blocks in pictures, read in bounded memory and time.

Only the entries that are asked for are read. Pillow copies the data of all of them, and several may
claim the same bytes: a block of half a megabyte takes it a gigabyte.

Sources:
    EXIF, section 4.6: https://www.cipa.jp/std/documents/e/DC-X008-Translation-2019-E.pdf
    TIFF, section 2, which EXIF is: https://www.itu.int/itudoc/itu-t/com16/tiff-fx/docs/tiff6.pdf
"""

import struct
from collections.abc import Iterable

from pipeline.errors import PictureError, TooLargeError
from pipeline.images.containers import Kind, Part, cut

MAX_ENTRIES = 1000  # of a directory; cameras write fewer than 100

# The parts of files with an EXIF block, and the mark that precedes it there.
_PARTS: dict[Kind, bytes] = {"PNG": b"eXIf", "JPEG": b"\xe1", "WEBP": b"EXIF"}
_MARK = b"Exif\0\0"
_ORIENTATION, _EXIF_DIRECTORY, _USER_COMMENT = 0x0112, 0x8769, 0x9286  # tags
# The texts that are read: the user comment, and the model and the make of a camera, in which
# ComfyUI writes others.
_TEXTS = ((_EXIF_DIRECTORY, _USER_COMMENT), (0x0110,), (0x010F,))
_BYTE, _ASCII, _SHORT, _UNDEFINED = 1, 2, 3, 7  # types of an entry's value
_INLINE = 4  # bytes of a value in its entry; a longer one is elsewhere


def find(kind: Kind, parts: Iterable[Part]) -> memoryview | None:
    """Return the TIFF structure in the first EXIF block of a file; None where there is none.

    Args:
        kind: the file's format.
        parts: all its chunks or segments.
    """
    for part in parts:
        is_marked = part.data[: len(_MARK)] == _MARK
        # Only in JPEG files, other data can be in the same kind of part.
        if part.kind == _PARTS[kind] and (is_marked or kind != "JPEG"):
            return part.data[len(_MARK) :] if is_marked else part.data
    return None


def orientation(block: memoryview) -> int:
    """Return how a picture has to be turned, 1 to 8 as in the standard; 1 means not at all.

    Raises:
        PictureError: if the block is damaged.
        TooLargeError: if it is over a limit.
    """
    order, kind, _, value = _entry(block, _ORIENTATION)
    (number,) = struct.unpack(f"{order}H", value[:2]) if kind == _SHORT else (1,)
    return number


def texts(block: memoryview, limit: int) -> list[bytes]:
    """Return the user comment, the camera's model and its make; b"" for each that is not there.

    Raises:
        PictureError: if the block is damaged.
        TooLargeError: if it is over a limit, or a text has more than `limit` bytes.
    """
    return [_text(block, limit, *tags) for tags in _TEXTS]


def _text(block: memoryview, limit: int, *tags: int) -> bytes:
    order, kind, size, value = _entry(block, *tags)
    if kind not in (_BYTE, _ASCII, _UNDEFINED):
        return b""
    if size > limit:
        raise TooLargeError(f"a text in its EXIF block is longer than {limit} bytes")
    if size <= _INLINE:
        return value[:size]
    (at,) = struct.unpack(f"{order}I", value)
    return bytes(cut(block, at, size))


def _entry(block: memoryview, *tags: int) -> tuple[str, int, int, bytes]:
    """Return the last entry with a tag, in the directory that the tags before it lead to.

    Returns:
        The order of bytes, as `struct` writes it, the type, the count, and the 4 bytes that are the
        value itself or its offset. The type is 0 if there is no such entry.
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(bytes(block[:4]))
    if order is None:
        raise PictureError("its EXIF block has no header")
    kind, size, value = 0, 0, bytes(cut(block, 4, 4))
    for tag in tags:
        (at,) = struct.unpack(f"{order}I", value)
        (count,) = struct.unpack(f"{order}H", cut(block, at, 2))
        if count > MAX_ENTRIES:
            raise TooLargeError(f"a directory in its EXIF block has over {MAX_ENTRIES} entries")
        entries = struct.iter_unpack(f"{order}HHI4s", cut(block, at + 2, 12 * count))
        matches = [fields for number, *fields in entries if number == tag]
        if not matches:
            return order, 0, 0, b""
        kind, size, value = matches[-1]
    return order, kind, size, value
