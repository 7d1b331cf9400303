"""Pictures that anybody may have made: opened, or refused in bounded time and memory."""

import io
import json
import struct
import subprocess
import sys
import time
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image, ImageCms, PngImagePlugin

from pipeline.errors import InputError
from pipeline.images import opening
from pipeline.images.opening import open_picture
from tests.pictures import (
    HOSTILE,
    KINDS,
    WHOLE,
    _profile,
    directory,
    png,
    progressive,
    saved,
    smooth,
    webp,
)

ROOT = Path(__file__).parents[3]
REFUSED_WITHIN = 1.0  # seconds of its thread: other tests leave threads that work meanwhile
MOST_EXTRA = 256 * 2**20  # bytes beyond the file's own
RNG = np.random.default_rng(0)


def difference(found: Image.Image, right: Image.Image) -> int:
    assert found.size == right.size
    pixels = (np.asarray(each.convert("RGB"), np.int64) for each in (found, right))
    return int(np.abs(np.subtract(*pixels)).max())


def text_bomb() -> bytes:
    return png((b"zTXt", b"parameters\0\0" + zlib.compress(bytes(50_000_000), 9)))


def exif_bomb() -> bytes:
    """Return a WebP file in whose EXIF each of many entries claims the whole block."""
    block = b"II*\0" + struct.pack("<I", 8)
    entries = [(0x9000 + i, 7, 4_000_000, 0) for i in range(2000)]
    data = block + directory("<", entries) + bytes(4_000_000)
    return saved(smooth(), "WEBP", exif=b"Exif\0\0" + data)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_at_once(name: str) -> None:
    make, message = HOSTILE[name]
    content = make()
    start = time.thread_time()
    with pytest.raises(
        InputError, match=rf"^image cannot be used: .*({message}).*; expected a PNG"
    ):
        open_picture(content)
    assert time.thread_time() - start < REFUSED_WITHIN


CHILD = """
import json, resource, sys
from pathlib import Path
from pipeline.errors import InputError
from pipeline.images.opening import open_picture

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

before = peak()
grown = {}
for name in sys.argv[1:]:
    with open(name, "rb") as file:
        try:
            open_picture(file)
        except InputError:
            pass
    grown[name] = peak() - before
print(json.dumps(grown))
"""


@pytest.mark.lasting
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_no_file_takes_much_memory(tmp_path: Path) -> None:
    files = []
    for name, (make, _) in {**HOSTILE, "text": (text_bomb, ""), "exif": (exif_bomb, "")}.items():
        files.append(tmp_path / name)
        files[-1].write_bytes(make())
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *files], capture_output=True, check=True, cwd=ROOT, text=True
    )
    grown = json.loads(done.stdout)
    assert max(grown.values()) * 1024 < MOST_EXTRA, grown


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_is_opened_as_it_is(kind: str) -> None:
    right = smooth()
    found = open_picture(io.BytesIO(saved(right, kind, quality=95)))
    assert found.mode == "RGB"
    assert difference(found, right) <= (0 if kind == "PNG" else 12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(1, 9))
def test_pictures_are_turned_upright(kind: str, number: int) -> None:
    """A camera writes the picture as its sensor is held, and how to turn it."""
    upright = smooth()
    undo = {
        **opening._TURNS,
        6: Image.Transpose.ROTATE_90,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright.transpose(undo[number]) if number > 1 else upright
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = number
    found = open_picture(saved(stored, kind, quality=95, exif=exif))
    assert difference(found, upright) <= 12
    assert not found.info


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_transparency_is_kept(kind: str) -> None:
    image = smooth()
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    found = open_picture(saved(image, kind, lossless=True, exact=True))
    assert found.mode == "RGBA"
    np.testing.assert_array_equal(np.asarray(found), np.asarray(image))


def test_transparency_of_a_palette() -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 255, 0, 0])
    image.putpixel((0, 0), 0)
    found = open_picture(saved(image, transparency=0))
    assert found.mode == "RGBA"
    assert (found.getpixel((0, 0)), found.getpixel((1, 1))) == ((0, 0, 0, 0), (255, 0, 0, 255))


def test_sixteen_bits() -> None:
    values = np.linspace(0, 65535, 48, dtype=np.uint16).reshape(6, 8)
    found = open_picture(saved(Image.fromarray(values)))
    assert found.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(found)[..., 0], values >> 8)


def test_grey_and_black_and_white() -> None:
    grey = smooth().convert("L")
    assert difference(open_picture(saved(grey)), grey) == 0
    assert difference(open_picture(saved(grey.convert("1"))), grey.convert("1")) == 0
    with_alpha = grey.copy()
    with_alpha.putalpha(128)
    assert open_picture(saved(with_alpha)).getpixel((0, 0)) == (*[grey.getpixel((0, 0))] * 3, 128)


def test_cmyk() -> None:
    image = smooth()
    found = open_picture(saved(image.convert("CMYK"), "JPEG", quality=95))
    assert found.mode == "RGB"
    assert difference(found, image) <= 12


@pytest.mark.parametrize("kind", KINDS)
def test_colours_of_other_profiles_are_converted(kind: str) -> None:
    image = smooth()
    same = open_picture(saved(image, kind, quality=95, icc_profile=_profile(swap=False)))
    assert difference(same, image) <= 12
    found = open_picture(saved(image, kind, quality=95, icc_profile=_profile(swap=True)))
    red, green, blue = image.split()
    assert difference(found, Image.merge("RGB", (green, red, blue))) <= 16


def test_a_profile_that_cannot_be_read_is_ignored() -> None:
    image = smooth()
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    for profile in (b"nonsense" * 40, lab):
        assert difference(open_picture(saved(image, icc_profile=profile)), image) == 0


def test_texts_and_exif_are_not_read() -> None:
    for make in (text_bomb, exif_bomb):
        start = time.thread_time()
        with suppress(InputError):
            open_picture(make())
        assert time.thread_time() - start < 5 * REFUSED_WITHIN
    info = PngImagePlugin.PngInfo()
    info.add_text("parameters", "a star " * 500_000, zip=True)  # more than Pillow would read
    assert difference(open_picture(saved(smooth(), pnginfo=info)), smooth()) == 0


def test_a_large_photograph_is_made_smaller() -> None:
    content = saved(Image.new("RGB", (7000, 5000), "teal"), "JPEG")
    assert open_picture(content).size == (3500, 2500)


def test_as_many_scans_as_programs_write() -> None:
    content = saved(smooth(), "JPEG", quality=95, progressive=True)
    scans = content.count(b"\xff\xda")
    assert scans * opening.MAX_PIXELS <= opening.MAX_SCANNED
    assert difference(open_picture(content), smooth()) <= 12


def test_a_film_after_a_photograph_is_left_out() -> None:
    content = saved(smooth(), "JPEG", quality=95) + b"\xff\xda" * 1000
    assert difference(open_picture(content), smooth()) <= 12


def test_the_argument_is_named() -> None:
    with pytest.raises(InputError, match=r"^mask cannot be used: it is not a PNG"):
        open_picture(b"", "mask")


# --- fuzzing


def _opened_or_refused(content: bytes) -> None:
    start = time.thread_time()
    with suppress(InputError):
        assert open_picture(content).mode in ("RGB", "RGBA")
    assert time.thread_time() - start < 2 * REFUSED_WITHIN


FUZZED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _check_damaged(content: bytes, changes: list[tuple[float, bytes]], cut: float) -> None:
    damaged = bytearray(content)
    for place, new in changes:
        at = int(place * len(damaged))
        damaged[at : at + len(new)] = new
    _opened_or_refused(bytes(damaged[: int(cut * len(damaged)) + 1]))


PLACES = st.floats(0, 1, exclude_max=True)
CHANGES = st.lists(st.tuples(PLACES, st.binary(min_size=1, max_size=8)), max_size=6)
CUTS = st.one_of(st.just(1.0), PLACES)


@settings(FUZZED, max_examples=60)
@given(st.sampled_from(WHOLE), CHANGES, CUTS)
def test_damaged_files(content: bytes, changes: list[tuple[float, bytes]], cut: float) -> None:
    _check_damaged(content, changes, cut)


@pytest.mark.slow
@settings(FUZZED, max_examples=5000)
@given(st.sampled_from(WHOLE), CHANGES, CUTS)
def test_many_damaged_files(content: bytes, changes: list[tuple[float, bytes]], cut: float) -> None:
    _check_damaged(content, changes, cut)


CHUNKS = st.lists(
    st.tuples(
        st.sampled_from([b"IHDR", b"PLTE", b"tRNS", b"iCCP", b"gAMA", b"IDAT", b"acTL", b"eXIf"]),
        st.binary(max_size=40),
    ),
    max_size=6,
)
SIDES = [0, 1, 8, 4000, opening.MAX_SIDE, opening.MAX_SIDE + 1, 33_000_000, 2**31]
SIZES = st.tuples(*[st.sampled_from(SIDES)] * 2)
COLOUR_TYPES = st.sampled_from([0, 2, 3, 4, 6])  # 3 has a palette


@settings(FUZZED, max_examples=40)
@given(CHUNKS, SIZES, COLOUR_TYPES)
def test_any_chunks(
    chunks: list[tuple[bytes, bytes]], size: tuple[int, int], colour_type: int
) -> None:
    _opened_or_refused(png(*chunks, size=size, colour_type=colour_type))
    if max(size) <= 2**14 and min(size) > 0:
        _opened_or_refused(webp(*chunks, size=size))


@pytest.mark.lasting
@settings(FUZZED, max_examples=10)
@given(st.integers(0, 200), st.sampled_from([8, 1000, 2600, 8184]))
def test_any_number_of_scans(scans: int, side: int) -> None:
    _opened_or_refused(progressive(scans, side))
