"""The structure of PNG, JPEG and WebP files, walked in bounded memory and time.

A file's chunks or segments are skipped without reading their contents. Every offset and length is
checked against the file, and against a limit, before anything is read, so a file costs the same few
megabytes whatever it claims. Pixels are never decoded.

Sources:
    PNG, sections 5 and 11: https://www.w3.org/TR/png-3/
    JPEG, annex B: https://www.w3.org/Graphics/JPEG/itu-t81.pdf
    WebP: https://developers.google.com/speed/webp/docs/riff_container
"""

import io
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal, NamedTuple

from pipeline.errors import PictureError, TooLargeError

MAX_FILE_BYTES = 64 * 2**20
MAX_PIXELS = 64 * 2**20
MAX_PARTS = 10_000  # chunks of a PNG or WebP, segments of a JPEG

Kind = Literal["PNG", "JPEG", "WEBP"]
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
# Markers that start a frame. Three in their range start tables instead: DHT, JPG and DAC.
SOF = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_ALONE = {0x01, *range(0xD0, 0xD8)}  # markers without a length: TEM and RST
_EOI, _SOS, _FILL = 0xD9, 0xDA, 0xFF


@dataclass(frozen=True)
class Span:
    """A range of a file's bytes, which are read only on request."""

    file: BinaryIO
    start: int
    size: int

    def part(self, at: int, size: int) -> "Span":
        """Return the range of `size` bytes at an offset.

        Raises:
            PictureError: if it is not all inside this range.
        """
        if at < 0 or size < 0 or at + size > self.size:
            raise PictureError("it is cut off, or a length in it is wrong")
        return Span(self.file, self.start + at, size)

    def read(self, at: int, size: int) -> bytes:
        """Read `size` bytes at an offset.

        Raises:
            PictureError: if they are not all inside this range.
        """
        part = self.part(at, size)
        self.file.seek(part.start)
        data = self.file.read(size)
        if len(data) != size:
            raise PictureError("it became shorter while it was read")
        return data


class Part(NamedTuple):
    """A chunk of a PNG or WebP file, or a segment of a JPEG file.

    `kind`: the chunk's type, or the segment's marker.
    `whole`: all its bytes, with its length and, in a PNG file, its checksum.
    `data`: its contents.
    """

    kind: bytes
    whole: Span
    data: Span


def open_span(file: BinaryIO) -> tuple[Kind, Span]:
    """Return the format of a file, by its first bytes, and all its bytes.

    Raises:
        PictureError: if it is not a picture in a known format.
        TooLargeError: if the file is too large.
        OSError: if the file cannot be read.
    """
    size = file.seek(0, io.SEEK_END)
    if size > MAX_FILE_BYTES:
        raise TooLargeError(f"larger than {MAX_FILE_BYTES} bytes")
    whole = Span(file, 0, size)
    head = whole.read(0, min(size, 12))
    if head.startswith(PNG_SIGNATURE):
        return "PNG", whole
    if head.startswith(_JPEG):
        return "JPEG", whole
    if head.startswith(b"RIFF") and head.endswith(b"WEBP"):
        return "WEBP", whole
    raise PictureError("it is not a PNG, JPEG or WebP file")


def walk(kind: Kind, whole: Span) -> Iterator[Part]:
    """Yield all chunks or segments of a file; see `png_chunks` and its neighbours."""
    walkers = {"PNG": png_chunks, "JPEG": jpeg_segments, "WEBP": webp_chunks}
    yield from walkers[kind](whole)


def _check_pixels(width: int, height: int) -> None:
    if not width or not height:
        raise PictureError(f"a size of {width}x{height} is not possible")
    if width * height > MAX_PIXELS:
        raise TooLargeError(f"exceeds limits: {width}x{height} is more than {MAX_PIXELS} pixels")


def _too_many() -> TooLargeError:
    return TooLargeError(f"it has more than {MAX_PARTS} chunks or segments")


def png_chunks(whole: Span, *, until: bytes = b"IEND") -> Iterator[Part]:
    """Yield the chunks of a PNG file, its header first and without the one that ends it.

    Args:
        whole: the file.
        until: the kind of the chunk to stop at, which is not yielded and may be cut off.

    Raises:
        PictureError: if the file is damaged.
        TooLargeError: if the picture has too many pixels, or the file too many chunks.
    """
    at = len(PNG_SIGNATURE)
    for number in range(MAX_PARTS):
        length, kind = struct.unpack(">I4s", whole.read(at, 8))
        if number == 0 and (kind, length) != (b"IHDR", 13):
            raise PictureError("its first chunk is not a header")
        if kind in (until, b"IEND"):
            return
        data = whole.part(at + 8, length)
        chunk = Part(kind, whole.part(at, 12 + length), data)
        if number == 0:
            _check_pixels(*struct.unpack_from(">II", checked(chunk)))
        yield chunk
        at += 12 + length  # length, kind, data, checksum
    raise _too_many()


def checked(chunk: Part) -> bytes:
    """Return a PNG chunk's data.

    Raises:
        PictureError: if its checksum is wrong.
    """
    data = chunk.data.read(0, chunk.data.size)
    checksum = int.from_bytes(chunk.whole.read(chunk.whole.size - 4, 4), "big")
    if zlib.crc32(data, zlib.crc32(chunk.kind)) != checksum:
        raise PictureError(f"the checksum of its {chunk.kind.decode('latin-1')!r} chunk is wrong")
    return data


def jpeg_segments(whole: Span) -> Iterator[Part]:
    """Yield the segments of a JPEG file.

    The last one has everything from the first scan on, or from the end of a file without scans.

    Raises:
        PictureError: if the file is damaged, or does not give the picture's size.
        TooLargeError: if the picture has too many pixels, or the file too many segments.
    """
    at, sized = 2, False
    for _ in range(MAX_PARTS):
        start, marker = whole.read(at, 2)
        if start != 0xFF or marker == 0:
            raise PictureError(f"there is no marker at byte {at}")
        if marker in (_SOS, _EOI):
            if not sized:
                raise PictureError("it does not give the picture's size")
            rest = whole.part(at, whole.size - at)
            yield Part(bytes([marker]), rest, rest)
            return
        if marker == _FILL or marker in _ALONE:
            at += 1 if marker == _FILL else 2
            continue
        length = int.from_bytes(whole.read(at + 2, 2), "big")  # counts its own two bytes
        data = whole.part(at + 4, length - 2)
        if marker in SOF and not sized:
            _check_pixels(*frame_size(data))
            sized = True
        yield Part(bytes([marker]), whole.part(at, 2 + length), data)
        at += 2 + length
    raise _too_many()


def frame_size(data: Span) -> tuple[int, int]:
    """Return the width and height in a JPEG segment that starts a frame.

    Raises:
        PictureError: if the segment is too short.
    """
    height, width = struct.unpack(">xHH", data.read(0, 5))
    return width, height


def webp_chunks(whole: Span) -> Iterator[Part]:
    """Yield the chunks of a WebP file, the one with the picture's size first.

    Raises:
        PictureError: if the file is damaged, or does not give the picture's size.
        TooLargeError: if the picture has too many pixels, or the file too many chunks.
    """
    riff = whole.part(8, int.from_bytes(whole.read(4, 4), "little"))
    at = 4
    for number in range(MAX_PARTS):
        if at + 8 > riff.size and number:
            return
        kind, length = struct.unpack("<4sI", riff.read(at, 8))
        data = riff.part(at + 8, length)
        if number == 0:
            _check_pixels(*_webp_size(kind, data))
        yield Part(kind, riff.part(at, 8 + length), data)
        at += 8 + length + length % 2
    raise _too_many()


def _webp_size(kind: bytes, data: Span) -> tuple[int, int]:
    if kind == b"VP8X":
        sizes = data.read(4, 6)
        width, height = (int.from_bytes(sizes[i : i + 3], "little") for i in (0, 3))
        return width + 1, height + 1
    if kind == b"VP8L" and data.read(0, 1) == b"\x2f":
        bits = int.from_bytes(data.read(1, 4), "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and data.read(3, 3) == b"\x9d\x01\x2a":
        width, height = struct.unpack("<HH", data.read(6, 4))
        return width & 0x3FFF, height & 0x3FFF
    raise PictureError("it does not give the picture's size")
