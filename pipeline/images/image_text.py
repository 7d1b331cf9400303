"""Reading the text in PNG, JPEG and WebP files, in bounded memory and time.

Nothing is read but the chunk or segment with the text; see `pipeline.images.containers`.
"""

import io
from itertools import takewhile
from typing import BinaryIO

import numpy as np
from PIL import Image

from pipeline.errors import PictureError, TooLargeError
from pipeline.images import exif
from pipeline.images.containers import Part, read_content, walk
from pipeline.images.png import encode_png

MAX_TEXT = 2**20  # characters
MAX_TEXT_BYTES = 4 * MAX_TEXT + 2**10  # 4 bytes a character, and the header before them

_PNG_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_PIXELS = b"IDAT"
_BLANK = encode_png(np.zeros((1, 1, 3), np.uint8))  # a file to put a text into
_HEADER_BYTES = 33  # of a PNG: the signature and the first chunk
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
    kind, content = read_content(file)
    if kind != "PNG":
        block = exif.find(kind, walk(kind, content))
        return _comment_text(exif.user_comment(block, MAX_TEXT_BYTES)) if block else None
    start = keyword.encode("latin-1") + b"\0"
    chunks = takewhile(lambda chunk: chunk.kind != _PIXELS, walk(kind, content))
    texts = [
        chunk for chunk in chunks if chunk.kind in _PNG_TEXTS and chunk.data[: len(start)] == start
    ]
    return _chunk_text(texts[-1], keyword) if texts else None


def _chunk_text(chunk: Part, keyword: str) -> str:
    """Return the text of a PNG chunk, of which Pillow unpacks at most a megabyte."""
    if len(chunk.data) > MAX_TEXT_BYTES:
        raise TooLargeError(f"its settings are longer than {MAX_TEXT} characters")
    file = io.BytesIO(_BLANK[:_HEADER_BYTES] + chunk.whole + _BLANK[_HEADER_BYTES:])
    try:
        with Image.open(file, formats=["PNG"]) as image:
            text = image.info.get(keyword)
    except Exception as error:  # of many kinds
        raise PictureError(f"its text is damaged: {error}") from error
    if not text:
        raise PictureError("its text is damaged")
    return str(text)


def _comment_text(comment: bytes) -> str | None:
    if comment.startswith(_UNICODE):
        text = comment.removeprefix(_UNICODE).decode("utf-16-be", "replace")
    else:
        text = comment.removeprefix(_ASCII).decode("utf-8", "replace")
    return text.strip("\0 ") or None  # cameras write blank comments
