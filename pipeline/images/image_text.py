"""Reading the text in PNG, JPEG and WebP files, in bounded memory and time.

A file's chunks or segments are skipped without reading their contents, except the one with the
text. Every offset and length is checked against the file, and against a limit, before anything is
read, so a file costs the same few megabytes whatever it claims. Pixels are never decoded.

Sources:
    PNG, sections 5 and 11: https://www.w3.org/TR/png-3/
    JPEG, annex B: https://www.w3.org/Graphics/JPEG/itu-t81.pdf
    WebP: https://developers.google.com/speed/webp/docs/riff_container
    EXIF, section 4.6: https://www.cipa.jp/std/documents/e/DC-X008-Translation-2019-E.pdf
    TIFF, section 2, which EXIF is: https://www.itu.int/itudoc/itu-t/com16/tiff-fx/docs/tiff6.pdf
"""

import io
import struct
import zlib
from dataclasses import dataclass
from typing import BinaryIO

from pipeline.errors import PictureError, TooLargeError

MAX_FILE_BYTES = 64 * 2**20
MAX_PIXELS = 64 * 2**20
MAX_TEXT = 2**20  # characters
MAX_TEXT_BYTES = 4 * MAX_TEXT + 2**10  # 4 bytes a character, and the header before them
MAX_PARTS = 10_000  # chunks of a PNG or WebP, segments of a JPEG
MAX_ENTRIES = 1000  # of a directory in EXIF; cameras write fewer than 100

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_JPEG = b"\xff\xd8\xff"
# Markers that start a frame. Three in their range start tables instead: DHT, JPG and DAC.
_SOF = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_ALONE = {0x01, *range(0xD0, 0xD8)}  # markers without a length: TEM and RST
_EOI, _SOS, _APP1, _FILL = 0xD9, 0xDA, 0xE1, 0xFF
_EXIF = b"Exif\0\0"
_EXIF_DIRECTORY, _USER_COMMENT = 0x8769, 0x9286  # tags
_BYTE, _LONG, _UNDEFINED, _IFD = 1, 4, 7, 13  # types of an entry's value
_UNICODE = b"UNICODE\0"  # starts a comment in UTF-16, which is big-endian here
_ASCII = b"ASCII\0\0\0"


@dataclass(frozen=True)
class _Span:
    """A range of a file's bytes, which are read only on request."""

    file: BinaryIO
    start: int
    size: int

    def part(self, at: int, size: int) -> "_Span":
        """Return the range of `size` bytes at an offset.

        Raises:
            PictureError: if it is not all inside this range.
        """
        if at < 0 or size < 0 or at + size > self.size:
            raise PictureError("it is cut off, or a length in it is wrong")
        return _Span(self.file, self.start + at, size)

    def read(self, at: int, size: int) -> bytes:
        """Read `size` bytes at an offset.

        Raises:
            PictureError: if they are not all inside this range.
        """
        part = self.part(at, size)
        self.file.seek(part.start)
        found = self.file.read(size)
        if len(found) != size:
            raise PictureError("it became shorter while it was read")
        return found


def read_text(file: BinaryIO, keyword: str) -> str | None:
    """Return the text with a picture's settings, or None where there is none.

    In a PNG file it is the last text chunk with this keyword before the pixels. In JPEG and WebP
    files it is the user comment of the first EXIF block.

    Raises:
        PictureError: if the file is not a picture, or is damaged.
        TooLargeError: if the file, the picture or the text is over a limit.
        OSError: if the file cannot be read.
    """
    size = file.seek(0, io.SEEK_END)
    if size > MAX_FILE_BYTES:
        raise TooLargeError(f"larger than {MAX_FILE_BYTES} bytes")
    whole = _Span(file, 0, size)
    head = whole.read(0, min(size, 12))
    if head.startswith(_PNG):
        return _png_text(whole, keyword.encode("latin-1") + b"\0")
    if head.startswith(_JPEG):
        exif = _jpeg_exif(whole)
    elif head.startswith(b"RIFF") and head.endswith(b"WEBP"):
        exif = _webp_exif(whole)
    else:
        raise PictureError("it is not a PNG, JPEG or WebP file")
    return _user_comment(exif) if exif else None


def _check_pixels(width: int, height: int) -> None:
    if not width or not height:
        raise PictureError(f"a size of {width}x{height} is not possible")
    if width * height > MAX_PIXELS:
        raise TooLargeError(f"exceeds limits: {width}x{height} is more than {MAX_PIXELS} pixels")


def _too_many() -> TooLargeError:
    return TooLargeError(f"it has more than {MAX_PARTS} chunks or segments")


# --- PNG ---


def _png_text(whole: _Span, start: bytes) -> str | None:
    """Return the text of the last text chunk that begins with `start`; read no other text."""
    at, found = len(_PNG), None
    for number in range(MAX_PARTS):
        length, kind = struct.unpack(">I4s", whole.read(at, 8))
        if kind in (b"IDAT", b"IEND"):
            break
        data = whole.part(at + 8, length)
        if number == 0:
            if (kind, length) != (b"IHDR", 13):
                raise PictureError("its first chunk is not a header")
            _check_pixels(*struct.unpack_from(">II", _checked(whole, at, length)))
        elif kind in _PNG_TEXTS and length >= len(start) and data.read(0, len(start)) == start:
            found = kind, at, length
        at += 12 + length  # length, kind, data, checksum
    else:
        raise _too_many()
    if found is None:
        return None
    kind, at, length = found
    if length > MAX_TEXT_BYTES:
        raise _long_text()
    return _chunk_text(kind, _checked(whole, at, length)[len(start) :])


def _checked(whole: _Span, at: int, length: int) -> bytes:
    """Return a chunk's data.

    Raises:
        PictureError: if its checksum is wrong.
    """
    data = whole.read(at + 8, length)
    kind = whole.read(at + 4, 4)
    if zlib.crc32(data, zlib.crc32(kind)) != int.from_bytes(whole.read(at + 8 + length, 4), "big"):
        raise PictureError(f"the checksum of its {kind.decode('latin-1')!r} chunk is wrong")
    return data


def _chunk_text(kind: bytes, data: bytes) -> str:
    """Decode the data of a text chunk, without its keyword."""
    if kind == b"tEXt":
        return data.decode("latin-1")
    if kind == b"zTXt":
        return _unpacked(data[:1], data[1:]).decode("latin-1")
    compressed, method = data[:1], data[1:2]
    _language, _, data = data[2:].partition(b"\0")
    _translated, ends, data = data.partition(b"\0")
    if not ends:
        raise PictureError("its text chunk is cut off")
    try:
        return (data if compressed == b"\0" else _unpacked(method, data)).decode()
    except UnicodeDecodeError as error:
        raise PictureError(f"its text is not UTF-8: {error.reason}") from error


def _unpacked(method: bytes, data: bytes) -> bytes:
    if method != b"\0":
        raise PictureError("its text is compressed in an unknown way")
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data, MAX_TEXT + 1)
    except zlib.error as error:
        raise PictureError(f"its compressed text is damaged: {error}") from error
    if len(text) > MAX_TEXT:
        raise PictureError(f"its compressed text is longer than {MAX_TEXT} bytes")
    if not unpacker.eof:
        raise PictureError("its compressed text is cut off")
    return text


def _long_text() -> TooLargeError:
    return TooLargeError(f"its settings are longer than {MAX_TEXT} characters")


# --- JPEG ---


def _jpeg_exif(whole: _Span) -> _Span | None:
    """Find the first EXIF block, and check the size of the picture; both precede the scan."""
    at, exif, sized = 2, None, False
    for _ in range(MAX_PARTS):
        start, marker = whole.read(at, 2)
        if start != 0xFF or marker == 0:
            raise PictureError(f"there is no marker at byte {at}")
        if marker in (_SOS, _EOI):
            break
        if marker == _FILL or marker in _ALONE:
            at += 1 if marker == _FILL else 2
            continue
        length = int.from_bytes(whole.read(at + 2, 2), "big")  # counts its own two bytes
        data = whole.part(at + 4, length - 2)
        if marker in _SOF and not sized:
            height, width = struct.unpack(">xHH", data.read(0, 5))
            _check_pixels(width, height)
            sized = True
        elif marker == _APP1 and exif is None:
            exif = _without_mark(data)
        at += 2 + length
    else:
        raise _too_many()
    if not sized:
        raise PictureError("it does not give the picture's size")
    return exif


# --- WebP ---


def _webp_exif(whole: _Span) -> _Span | None:
    """Find the first EXIF block, and check the size of the picture, which comes first."""
    riff = whole.part(8, int.from_bytes(whole.read(4, 4), "little"))
    at = 4
    for number in range(MAX_PARTS):
        if at + 8 > riff.size and number:
            return None
        kind, length = struct.unpack("<4sI", riff.read(at, 8))
        data = riff.part(at + 8, length)
        if number == 0:
            _check_pixels(*_webp_size(kind, data))
        elif kind == b"EXIF":
            return _without_mark(data) or data
        at += 8 + length + length % 2
    raise _too_many()


def _webp_size(kind: bytes, data: _Span) -> tuple[int, int]:
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


# --- EXIF ---


def _without_mark(data: _Span) -> _Span | None:
    """Return the TIFF structure after the mark of an EXIF block, None where there is no mark."""
    size = len(_EXIF)
    if data.size < size or data.read(0, size) != _EXIF:
        return None
    return data.part(size, data.size - size)


def _user_comment(exif: _Span) -> str | None:
    """Read the user comment; other entries and other directories are ignored."""
    if not exif.size:
        return None
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif.read(0, 4))
    if order is None:
        raise PictureError("its EXIF block has no header")
    (at,) = struct.unpack(f"{order}I", exif.read(4, 4))
    kind, _, value = _entry(exif, at, order, _EXIF_DIRECTORY)
    if kind not in (_LONG, _IFD):
        return None
    (at,) = struct.unpack(f"{order}I", value)
    kind, size, value = _entry(exif, at, order, _USER_COMMENT)
    if kind not in (_BYTE, _UNDEFINED):
        return None
    if size > MAX_TEXT_BYTES:
        raise _long_text()
    if size > len(value):
        (at,) = struct.unpack(f"{order}I", value)
        return _comment_text(exif.read(at, size))
    return _comment_text(value[:size])


def _entry(exif: _Span, at: int, order: str, tag: int) -> tuple[int, int, bytes]:
    """Return the type, the count and the 4 bytes of a directory's last entry with this tag.

    The type is 0 if there is no such entry. The 4 bytes are the value itself or its offset.
    """
    (count,) = struct.unpack(f"{order}H", exif.read(at, 2))
    if count > MAX_ENTRIES:
        raise TooLargeError(f"a directory in its EXIF block has more than {MAX_ENTRIES} entries")
    found = (0, 0, b"")
    for each, *entry in struct.iter_unpack(f"{order}HHI4s", exif.read(at + 2, 12 * count)):
        if each == tag:
            found = entry[0], entry[1], entry[2]
    return found


def _comment_text(comment: bytes) -> str | None:
    if comment.startswith(_UNICODE):
        text = comment.removeprefix(_UNICODE).decode("utf-16-be", "replace")
    else:
        text = comment.removeprefix(_ASCII).decode("utf-8", "replace")
    return text.strip("\0 ") or None  # cameras write blank comments
