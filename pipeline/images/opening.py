"""Opening of pictures that anybody may have made, in bounded memory and time.

A file's structure is checked before anything is decoded, and the decoder gets only the parts that
it needs: no texts, no EXIF, no further pictures.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageCms, UnidentifiedImageError

from pipeline.errors import InputError, MetadataError, PictureError, TooLargeError
from pipeline.images import exif
from pipeline.images.containers import PNG_SIGNATURE, Kind, Part, read_content, walk

MAX_PIXELS = 64 * 2**20
MAX_DECODED = 2**25  # pixels; JPEG files with more are decoded at half their size
# Pixels on the longer side, as WebP allows. So pictures of any size can be answered in any format,
# and no filter works on rows of millions of pixels.
MAX_SIDE = 2**14 - 1
MAX_SCANS = 100  # of a JPEG file; programs write about 10
# Pixels of a JPEG file times its scans, each of which costs a pass over all pixels. These take the
# decoder about a second.
MAX_SCANNED = 10 * MAX_PIXELS
EXPECTED = "expected a PNG, JPEG or WebP picture"

_PNG_KEPT = (b"IHDR", b"PLTE", b"tRNS", b"iCCP", b"sRGB", b"gAMA", b"IDAT")
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
_ANIMATED = (b"acTL", b"ANIM", b"ANMF")  # chunks of animated PNG and WebP files
_JPEG_START, _JPEG_END, _SOS, _ICC = b"\xff\xd8", b"\xff\xd9", b"\xff\xda", b"ICC_PROFILE\0"
_APP2, _COMMENT = b"\xe2", b"\xfe"
# Segments for programs: APP1 and APP3 to APP15, without Adobe's, which describes the colours.
_JPEG_DROPPED = [bytes([0xE0 + n]) for n in range(1, 16) if n not in (2, 14)] + [_COMMENT]
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SRGB = ImageCms.createProfile("sRGB")


def open_picture(file: BinaryIO | bytes, name: str = "image") -> Image.Image:
    """Return a still picture, upright and in sRGB.

    Args:
        file: a PNG, JPEG or WebP file.
        name: the argument that it was given as, for messages.

    Returns:
        The picture with 8 bits a channel, in mode "RGBA" if it has transparency, otherwise "RGB".

    Raises:
        InputError: if it is no such file, or is damaged, animated, or too large.
    """
    try:
        kind, content = read_content(io.BytesIO(file) if isinstance(file, bytes) else file)
        parts = [*walk(kind, content)]
        if any(part.kind in _ANIMATED for part in parts):
            raise PictureError("it is animated")
        image = _decoded(kind, *_needed(kind, content, parts))
        turn = _TURNS.get(_orientation(kind, parts))
    except MetadataError as error:
        raise InputError(f"{name} cannot be used: {error}; {EXPECTED}") from error
    upright = _in_srgb(image)
    return upright if turn is None else upright.transpose(turn)


def open_file(file: Path, name: str = "image") -> Image.Image:
    """Return the picture in a file, as `open_picture` does; its errors name the file.

    Raises:
        InputError: if it is no picture that can be used.
        OSError: if the file cannot be read.
    """
    with file.open("rb") as stream:
        return open_picture(stream, f"{name} {file}")


def _needed(kind: Kind, content: memoryview, parts: Sequence[Part]) -> tuple[bytes, int]:
    """Return a file with the parts alone that decide about the pixels, and its number of scans."""
    if kind == "WEBP":
        return bytes(content), 1
    if kind == "PNG":
        chunks = [part.whole for part in parts if part.kind in _PNG_KEPT]
        return b"".join((PNG_SIGNATURE, *chunks, _PNG_END)), 1
    *segments, scans = parts
    # Cameras append further pictures and films.
    pixels, end, _ = bytes(scans.whole).partition(_JPEG_END)
    chunks = [part.whole for part in segments if _is_kept(part)]
    return b"".join((_JPEG_START, *chunks, pixels, end)), pixels.count(_SOS)


def _is_kept(segment: Part) -> bool:
    if segment.kind == _APP2:
        return segment.data[: len(_ICC)] == _ICC
    return segment.kind not in _JPEG_DROPPED


def _decoded(kind: Kind, content: bytes, scans: int) -> Image.Image:
    """Decode the pixels.

    Raises:
        PictureError: if the file is damaged.
        TooLargeError: if it has too many pixels or scans, or a side is too long.
    """
    try:
        image = Image.open(io.BytesIO(content), formats=[kind])
        _check(image, scans)
        image.load()
    except (MetadataError, Image.DecompressionBombError) as error:
        raise TooLargeError(str(error)) from error
    except UnidentifiedImageError as error:  # whose text names no fault
        raise PictureError("it is damaged (its header cannot be read)") from error
    except Exception as error:  # decoders raise errors of many kinds
        raise PictureError(f"it is damaged ({error})") from error
    if image.mode == "P" and image.palette is None:
        raise PictureError("it is damaged (it has no palette)")
    return image


def _check(image: Image.Image, scans: int) -> None:
    """Raise TooLargeError if a picture takes too long; let a large JPEG be decoded at half size."""
    pixels, size = image.width * image.height, f"{image.width}x{image.height}"
    if max(image.size) > MAX_SIDE:
        raise TooLargeError(f"it is {size}; expected sides of at most {MAX_SIDE} pixels")
    max_scans = min(MAX_SCANS, MAX_SCANNED // pixels)
    if scans > max_scans:
        raise TooLargeError(f"it has {scans} scans; expected at most {max_scans} for {size} pixels")
    if pixels > MAX_DECODED:
        image.draft(None, (image.width // 2, image.height // 2))
    if pixels > MAX_PIXELS or image.width * image.height > MAX_DECODED:
        raise TooLargeError(f"{size} is more than {MAX_DECODED} pixels")


def _orientation(kind: Kind, parts: Sequence[Part]) -> int:
    block = exif.find(kind, parts)
    try:
        return 1 if block is None else exif.orientation(block)
    except MetadataError:
        return 1  # the pixels are fine


def _in_srgb(image: Image.Image) -> Image.Image:
    """Convert a picture of any mode and colour profile to RGB, or RGBA with its transparency."""
    profile = image.info.get("icc_profile")
    alpha = None
    if image.has_transparency_data:
        alpha = image.convert("RGBA").getchannel("A")
    colours = _with_eight_bits(image)
    if isinstance(profile, bytes):
        colours = _from_profile(colours, profile)
    colours = colours.convert("RGB")
    colours.info.clear()
    if alpha is not None:
        colours.putalpha(alpha)
    return colours


def _with_eight_bits(image: Image.Image) -> Image.Image:
    """Return the colours without transparency, as grey, RGB or CMYK."""
    if image.mode.startswith("I"):  # 16 bits, in grey
        return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).astype(np.uint8))
    if image.mode in ("L", "RGB", "CMYK"):
        return image
    return image.convert("L" if image.mode in ("1", "LA") else "RGB")


def _from_profile(image: Image.Image, profile: bytes) -> Image.Image:
    """Convert colours to sRGB; a profile that is damaged or of other colours is ignored."""
    try:
        source_profile = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        converted_image = ImageCms.profileToProfile(image, source_profile, _SRGB, outputMode="RGB")
    except (ImageCms.PyCMSError, OSError, ValueError):
        return image
    return image if converted_image is None else converted_image
