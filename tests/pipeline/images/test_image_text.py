"""Settings in malformed files: bounded memory and time, and only documented errors."""

import io
import json
import os
import random
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image, PngImagePlugin

from pipeline import metadata
from pipeline.errors import MetadataError, PictureError, TooLargeError
from pipeline.images.metadata import Settings, read, to_text
from tests.pictures import Entry, directory, jpeg, png, webp

ROOT = Path(__file__).parents[3]
SETTINGS = Settings(
    "a large red star",
    "green",
    seed=7,
    num_inference_steps=25,
    guidance_scale=5.0,
    width=1024,
    height=768,
    model="org/model",
    scheduler="euler",
)
TEXT = to_text(SETTINGS)
COMMENT = b"UNICODE\0" + TEXT.encode("utf-16-be")
MOST_EXTRA = 64 * 2**20
LARGE = 10_000_000
UNDEFINED, LONG, ASCII = 7, 4, 2
EXIF_DIRECTORY, USER_COMMENT = 0x8769, 0x9286

# --- files, byte by byte ---


def exif_segments(exif: bytes) -> list[tuple[int, bytes]]:
    """Split Exif data into as many JPEG segments as it needs; readers join them."""
    return [(0xE1, b"Exif\0\0" + exif[i : i + 65_000]) for i in range(0, len(exif), 65_000)]


def tiff(order: str, main: list[Entry], inner: list[Entry], rest: bytes = b"") -> bytes:
    """Return a TIFF of two directories, followed by the data that their entries point to."""
    start = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}I", 8)
    return start + directory(order, main) + directory(order, inner) + rest


def exif(comment: bytes, order: str = "<", others: int = 0, **lies: int) -> bytes:
    """Return Exif data with a user comment and other entries that point at the same bytes."""
    aliases = [(0x1000 + i, UNDEFINED, len(comment), 0) for i in range(others)]
    inner_at = 8 + 2 + 12 * (others + 1) + 4
    rest_at = inner_at + 2 + 12 * (others + 1) + 4
    aliases = [(tag, kind, count, rest_at) for tag, kind, count, _ in aliases]
    pointer = (EXIF_DIRECTORY, LONG, 1, lies.get("inner_at", inner_at))
    value = (USER_COMMENT, lies.get("kind", UNDEFINED), lies.get("count", len(comment)), rest_at)
    return tiff(order, [*aliases, pointer], [*aliases, value], comment)


def written(folder: Path, content: bytes) -> Path:
    path = folder / "picture"
    path.write_bytes(content)
    return path


# --- memory ---

CHILD = """
import json, resource, sys, time
from pathlib import Path
from pipeline import metadata

def kilobytes(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))

# No harm is done where a file is not as harmless as it should be.
resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
before = kilobytes("VmRSS")
start = time.process_time()
try:
    metadata.read(sys.argv[1])
    said = "read"
except BaseException as error:
    said = type(error).__name__
took = time.process_time() - start
print(json.dumps([said, kilobytes("VmHWM") - before, took]))
"""


def lines_of_settings(line: str) -> bytes:
    text = line * (2**20 // len(line) - 100) + "\nSteps: 1, Seed: 2, Size: 8x8"
    return text.encode("utf-16-be", "surrogatepass")


def random_lines() -> bytes:
    draw = random.Random(0)
    keys = "".join(f"{draw.choice('abcdefgh')}{i:x}:," for i in range(2**17))
    return f"a\nSteps: 1, Seed: 2, Size: 8x8, {keys}".encode("utf-16-be")


def chain_of_nodes(keyword: bytes, count: int) -> list[tuple[bytes, bytes]]:
    nodes = {f"{i:x}": {"inputs": {"x": [f"{i + 1:x}"]}} for i in range(count)}
    content = json.dumps(nodes, separators=(",", ":")).encode()
    return [(b"tEXt", keyword + b"\0" + content)]


def many(data: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"zTXt", data)] * (LARGE // (len(data) + 12))


BOMBS: dict[str, Callable[[], bytes]] = {
    "aliases in a JPEG": lambda: jpeg(*exif_segments(exif(b"x" * LARGE, others=600))),
    "aliases in a WebP": lambda: webp((b"EXIF", exif(b"x" * LARGE, others=600))),
    "aliases of half a megabyte": lambda: webp((b"EXIF", exif(b"x" * 2**19, others=998))),
    "aliases of texts": lambda: webp(
        (b"EXIF", tiff("<", [(i, ASCII, LARGE, 8) for i in range(600)], [], b"x" * LARGE))
    ),
    "aliases of numbers": lambda: webp(
        (b"EXIF", tiff("<", [(i, 3, LARGE // 2, 8) for i in range(60)], [], b"x" * LARGE))
    ),
    "a long comment": lambda: webp((b"EXIF", exif(b"x" * LARGE))),
    "a comment in UTF-8, of 4 bytes a character": lambda: webp(
        (b"EXIF", exif("😀".encode() * (2**20)))
    ),
    "a comment in UTF-8, with one such character": lambda: webp(
        (b"EXIF", exif("😀".encode() + b"x" * (4 * 2**20)))
    ),
    "a comment of lone surrogates": lambda: webp((b"EXIF", exif(b"UNICODE\0" + b"\xd8\0" * 2**21))),
    "short lines": lambda: webp((b"EXIF", exif(b"UNICODE\0" + lines_of_settings(" 😀x\n")))),
    "empty lines": lambda: webp((b"EXIF", exif(b"UNICODE\0" + lines_of_settings("\n")))),
    "many keys": lambda: webp((b"EXIF", exif(b"UNICODE\0" + random_lines()))),
    "directories as large as can be": lambda: webp(
        (b"EXIF", tiff("<", [(i, UNDEFINED, LARGE, 8) for i in range(65_000)], [], b"x" * LARGE))
    ),
    "a directory inside itself": lambda: webp((b"EXIF", exif(b"x" * LARGE, inner_at=8))),
    "texts in a PNG": lambda: png(*[(b"tEXt", b"parameters\0x")] * (LARGE // 24)),
    "other texts in a PNG": lambda: png(
        *[(b"tEXt", b"%d\0" % i + b"x" * 2**20) for i in range(60)]
    ),
    "a compressed text": lambda: png(
        (b"zTXt", b"parameters\0\0" + zlib.compress(bytes(2**27), 9)),
    ),
    "a compressed text in Unicode": lambda: png(
        (b"iTXt", b"parameters\0\1\0\0\0" + zlib.compress(bytes(2**27), 9)),
    ),
    "compressed texts": lambda: png(*many(b"parameters\0\0" + zlib.compress(bytes(2**20), 9))),
    "a text as large as the file": lambda: png((b"tEXt", b"parameters\0" + b"x" * 60 * 2**20)),
    "a compressed profile": lambda: png((b"iCCP", b"p\0\0" + zlib.compress(bytes(2**27), 9))),
    "EXIF in a PNG": lambda: png((b"eXIf", exif(b"x" * LARGE, others=600))),
    "private chunks": lambda: png(*[(b"prVt", b"x" * 1000)] * 50_000),
    "empty segments": lambda: jpeg(*[(0xE1, b"")] * (LARGE // 4)),
    "profiles in segments": lambda: jpeg(*[(0xE2, b"ICC_PROFILE\0" + b"x" * 65_000)] * 900),
    "comments in segments": lambda: jpeg(*[(0xFE, b"x" * 65_000)] * 900),
    "filled with marks": lambda: b"\xff\xd8" + b"\xff" * LARGE,
    "pictures in a picture": lambda: (
        jpeg((0xE2, b"MPF\0" + exif(b"", others=600)))
        + jpeg(*exif_segments(exif(b"x" * LARGE, others=600)))
    ),
    "chunks of a WebP": lambda: webp(*[(b"ANMF", b"")] * (LARGE // 8)),
    "frames of a WebP": lambda: webp(*[(b"ANMF", b"x" * 60_000)] * 900),
    "a profile of a WebP": lambda: webp((b"ICCP", b"x" * 60 * 2**20)),
    "a large canvas": lambda: webp(size=(2**13, 2**13)),
    "JSON of empty lists": lambda: png((b"tEXt", b"prompt\0[" + b"[]," * 349_000 + b"0]")),
    "JSON of small nodes": lambda: png(*chain_of_nodes(b"prompt", 30_000)),
    "JSON of small nodes in three texts": lambda: png(
        *(
            part
            for name in (b"Comment", b"prompt", b"workflow")
            for part in chain_of_nodes(name, 9_000)
        )
    ),
    "JSON that is nested": lambda: webp((b"EXIF", exif(b'{"prompt":' * 100_000))),
}


@pytest.mark.lasting
@pytest.mark.skipif(sys.platform != "linux", reason="memory is looked up in /proc")
@pytest.mark.parametrize("name", BOMBS)
def test_no_file_takes_much_memory(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, BOMBS[name]())
    command = [sys.executable, "-c", CHILD, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    said, extra_kb, took_s = json.loads(done.stdout)
    assert said in ("read", "MetadataError", "PictureError", "TooLargeError")
    assert extra_kb * 2**10 < MOST_EXTRA
    assert took_s < 5


@pytest.mark.parametrize("kind", ["jpeg", "webp"])
def test_settings_beside_entries_that_point_at_the_same_bytes(tmp_path: Path, kind: str) -> None:
    block = exif(COMMENT, others=600)
    content = jpeg(*exif_segments(block)) if kind == "jpeg" else webp((b"EXIF", block))
    assert read(written(tmp_path, content)) == SETTINGS


# --- malformed files ---


LIES: dict[str, tuple[bytes, type[MetadataError]]] = {
    "a comment of 4 GiB": (webp((b"EXIF", exif(COMMENT, count=2**32 - 1))), TooLargeError),
    "a comment over the end": (
        webp((b"EXIF", exif(COMMENT, count=len(COMMENT) + 1))),
        PictureError,
    ),
    "a directory behind the end": (
        webp((b"EXIF", exif(COMMENT, inner_at=2**32 - 1))),
        PictureError,
    ),
    "no header of EXIF": (webp((b"EXIF", b"IIII" + exif(COMMENT))), PictureError),
    "a WebP cut off": (webp((b"EXIF", exif(COMMENT)))[:-20], PictureError),
    "a chunk of 2 GiB": (
        webp((b"EXIF", exif(COMMENT))).replace(b"EXIF", b"EXIF\xff\xff\xff\x7f"),
        PictureError,
    ),
    "no marker": (jpeg((0xE1, b""))[:5] + b"\1" + bytes(99), PictureError),
    "a segment over the end": (b"\xff\xd8\xff\xe1\xff\xff" + bytes(99), PictureError),
    "a segment shorter than its length": (b"\xff\xd8\xff\xe1\0\0" + bytes(99), PictureError),
    "a wrong checksum": (
        png((b"tEXt", b"parameters\0" + TEXT.encode())).replace(b"star", b"moon"),
        PictureError,
    ),
    "an unknown compression": (png((b"zTXt", b"parameters\0\1x")), PictureError),
    "no compressed text": (png((b"zTXt", b"parameters\0\0x")), PictureError),
    "half of a header of a text": (png((b"iTXt", b"parameters\0\0\0\0")), PictureError),
    "a text that is not UTF-8": (png((b"iTXt", b"parameters\0\0\0\0\0\xff")), PictureError),
    "a header of 4 GiB": (b"\x89PNG\r\n\x1a\n\xff\xff\xff\xffIHDR" + bytes(99), PictureError),
    "a WebP of 4 GiB": (b"RIFF\xff\xff\xff\xffWEBPVP8X" + bytes(99), PictureError),
}


@pytest.mark.parametrize(("content", "error"), LIES.values(), ids=LIES)
def test_malformed_files_are_refused(
    tmp_path: Path, content: bytes, error: type[MetadataError]
) -> None:
    with pytest.raises(error, match="picture: "):
        read(written(tmp_path, content))


SILENT = {
    # Their pixels are not decoded, so they may be of any size.
    "a PNG of many pixels": png(size=(50_000, 50_000)),
    "a JPEG of many pixels": jpeg(size=(50_000, 50_000)),
    "a WebP of many pixels": webp(size=(16_000, 16_000), has_pixels=False),
    "no frame": b"\xff\xd8\xff\xda\0\2",
    "an empty block": webp((b"EXIF", b"")),
    "empty directories": webp((b"EXIF", tiff("<", [], []))),
    "a comment of another type": webp((b"EXIF", exif(COMMENT, kind=LONG))),
    "other segments": jpeg((0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>"), (0xE1, b"Exif")),
    "a keyword alone": png((b"tEXt", b"parameters")),
    "other texts": png((b"tEXt", b"Parameters\0" + TEXT.encode()), (b"eXIf", exif(COMMENT))),
}


@pytest.mark.parametrize("content", SILENT.values(), ids=SILENT)
def test_pictures_without_text_have_no_settings(tmp_path: Path, content: bytes) -> None:
    assert read(written(tmp_path, content)) is None


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    said: list[Any] = []

    def ask() -> None:
        try:
            read(tmp_path / "pipe")
        except PictureError as error:
            said.append(str(error))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(10)
    assert said == ["pipe: not a picture that can be read: it is not a file"]


# --- files that other programs write ---


def saved(kind: str, *modes: str, **options: Any) -> bytes:
    """Return a picture file as Pillow writes it; each mode makes a frame."""
    file, block = io.BytesIO(), Image.Exif()
    block[ExifTags.Base.Make] = "a camera"
    block[ExifTags.IFD.GPSInfo] = {ExifTags.GPS.GPSLatitude: (1.0, 2.0, 3.0)}
    block[ExifTags.IFD.Exif] = {
        ExifTags.Base.ExposureTime: 0.01,
        ExifTags.Base.MakerNote: b"x" * 4000,
        ExifTags.Base.UserComment: COMMENT,
    }
    first, *others = [Image.effect_noise((60, 40), 50).convert(mode) for mode in modes]
    frames = {"save_all": True, "append_images": others} if others else {}
    if kind == "PNG":
        info = PngImagePlugin.PngInfo()
        info.add_text("Software", "a camera")
        zipped = options.pop("zipped", False)
        add = info.add_itxt if options.pop("international", False) else info.add_text
        add(metadata.KEY, TEXT, zip=zipped)
        options |= {"pnginfo": info}
    first.save(file, kind, exif=block.tobytes(), **frames, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("kind", "modes", "options"),
    [
        ("PNG", "L", {}),
        ("PNG", "P", {"zipped": True}),
        ("PNG", ["RGBA"], {"international": True}),
        ("PNG", ["RGB"], {"international": True, "zipped": True}),
        ("PNG", ["RGB", "RGB"], {}),
        ("JPEG", "L", {}),
        ("JPEG", ["RGB"], {"progressive": True, "icc_profile": b"x" * 200_000}),
        ("JPEG", ["CMYK"], {"comment": b"x", "restart_marker_blocks": 1}),
        ("MPO", ["RGB", "RGB"], {}),
        ("WEBP", ["RGB"], {}),
        ("WEBP", ["RGBA"], {"lossless": True, "xmp": b"<x/>", "icc_profile": b"x" * 1001}),
        ("WEBP", ["RGB", "RGB"], {}),
    ],
)
def test_files_of_other_programs(
    tmp_path: Path, kind: str, modes: list[str], options: dict[str, Any]
) -> None:
    assert read(written(tmp_path, saved(kind, *modes, **options))) == SETTINGS


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("mark", [b"", b"Exif\0\0"])
def test_both_byte_orders(tmp_path: Path, order: str, mark: bytes) -> None:
    block = exif(COMMENT, order)
    assert read(written(tmp_path, webp((b"EXIF", mark + block)))) == SETTINGS
    assert read(written(tmp_path, jpeg((0xE1, b"Exif\0\0" + block)))) == SETTINGS


@pytest.mark.parametrize("options", [{}, {"lossless": True}, {"quality": 1}])
def test_a_plain_webp_has_no_settings(tmp_path: Path, options: dict[str, Any]) -> None:
    Image.effect_noise((60, 40), 50).save(tmp_path / "picture", "WEBP", **options)
    assert read(tmp_path / "picture") is None


def test_the_last_text_counts_and_what_follows_the_pixels_does_not(tmp_path: Path) -> None:
    one, other = ((b"tEXt", b"parameters\0" + text) for text in (b"x", TEXT.encode()))
    assert read(written(tmp_path, png(one, other))) == SETTINGS
    after = png(other).removesuffix(png()[-12:]) + png(one)[33:]
    assert read(written(tmp_path, after)) == SETTINGS


# --- mutations ---

WHOLE = [
    png((b"tEXt", b"parameters\0" + TEXT.encode())),
    png((b"zTXt", b"parameters\0\0" + zlib.compress(TEXT.encode()))),
    png((b"iTXt", b"parameters\0\0\0en\0x\0" + TEXT.encode())),
    png((b"iTXt", b"parameters\0\1\0\0\0" + zlib.compress(TEXT.encode()))),
    jpeg((0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0"), *exif_segments(exif(COMMENT, ">"))),
    webp((b"EXIF", exif(COMMENT, others=3))),
    saved("JPEG", "RGB"),
    saved("WEBP", "RGB", lossless=True),
]
NUMBERS = [
    0,
    1,
    2,
    7,
    12,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    2**31 - 1,
    2**31,
    2**32 - 12,
    2**32 - 1,
]
# Kind, position, length and number of a change. Most positions are small, because the parts that
# matter are at the beginning of a file.
Change = tuple[str, int, int, int]
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "repeat", "drop", "length", "swap", "move"]),
        st.integers(0, 400) | st.integers(0, 10_000),
        st.integers(1, 64),
        st.sampled_from(NUMBERS) | st.integers(0, 2**16),
    ),
    min_size=1,
    max_size=6,
)


def changed(content: bytes, changes: list[Change]) -> bytes:
    for what, at, length, number in changes:
        at %= len(content) or 1
        before, part, after = content[:at], content[at : at + length], content[at + length :]
        if what == "flip" and part:
            content = before + bytes([part[0] ^ (number & 0xFF or 1)]) + part[1:] + after
        elif what == "cut":
            content = before
        elif what == "repeat":
            content = before + part * (2 + number % 50) + after
        elif what == "drop":
            content = before + after
        elif what == "length":
            size, order = 2 + 2 * (length % 2), "<>"[length // 2 % 2]
            value = struct.pack(order + "HI"[length % 2], number & (2 ** (8 * size) - 1))
            content = before + value + content[at + size :]
        elif what == "swap":
            content = before + part[::-1] + after
        elif what == "move":
            content = part + before + after if number % 2 else before + after + part
    return content


def with_checksums(content: bytes) -> bytes:
    """Correct the checksum of every PNG chunk; a wrong one would hide all other faults."""
    at, fixed = 8, bytearray(content)
    while at + 12 <= len(fixed):
        end = at + 8 + int.from_bytes(fixed[at : at + 4], "big")
        fixed[end : end + 4] = struct.pack(">I", zlib.crc32(fixed[at + 4 : end]))[
            : len(fixed) - end
        ]
        at = end + 4
    return bytes(fixed)


def check_that_it_is_read_or_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    start = time.thread_time()
    with suppress(MetadataError):
        found = read(path)
        assert found is None or isinstance(found, Settings)
    assert time.thread_time() - start < 2


FUZZED = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def damaging(examples: int) -> Callable[..., None]:
    """Return a test of so many damaged files."""

    @settings(FUZZED, max_examples=examples)
    @given(whole=st.sampled_from(WHOLE), changes=CHANGES, repaired=st.booleans())
    @example(WHOLE[0], [("length", 33, 1, 2**32 - 1)], False)
    @example(WHOLE[4], [("cut", 100, 1, 0)], False)
    def test(tmp_path: Path, whole: bytes, changes: list[Change], repaired: bool) -> None:
        content = changed(whole, changes)
        if repaired and content.startswith(b"\x89PNG"):
            content = with_checksums(content)
        check_that_it_is_read_or_refused(tmp_path / "picture", content)

    return test


test_damaged_files_are_read_or_refused = damaging(100)
test_many_damaged_files_are_read_or_refused = pytest.mark.slow(damaging(1000))


ENTRIES = st.lists(
    st.tuples(
        st.sampled_from([EXIF_DIRECTORY, USER_COMMENT, 0x8825, 0xA005, 0x927C, 0x0111]),
        st.sampled_from([*range(14), 0xFFFF]),
        st.sampled_from(NUMBERS) | st.integers(0, 99),
        st.sampled_from(NUMBERS) | st.integers(0, 99),
    ),
    max_size=5,
)


@settings(FUZZED, max_examples=150)
@given(ENTRIES, ENTRIES, st.binary(max_size=40), st.sampled_from("<>"), st.booleans())
def test_any_directory_is_read_or_refused(
    tmp_path: Path, main: list[Entry], inner: list[Entry], rest: bytes, order: str, is_jpeg: bool
) -> None:
    pointer = (EXIF_DIRECTORY, LONG, 1, 8 + 2 + 12 * (len(main) + 1) + 4)
    block = tiff(order, [*main, pointer], inner, rest)
    content = jpeg((0xE1, b"Exif\0\0" + block)) if is_jpeg else webp((b"EXIF", block))
    check_that_it_is_read_or_refused(tmp_path / "picture", content)


@settings(FUZZED, max_examples=120)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"tEXt", b"zTXt", b"iTXt", b"eXIf", b"acTL", b"abCd"]),
            st.sampled_from([b"", b"parameters", b"parameters\0", b"parameters\0\1\0\0\0"]),
            st.binary(max_size=20) | st.just(TEXT.encode()) | st.text().map(str.encode),
            st.booleans(),
        ),
        max_size=4,
    )
)
def test_any_text_chunks_are_read_or_refused(
    tmp_path: Path, chunks: list[tuple[bytes, bytes, bytes, bool]]
) -> None:
    content = png(
        *((kind, start + (zlib.compress(data) if packed else data))
          for kind, start, data, packed in chunks)
    )  # fmt: skip
    check_that_it_is_read_or_refused(tmp_path / "picture", content)
