"""Pictures that requests start from: how they are opened, reduced and masked."""

import asyncio
import io
import struct
import threading
from dataclasses import replace
from typing import Any

import anyio
import numpy as np
import pytest
from PIL import Image

from pipeline.facts import ControlFacts, Facts
from pipeline.images.inputs import read_fitted, read_image
from pipeline.images.opening import MAX_SIDE
from pipeline.text.controls import Control
from serving.generator import ErrorKind, Request, RequestError
from serving.messages import Code, Message
from serving.requests import inputs
from serving.requests.inputs import Input, Inputs
from tests.fake_pipeline import FakePipeline
from tests.generators import refuses
from tests.pictures import png

MODEL = FakePipeline.facts
SIZES = replace(MODEL, more_sizes=((16, 8), (8, 16)))
REQUEST = Request("a star", seed=7, address="one")


def saved(image: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def plain(width: int, height: int, colour: Any = (10, 20, 30)) -> Image.Image:
    return Image.new("RGBA" if len(colour) == 4 else "RGB", (width, height), colour)


def with_hole(width: int, height: int, box: tuple[int, int, int, int]) -> Image.Image:
    """Return a picture with a transparent part, whose hidden colour is black."""
    picture = plain(width, height, (10, 20, 30, 255))
    picture.paste((0, 0, 0, 0), box)
    return picture


def added(given: Input, request: Request = REQUEST, facts: Facts = SIZES) -> Request:
    return asyncio.run(Inputs().added(request, given, facts))


def opened(png: bytes | None) -> Image.Image:
    assert png is not None
    return Image.open(io.BytesIO(png), formats=["PNG"])


def refusal(given: Input, **changes: Any) -> RequestError:
    with pytest.raises(RequestError) as refused:
        added(given, replace(REQUEST, **changes))
    return refused.value


def test_a_request_without_a_picture_stays_as_it_is():
    assert added(Input()) is REQUEST


def test_a_picture_is_cut_and_reduced_as_the_pipeline_would_do():
    noise = np.random.default_rng(0).integers(0, 256, (40, 64, 3), np.uint8)
    found = opened(added(Input(saved(Image.fromarray(noise)))).image)
    assert (found.mode, found.size) == ("RGB", (8, 8))
    right = read_fitted(Image.fromarray(noise), 8, 8)
    np.testing.assert_array_equal(read_image(found), right)


def test_a_small_picture_is_not_enlarged():
    assert opened(added(Input(saved(plain(6, 4)))).image).size == (6, 4)


def test_a_picture_around_a_part_that_is_drawn_keeps_its_size(monkeypatch: pytest.MonkeyPatch):
    mask = saved(plain(40, 20, (255, 255, 255)))
    given = Input(saved(plain(40, 20)), mask)
    request = replace(REQUEST, padding=4)
    found = added(given, request)
    assert opened(found.image).size == opened(found.mask).size == (40, 20)
    monkeypatch.setattr(inputs, "MAX_PIXELS", 200)
    found = added(given, request)
    assert opened(found.image).size == opened(found.mask).size == (20, 10)


@pytest.mark.parametrize("size", [(MAX_SIDE, 1), (1, MAX_SIDE), (MAX_SIDE, 300)])
def test_a_thin_picture_is_reduced_too(monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]):
    most = MAX_SIDE  # as many pixels as the longest row
    monkeypatch.setattr(inputs, "MAX_PIXELS", most)
    given = Input(saved(plain(*size)), saved(plain(*size, (255, 255, 255))))
    found = added(given, replace(REQUEST, padding=8))
    width, height = opened(found.image).size
    assert opened(found.mask).size == (width, height)
    assert width * height <= most


@pytest.mark.parametrize(
    ("width", "height", "size"), [(50, 50, None), (90, 50, (16, 8)), (20, 30, (8, 16))]
)
def test_the_size_of_the_nearest_shape(width: int, height: int, size: tuple[int, int] | None):
    given = Input(saved(plain(width, height)), any_size=True)
    assert added(given).size == (size or (8, 8))
    assert added(given, replace(REQUEST, size=(8, 16))).size == (8, 16)
    assert added(replace(given, any_size=False)).size is None


def test_white_is_redrawn_and_transparency_is_white():
    mask = plain(8, 8, (0, 0, 0))
    mask.paste((255, 255, 255), (0, 0, 8, 2))
    found = added(Input(saved(with_hole(8, 8, (0, 4, 8, 8))), saved(mask)))
    assert opened(found.image).getpixel((0, 7)) == (255, 255, 255)
    assert opened(found.mask).getbbox() == (0, 0, 8, 2)


def test_transparency_is_redrawn():
    given = Input(saved(with_hole(8, 8, (0, 4, 8, 8))), redrawn="transparent")
    found = added(given)
    assert opened(found.mask).getbbox() == (0, 4, 8, 8)
    # Nothing of the hidden colour can reach the edge of the redrawn part.
    assert opened(found.image).getcolors() == [(64, (10, 20, 30))]
    mask = saved(with_hole(8, 8, (2, 2, 4, 4)))
    found = added(replace(given, image=saved(plain(8, 8)), mask=mask))
    assert opened(found.mask).getbbox() == (2, 2, 4, 4)
    for opaque in (plain(8, 8), plain(8, 8, (1, 2, 3, 255))):
        assert added(replace(given, image=saved(opaque))).mask is None
        # As without a mask.
        found = added(replace(given, mask=saved(opaque)))
        assert opened(found.mask).getbbox() == (0, 4, 8, 8)


def png16(colour_type: int, *values: int, transparent: int | None = None) -> bytes:
    """Return a grey PNG file of 4x2 pixels with 16 bits a value, which Pillow cannot write."""
    rows = 2 * (b"\0" + struct.pack(f">{len(values)}H", *values))
    chunks = [] if transparent is None else [(b"tRNS", struct.pack(">H", transparent))]
    return png(*chunks, size=(4, 2), colour_type=colour_type, depth=16, rows=rows)


def in_mode(mode: str) -> bytes:
    """Return a mask in a mode with an alpha channel that is opaque; its right half is white."""
    mask = Image.new("RGB", (4, 2))
    mask.paste("white", (2, 0, 4, 2))
    if mode != "P":
        return saved(mask.convert("RGBA").convert(mode))
    file = io.BytesIO()
    mask.quantize(4).save(file, "PNG", transparency=bytes([255] * 4))
    return file.getvalue()


@pytest.mark.parametrize(
    "mask",
    [
        in_mode("RGBA"),
        in_mode("LA"),
        in_mode("P"),
        png16(0, 0, 0, 65535, 65535),
        png16(0, 0, 0, 65535, 65535, transparent=300),
        png16(4, 0, 65535, 0, 65535, 65535, 65535, 65535, 65535),
    ],
    ids=["RGBA", "grey and alpha", "palette", "16 bits", "16 bits, tRNS", "16 bits, alpha"],
)
def test_an_alpha_channel_that_is_opaque_says_nothing(mask: bytes):
    given = Input(saved(plain(4, 2)), mask, "opaque")
    assert opened(added(given).mask).getbbox() == (2, 0, 4, 2)
    inverted = added(replace(given, inverted=True))
    assert opened(inverted.mask).getbbox() == (0, 0, 2, 2)
    assert added(replace(given, redrawn="transparent")).mask is None


def test_the_opaque_part_of_a_mask_with_transparency():
    given = Input(saved(plain(8, 8)), saved(with_hole(8, 8, (0, 0, 8, 4))), "opaque")
    assert opened(added(given).mask).getbbox() == (0, 4, 8, 8)


def test_a_mask_of_another_size():
    mask = plain(32, 16, (0, 0, 0))
    mask.paste((255, 255, 255), (16, 0, 32, 16))
    given = Input(saved(plain(8, 8)), saved(mask))
    assert refusal(given).message.code is Code.MASK_SIZE
    assert opened(added(replace(given, any_mask=True)).mask).getbbox() == (4, 0, 8, 8)


@pytest.mark.parametrize(
    ("frame", "columns"),
    [("stretch", "rrggbb"), ("crop", "gggggg"), ("fill", "rrggbb")],
)
def test_a_shape_that_is_not_drawn(frame: Any, columns: str):
    """A wide picture gets the shape that was asked for, within the size that is drawn."""
    wide = Image.new("RGB", (48, 8), (0, 200, 0))
    wide.paste((200, 0, 0), (0, 0, 16, 8))
    wide.paste((0, 0, 200), (32, 0, 48, 8))
    given = Input(saved(wide), frame=frame, shape=(12, 6))
    found = opened(added(given, replace(REQUEST, size=(8, 16)), SIZES).image)
    assert found.size == (8, 16)
    shown = np.asarray(found)[8, [0, 1, 3, 4, 6, 7]].argmax(axis=-1)
    assert "".join("rgb"[channel] for channel in shown) == columns


@pytest.mark.parametrize("redrawn", ["white", "opaque"])
def test_wrong_masks(redrawn: Any):
    image = saved(plain(8, 8))
    given = Input(image, saved(plain(8, 8, (0, 0, 0))), redrawn)
    assert refusal(given).message.code is Code.EMPTY_MASK
    found = refusal(replace(given, mask=saved(plain(8, 9))))
    assert str(found) == "mask is 8x9 pixels; expected 8x8, the size of image"
    found = refusal(replace(given, mask=b"no picture"))
    assert (found.field, found.message.code) == ("mask", Code.UNUSABLE_PICTURE)
    assert refusal(replace(given, image=None)).message.code is Code.WITHOUT


def test_a_wrong_picture_is_named_with_the_reason():
    found = refusal(Input(b"<svg/>"))
    assert (found.field, found.kind) == ("image", ErrorKind.INVALID)
    assert str(found) == (
        "image cannot be used: it is not a PNG, JPEG or WebP file;"
        " expected a PNG, JPEG or WebP picture"
    )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"strength": 0.01}, "strength"),
        ({"strength": 7.0}, "strength"),
        ({"guidance_scale": 99.0}, "guidance_scale"),
        ({"size": (99_999, 99_999)}, "size"),
        ({"padding": 8}, "padding"),
        ({"recipe": "none"}, "recipe"),
        ({"enlarge": "99999x99999"}, "enlarge"),
        ({"enlarge": "8x8", "enlarge_strength": 0.01}, "enlarge_strength"),
    ],
)
def test_nothing_is_opened_for_a_request_that_is_refused(changes: dict[str, Any], field: str):
    """The files are none, which would be the error if one were opened."""
    assert refusal(Input(b"no picture"), **changes).field == field


def test_few_files_are_opened_at_a_time(monkeypatch: pytest.MonkeyPatch):
    gate, most, now = threading.Event(), 0, 0

    def slow(request: Request, *_: Any) -> Request:
        nonlocal most, now
        now += 1
        most = max(most, now)
        gate.wait()
        now -= 1
        return request

    monkeypatch.setattr(inputs, "_opened", slow)

    async def test() -> None:
        takes = Inputs()
        given = Input(saved(plain(8, 8)))
        each = [takes.added(REQUEST, given, SIZES) for _ in range(inputs.MOST_OPENING_EACH)]
        tasks = [asyncio.create_task(work) for work in each]
        await anyio.sleep(0)
        with refuses(ErrorKind.TOO_MANY):
            await takes.added(REQUEST, given, SIZES)
        others = asyncio.create_task(takes.added(replace(REQUEST, address="two"), given, SIZES))
        await anyio.sleep(0)
        gate.set()
        await asyncio.gather(*tasks, others)
        await takes.added(REQUEST, given, SIZES)

    asyncio.run(test())
    assert most == 1


def test_addresses_take_turns_and_a_refusal_names_the_picture(monkeypatch: pytest.MonkeyPatch):
    gate, order = threading.Event(), []

    def slow(request: Request, *_: Any) -> Request:
        gate.wait()
        order.append(request.address)
        return request

    monkeypatch.setattr(inputs, "_opened", slow)

    async def test() -> None:
        takes, given = Inputs(), Input(saved(plain(8, 8)))

        def added(address: str) -> asyncio.Task[Request]:
            work = takes.added(replace(REQUEST, address=address), given, SIZES)
            return asyncio.create_task(work)

        tasks = [added(address) for address in ("a",) * inputs.MOST_OPENING_EACH + ("b",)]
        await anyio.sleep(0)
        with pytest.raises(RequestError) as refused:
            await added("a")
        assert (refused.value.message.code, refused.value.field) == (Code.TOO_MANY_UPLOADS, "image")
        gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(test())
    assert order == list("aabaa")


@pytest.mark.parametrize(
    ("named", "others"), [("depth", ()), ("depth", ("canny",)), ("canny,depth", ("canny",))]
)
def test_a_control_that_is_not_there_is_refused(named: str, others: tuple[str, ...]):
    controls = tuple(ControlFacts(name, "0" * 8) for name in others)
    facts = replace(SIZES, controls=controls)
    with pytest.raises(RequestError) as refused:
        added(Input(saved(plain(16, 8))), replace(REQUEST, controls=named), facts)
    assert refused.value.message == Message(
        Code.UNKNOWN_CONTROL, {"field": "controls", "value": "depth"}
    )
    assert refused.value.field == "controls"


@pytest.mark.parametrize("size", [(16, 8), (48, 20), (5, 3)])
def test_the_map_of_a_picture_has_the_size_of_its_shape(size: tuple[int, int]):
    control = Control("canny", preprocessor="canny")
    work = Inputs().map_of("one", saved(plain(*size)), control, SIZES.sizes)
    assert opened(asyncio.run(work)).size == (16, 8)


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        (b"<svg/>", {}),
        (saved(plain(90, 1)), {}),
        (saved(plain(16, 8)), {"preprocessor": "depth"}),
        (saved(plain(16, 8)), {"threshold_a": 999.0}),
    ],
)
def test_a_map_that_cannot_be_made_is_refused(file: bytes, changes: dict[str, Any]):
    control = replace(Control("canny", preprocessor="canny"), **changes)
    with refuses(Code.UNUSABLE_PICTURE):
        asyncio.run(Inputs().map_of("one", file, control, SIZES.sizes))
