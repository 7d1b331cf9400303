"""Files of pictures, whole and hostile."""

import base64
import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
from PIL import Image, ImageCms
from PIL import Image as Pillow

from tests.calls import Event, read


def png(
    *chunks: tuple[bytes, bytes],
    size: tuple[int, int] = (8, 8),
    colour_type: int = 2,
    depth: int = 8,
    rows: bytes = bytes(8 * 25),
) -> bytes:
    header = struct.pack(">IIBBBBB", *size, depth, colour_type, 0, 0, 0)
    pixels = zlib.compress(rows)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", pixels), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def jpeg(*segments: tuple[int, bytes], size: tuple[int, int] = (8, 8)) -> bytes:
    frame = struct.pack(">BHHB", 8, size[1], size[0], 1) + b"\1\x11\0"
    parts = [*segments, (0xC0, frame), (0xDA, b"\1\1\0\0\x3f\0")]
    return b"\xff\xd8" + b"".join(
        struct.pack(">BBH", 0xFF, kind, 2 + len(data)) + data for kind, data in parts
    )


def webp(
    *chunks: tuple[bytes, bytes], size: tuple[int, int] = (8, 8), has_pixels: bool = True
) -> bytes:
    canvas = b"".join((side - 1).to_bytes(3, "little") for side in size)
    parts = [(b"VP8X", b"\x08\0\0\0" + canvas), *[(b"VP8L", PIXELS)][:has_pixels], *chunks]
    body = b"WEBP" + b"".join(
        kind + struct.pack("<I", len(data)) + data + bytes(len(data) % 2) for kind, data in parts
    )
    return b"RIFF" + struct.pack("<I", len(body)) + body


def webp_pixels() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "WEBP", lossless=True)
    length = int.from_bytes(file.getvalue()[16:20], "little")
    return file.getvalue()[20 : 20 + length]


PIXELS = webp_pixels()
Entry = tuple[int, int, int, int]  # tag, type, count, offset


def directory(order: str, entries: list[Entry]) -> bytes:
    return (
        struct.pack(f"{order}H", len(entries))
        + b"".join(struct.pack(f"{order}HHII", *entry) for entry in entries)
        + bytes(4)
    )


GREY = Pillow.new("RGB", (16, 16), (100, 100, 100))


def base64_of(file: bytes) -> str:
    return base64.b64encode(file).decode()


def mask(width: int = 16, height: int = 16) -> bytes:
    """Return a mask whose upper half is redrawn."""
    picture = Pillow.new("L", (width, height))
    picture.paste(255, (0, 0, width, height // 2))
    return saved(picture)


def colour_of(events: list[Event]) -> tuple[int, ...]:
    """Return the seed, the mean of the picture, and that of the mask, as the stand-in shows."""
    file = next(fields["png"] for name, fields in events if name == "image")
    pixel = Pillow.open(io.BytesIO(base64.b64decode(file))).getpixel((0, 0))
    assert isinstance(pixel, tuple)
    return pixel


def events_of(answer: httpx.Response) -> list[Event]:
    assert answer.status_code == 200, answer.text
    return list(read(answer))


KINDS = ("PNG", "JPEG", "WEBP")


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def smooth(width: int = 48, height: int = 32) -> Image.Image:
    """Return a picture whose corners differ, and that survives compression."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    return Image.fromarray(np.round(255 * np.stack([x, y, 1 - x], axis=-1)).astype(np.uint8))


def scan_bomb() -> bytes:
    file = saved(smooth(200, 200), "JPEG", progressive=True)
    last = file.rindex(b"\xff\xda")
    return file[:-2] + file[last:-2] * 10_000 + file[-2:]


def progressive(scans: int, side: int) -> bytes:
    """Return a file of few bytes whose decoder passes over all pixels for each of its scans."""
    tables = [(0xDB, bytes([0, *[1] * 64])), *[(0xC4, bytes([at, 1, *[0] * 16])) for at in (0, 16)]]
    head, _ = jpeg(*tables, size=(side, side)).split(b"\xff\xda")
    scan = b"\xff\xda" + struct.pack(">H", 8) + b"\1\1\0\0\0\0" + bytes((side // 8) ** 2 // 8)
    return head.replace(b"\xff\xc0", b"\xff\xc2") + scans * scan + b"\xff\xd9"


def many_chunks() -> bytes:
    return png(*[(b"IDAT", b"")] * 100_000)


def without_palette() -> bytes:
    """Return a picture with a palette, cut out of its file."""
    whole = saved(smooth().convert("P"))
    start = whole.index(b"PLTE") - 4
    end = start + 12 + int.from_bytes(whole[start : start + 4], "big")
    return whole[:start] + whole[end:]


def animation(kind: str) -> bytes:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    return saved(frames[0], kind, save_all=True, append_images=frames[1:])


SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9"/></svg>'
HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "bomb.png": (lambda: png(size=(60_000, 60_000)), "3600000000 pixels. exceeds limit"),
    "bomb.jpg": (lambda: jpeg(size=(65_000, 65_000)), "4225000000 pixels. exceeds limit"),
    "bomb.webp": (lambda: webp(size=(16_000, 16_000)), "it is damaged"),
    "large.webp": (
        lambda: saved(Image.new("RGB", (6000, 6000)), "WEBP", lossless=True, quality=0, method=0),
        "6000x6000 is more than 33554432 pixels",
    ),
    "large.png": (lambda: png(size=(6000, 6000)), "6000x6000 is more than 33554432 pixels"),
    "thin.png": (lambda: png(size=(33_000_000, 1)), "it is 33000000x1; expected sides of at most"),
    "high.png": (lambda: png(size=(1, 16_384)), "it is 1x16384; expected sides of at most 16383"),
    "thin.jpg": (lambda: jpeg(size=(65_000, 8)), "it is 65000x8; expected sides of at most 16383"),
    "zero.png": (lambda: png(size=(0, 8)), "it is damaged"),
    "zero.jpg": (lambda: jpeg(size=(8, 0)), "it is damaged"),
    "no palette.png": (without_palette, "it has no palette"),
    "empty": (lambda: b"", "not a PNG, JPEG or WebP file"),
    "picture.svg": (lambda: SVG, "not a PNG, JPEG or WebP file"),
    "picture.gif": (lambda: saved(smooth(), "GIF"), "not a PNG, JPEG or WebP file"),
    "picture.tiff": (lambda: saved(smooth(), "TIFF"), "not a PNG, JPEG or WebP file"),
    "script.html": (lambda: b"<script>alert(1)</script>", "not a PNG, JPEG or WebP file"),
    "100 MB": (lambda: bytes(100_000_000), "larger than 67108864 bytes"),
    "100 MB of PNG": (lambda: png() + bytes(100_000_000), "larger than 67108864 bytes"),
    "animated.png": (lambda: animation("PNG"), "it is animated"),
    "animated.webp": (lambda: animation("WEBP"), "it is animated"),
    "scans.jpg": (scan_bomb, "[0-9]{5} scans; expected at most 100 for 200x200 pixels"),
    "large scans.jpg": (
        lambda: progressive(99, 8184),
        "99 scans; expected at most 10 for 8184x8184 pixels",
    ),
    "chunks.png": (many_chunks, "more than 10000 chunks"),
    **{
        f"cut off {kind}": (lambda kind=kind: saved(smooth(), kind)[:-60], "damaged|cut off")
        for kind in KINDS
    },
}


def _profile(swap: bool) -> bytes:
    """Return sRGB's profile, or one in which red and green are exchanged."""
    own = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    if not swap:
        return own
    return own.replace(b"rXYZ", b"tmp!").replace(b"gXYZ", b"rXYZ").replace(b"tmp!", b"gXYZ")


WHOLE = [
    *(saved(smooth(), kind, quality=80) for kind in KINDS),
    saved(smooth(), "JPEG", progressive=True, icc_profile=_profile(swap=True)),
    saved(smooth().convert("CMYK"), "JPEG"),
    without_palette(),
    saved(smooth().convert("P"), transparency=0, icc_profile=_profile(swap=False)),
    saved(smooth().convert("RGBA"), "WEBP", lossless=True, exif=Image.Exif()),
    animation("PNG"),
]
