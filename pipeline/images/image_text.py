"""Reading the text in PNG, JPEG and WebP files, in bounded memory and time.

Nothing is read but the chunks or the segment with the text; see `pipeline.images.containers`.
"""

import codecs
import io
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from typing import BinaryIO

import numpy as np
from PIL import Image

from pipeline.errors import PictureError, TooLargeError
from pipeline.images import exif, other_programs
from pipeline.images.containers import Part, read_content, walk
from pipeline.images.png import encode_png

MAX_TEXT = 2**20  # characters
MAX_TEXT_BYTES = 4 * MAX_TEXT + 2**10  # 4 bytes a character, and the header before them

_PNG_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_MAX_KEYWORD = 80  # bytes of a text's keyword and the zero after it
_PIXELS = b"IDAT"
_BLANK = encode_png(np.zeros((1, 1, 3), np.uint8))  # a file to put a text into
_HEADER_BYTES = 33  # of a PNG: the signature and the first chunk
_UNICODE = b"UNICODE\0"  # starts a comment in UTF-16
_ASCII = b"ASCII\0\0\0"


def read_text(file: BinaryIO, keyword: str) -> str | None:
    """Return the text with a picture's settings, or None where there is none.

    In a PNG file it is the last text chunk with this keyword before the pixels. In JPEG and WebP
    files it is the user comment of the first EXIF block. It may be the text of another program,
    see `pipeline.images.other_programs`; ComfyUI's are the camera's make and model.

    Raises:
        PictureError: if the file is not a picture, or is damaged.
        TooLargeError: if the file, the picture or the text is over a limit.
        OSError: if the file cannot be read.
    """
    kind, content = read_content(file)
    if kind != "PNG":
        block = exif.find(kind, walk(kind, content))
        comment, *rest = map(_comment_text, exif.texts(block, MAX_TEXT_BYTES) if block else [b""])
        others = dict.fromkeys(other_programs.READERS, lambda: comment[:MAX_TEXT])
        pairs = (text[:MAX_TEXT].partition(":") for text in rest)  # such as "prompt:{...}"
        named = {keyword: lambda text=text: text for keyword, _, text in pairs}
        return other_programs.text_of(others) or comment or other_programs.text_of(named)
    texts: dict[str, Callable[[], str]] = {}
    for chunk in takewhile(lambda chunk: chunk.kind != _PIXELS, walk(kind, content)):
        name, zero, _ = bytes(chunk.data[:_MAX_KEYWORD]).decode("latin-1").partition("\0")
        if chunk.kind in _PNG_TEXTS and zero:
            texts[name] = partial(_chunk_text, chunk, name)
    return texts[keyword]() if keyword in texts else other_programs.text_of(texts)


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


def _comment_text(comment: bytes) -> str:
    data, codec = comment.removeprefix(_UNICODE).removeprefix(_ASCII), "utf-8-sig"
    if data[:2] in (codecs.BOM_UTF16_BE, codecs.BOM_UTF16_LE):
        codec = "utf-16"
    elif comment.startswith(_UNICODE):  # in either order of bytes: most high bytes are 0
        codec = "utf-16-le" if data[1::2].count(0) > data[::2].count(0) else "utf-16-be"
    return data.decode(codec, "replace").strip("\0 ")  # cameras write blank comments
