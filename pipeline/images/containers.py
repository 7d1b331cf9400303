"""The structure of PNG, JPEG and WebP files, walked in bounded memory and time.

A file is at most `MAX_FILE_BYTES` long, and has at most `MAX_PARTS` chunks or segments, of which
nothing is copied. Pillow alone bounds neither their number nor, in a JPEG file, what it makes of an
EXIF block when it is opened: with entries that claim the same bytes, 10 MB become 5 GB. So it gets
only the parts that a picture needs.

Sources:
    PNG, sections 5 and 11: https://www.w3.org/TR/png-3/
    JPEG, annex B: https://www.w3.org/Graphics/JPEG/itu-t81.pdf
    WebP: https://developers.google.com/speed/webp/docs/riff_container
"""

import struct
from collections.abc import Iterator
from typing import BinaryIO, Literal, NamedTuple

from pipeline.errors import PictureError, TooLargeError

MAX_FILE_BYTES = 64 * 2**20
MAX_PARTS = 10_000  # chunks of a PNG or WebP, segments of a JPEG

Kind = Literal["PNG", "JPEG", "WEBP"]
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_HEADER = b"\0\0\0\rIHDR"  # the length and the type of the first chunk
_JPEG = b"\xff\xd8\xff"
# Bytes of the markers without a length: TEM and RST, and that of a fill byte before a marker.
_ALONE = {0xFF: 1, 0x01: 2, **dict.fromkeys(range(0xD0, 0xD8), 2)}
_EOI, _SOS = 0xD9, 0xDA


class Part(NamedTuple):
    """A chunk of a PNG or WebP file, or a segment of a JPEG file.

    `kind`: the chunk's type, or the segment's marker.
    `whole`: all its bytes, with its length and, in a PNG file, its checksum.
    `data`: its contents.
    """

    kind: bytes
    whole: memoryview
    data: memoryview


def read_content(file: BinaryIO) -> tuple[Kind, memoryview]:
    """Return the format of a file, by its first bytes, and all its bytes.

    Raises:
        PictureError: if it is not a picture in a known format.
        TooLargeError: if the file is too large.
        OSError: if the file cannot be read.
    """
    content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise TooLargeError(f"larger than {MAX_FILE_BYTES} bytes")
    if content.startswith(PNG_SIGNATURE):
        return "PNG", memoryview(content)
    if content.startswith(_JPEG):
        return "JPEG", memoryview(content)
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return "WEBP", memoryview(content)
    raise PictureError("it is not a PNG, JPEG or WebP file")


def walk(kind: Kind, content: memoryview) -> Iterator[Part]:
    """Yield the chunks or segments of a file; see `png_chunks` and its neighbours.

    Raises:
        PictureError: if the file is damaged.
        TooLargeError: if the file has too many of them.
    """
    walkers = {"PNG": png_chunks, "JPEG": jpeg_segments, "WEBP": webp_chunks}
    for number, part in enumerate(walkers[kind](content)):
        if number == MAX_PARTS:
            raise TooLargeError(f"it has more than {MAX_PARTS} chunks or segments")
        yield part


def cut(content: memoryview, at: int, size: int) -> memoryview:
    """Return `size` bytes at an offset.

    Raises:
        PictureError: if they are not all there.
    """
    if size < 0 or at + size > len(content):
        raise PictureError("it is cut off, or a length in it is wrong")
    return content[at : at + size]


def png_chunks(content: memoryview) -> Iterator[Part]:
    """Yield the chunks of a PNG file, its header first and without the one that ends it."""
    at = len(PNG_SIGNATURE)
    if cut(content, at, 8) != _PNG_HEADER:
        raise PictureError("its first chunk is not a header")
    while (kind := bytes(cut(content, at + 4, 4))) != b"IEND":
        (length,) = struct.unpack_from(">I", content, at)
        whole = cut(content, at, 12 + length)  # length, kind, data, checksum
        yield Part(kind, whole, whole[8:-4])
        at += len(whole)


def jpeg_segments(content: memoryview) -> Iterator[Part]:
    """Yield the segments of a JPEG file.

    The last one has everything from the first scan on, or from the end of a file without scans.
    """
    at, marker = 2, 0
    while marker not in (_SOS, _EOI):
        start, marker = cut(content, at, 2)
        if start != 0xFF or marker == 0:
            raise PictureError(f"there is no marker at byte {at}")
        if marker in (_SOS, _EOI):
            size = len(content) - at
        elif marker in _ALONE:
            size = _ALONE[marker]
        else:
            size = 2 + int.from_bytes(cut(content, at + 2, 2), "big")  # counts its own two bytes
        whole = cut(content, at, size)
        yield Part(bytes([marker]), whole, whole[4:])
        at += size


def webp_chunks(content: memoryview) -> Iterator[Part]:
    """Yield the chunks of a WebP file."""
    riff = cut(content, 8, struct.unpack_from("<I", content, 4)[0])
    at = 4
    while at + 8 <= len(riff):
        kind, length = struct.unpack_from("<4sI", riff, at)
        whole = cut(riff, at, 8 + length)
        yield Part(kind, whole, whole[8:])
        at += 8 + length + length % 2
