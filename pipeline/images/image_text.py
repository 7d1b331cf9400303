"""Reading the text in PNG, JPEG and WebP files, in bounded memory and time.

Nothing is read but the chunk or segment with the text; see `pipeline.images.containers`.
"""

import zlib
from typing import BinaryIO

from pipeline.errors import PictureError, TooLargeError
from pipeline.images import exif
from pipeline.images.containers import Part, Span, checked, open_span, png_chunks, walk

MAX_TEXT = 2**20  # characters
MAX_TEXT_BYTES = 4 * MAX_TEXT + 2**10  # 4 bytes a character, and the header before them

_PNG_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_EXIF_DIRECTORY, _USER_COMMENT = 0x8769, 0x9286  # tags
_BYTE, _LONG, _UNDEFINED, _IFD = 1, 4, 7, 13  # types of an entry's value
_UNICODE = b"UNICODE\0"  # starts a comment in UTF-16, which is big-endian here
_ASCII = b"ASCII\0\0\0"


def read_text(file: BinaryIO, keyword: str) -> str | None:
    """Return the text with a picture's settings, or None where there is none.

    In a PNG file it is the last text chunk with this keyword before the pixels. In JPEG and WebP
    files it is the user comment of the first EXIF block.

    Raises:
        PictureError: if the file is not a picture, or is damaged.
        TooLargeError: if the file, the picture or the text is over a limit.
        OSError: if the file cannot be read.
    """
    kind, whole = open_span(file)
    if kind == "PNG":
        return _png_text(whole, keyword.encode("latin-1") + b"\0")
    block = exif.find(kind, walk(kind, whole))
    return _user_comment(block) if block else None


def _png_text(whole: Span, start: bytes) -> str | None:
    """Return the text of the last text chunk that begins with `start`; read no other text."""
    part: Part | None = None
    for chunk in png_chunks(whole, until=b"IDAT"):
        data = chunk.data
        if chunk.kind in _PNG_TEXTS and data.size >= len(start):
            part = chunk if data.read(0, len(start)) == start else part
    if part is None:
        return None
    if part.data.size > MAX_TEXT_BYTES:
        raise _long_text()
    return _chunk_text(part.kind, checked(part)[len(start) :])


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


def _user_comment(block: Span) -> str | None:
    """Read the user comment; other entries and other directories are ignored."""
    if not block.size:
        return None
    order, at = exif.header(block)
    kind, _, value = exif.entry(block, at, order, _EXIF_DIRECTORY)
    if kind not in (_LONG, _IFD):
        return None
    kind, size, value = exif.entry(block, exif.offset(value, order), order, _USER_COMMENT)
    if kind not in (_BYTE, _UNDEFINED):
        return None
    if size > MAX_TEXT_BYTES:
        raise _long_text()
    if size > len(value):
        return _comment_text(block.read(exif.offset(value, order), size))
    return _comment_text(value[:size])


def _comment_text(comment: bytes) -> str | None:
    if comment.startswith(_UNICODE):
        text = comment.removeprefix(_UNICODE).decode("utf-16-be", "replace")
    else:
        text = comment.removeprefix(_ASCII).decode("utf-8", "replace")
    return text.strip("\0 ") or None  # cameras write blank comments
