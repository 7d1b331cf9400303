"""Pictures and masks that requests start from: hostile files are opened, few at a time.

A request carries them as small PNG files, which are made here. They are as large as it can use, so
neither the queue nor another instance gets more.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from PIL import Image, ImageChops

from pipeline.errors import InputError
from pipeline.facts import Facts
from pipeline.images import inputs
from pipeline.images.opening import open_picture
from pipeline.images.png import encode_png
from pipeline.images.preparing import prepared
from pipeline.text.controls import Control
from serving.generator import Request, RequestError
from serving.messages import Code
from serving.requests.admission import check_fields, expand, wrong
from serving.requests.workers import Workers, once_per_loop

# Files that are opened, or wait for that: in all, and of one address.
MOST_OPENING, MOST_OPENING_EACH = 32, 4
MAX_PIXELS = 2**22  # of a picture that a request carries; a larger one is reduced
_TO_OPAQUE = [255 * (value <= 127) for value in range(256)]
_UNDRAWN = 5  # a mask that differs no more from black or from white has nothing in it
_TO_WHITE = [255 * (value >= 255 * inputs.REDRAWN) for value in range(256)]

Size = tuple[int, int]  # width and height
Frame = Literal["crop", "stretch", "fill"]


@dataclass(frozen=True)
class ControlFiles:
    """The picture of a control, as a client sent it.

    Attributes:
        image: a PNG, JPEG or WebP file.
        mask: such a file, which is stretched to the size of the image; or None.
        is_redrawn: whether the white part of the mask is redrawn. Otherwise a mask in which
            something is drawn takes the place of the image.
    """

    image: bytes
    mask: bytes | None = None
    is_redrawn: bool = False


@dataclass(frozen=True)
class Input:
    """Files to start from, as a client sent them.

    Attributes:
        image: a PNG, JPEG or WebP file, or None.
        mask: such a file of the same size, or None.
        any_mask: whether a mask of another size is stretched to that of the image.
        redrawn: the part of the mask that is redrawn: "white"; "opaque" if a part of the mask is
            transparent, otherwise white; or "transparent". With "transparent" and without a mask,
            it is the transparent part of the image. A mask without any counts as none.
        inverted: whether the other part of the mask is redrawn instead.
        spread: whether the redrawn part gets the colours around it first, so that nothing of it is
            kept.
        frame: how an image of another shape gets that of the request: "crop" cuts its sides off,
            "stretch" changes its shape, and "fill" adds sides in the colours of its edge. With
            `Request.padding`, an image keeps its shape.
        shape: the size that the client asked for, if the request is drawn in another one: the image
            gets this shape first, as `frame` says, and then sides in the colours of its edge.
        any_size: whether a request without a size gets the one whose shape is nearest to the
            image's, rather than the default.
        followed: files to follow, one for each of the request's controls; None stands for `image`.
    """

    image: bytes | None = None
    mask: bytes | None = None
    redrawn: Literal["white", "opaque", "transparent"] = "white"
    any_size: bool = False
    any_mask: bool = False
    inverted: bool = False
    spread: bool = False
    frame: Frame = "crop"
    shape: Size | None = None
    followed: tuple[ControlFiles | None, ...] = ()


class Inputs:
    """Opens the files of requests, one at a time, on a thread that addresses use in turns."""

    def __init__(self) -> None:
        # One thread bounds the memory, and leaves processors to the drawing.
        self._thread = Workers(1, MOST_OPENING, MOST_OPENING_EACH, Code.TOO_MANY_UPLOADS)

    async def added(self, request: Request, files: Input, facts: Facts) -> Request:
        """Return a request with the pictures that a client gave.

        All its fields are checked first, because they cost nothing.

        Raises:
            RequestError: if a field or a file cannot be used, or too many are being opened.
        """
        if files.image is None:
            if files.mask is not None:
                raise wrong(Code.WITHOUT, "mask", other="image")
            if None in files.followed:
                raise wrong(Code.WITHOUT, "controls", other="image")
            if not files.followed:
                return request
        check_fields(expand(_with_any_files(request, files), facts), facts)
        sizes = (request.size,) if request.size else facts.for_model(request.model).sizes
        work = partial(_opened, request, files, sizes if files.any_size else sizes[:1])
        try:
            return await self._thread.run(request.address, work)
        except RequestError as error:
            error.field = error.field or "image"
            raise

    async def detected(
        self, address: str, files: ControlFiles, detect: Callable[[np.ndarray], np.ndarray]
    ) -> bytes:
        """Return the PNG file of the map `[H, W, 3]` that `detect` makes of a picture.

        If a part of the picture is redrawn, that part is half transparent instead.

        Raises:
            InputError: if `detect` cannot use the picture.
            RequestError: if a file cannot be used, or too many are being opened.
        """

        def work() -> bytes:
            picture = _control_picture(files)
            pixels = np.asarray(picture if files.is_redrawn else _on_white(picture))
            detected_map = detect(pixels[..., :3])
            if files.is_redrawn:
                detected_map = np.dstack([detected_map, pixels[..., 3:] // 2 + 128])
            return encode_png(detected_map)

        return await self._thread.run(address, work)

    async def map_of(
        self, address: str, file: bytes, control: Control, sizes: Sequence[Size]
    ) -> bytes:
        """Return the map that a control makes of a picture to start from, as a PNG file.

        It has the one of `sizes` whose shape is the nearest to the picture's.

        Raises:
            RequestError: if the file cannot be used, or too many are being opened.
        """
        return await self._thread.run(address, partial(_map_of, file, control, sizes))


# The `Inputs` of this event loop, which the page and all APIs share.
shared = once_per_loop(Inputs)


def _with_any_files(request: Request, files: Input) -> Request:
    """Return a request with an image, and with a mask if the files may have one.

    A strength that is left out may become any, once the files are known.
    """
    if files.image is None:
        return request
    has_mask = files.mask is not None or files.redrawn == "transparent"
    strength = 1.0 if request.strength is None else request.strength
    return replace(request, image=b"", mask=b"" if has_mask else None, strength=strength)


def _opened(request: Request, files: Input, sizes: Sequence[Size]) -> Request:
    """Return a request with its pictures, in the one of `sizes` whose shape is the nearest."""
    if files.followed:
        followed = tuple(file and _followed(file) for file in files.followed)
        request = replace(request, followed=followed)
    if files.image is None:
        return request
    picture = _open(files.image, "image")
    mask = None if files.mask is None else _mask(files, picture.size)
    size = _nearest(sizes, picture)
    for shape, frame in _frames(files, size) if request.padding is None else ():
        picture = _framed(picture, shape, Image.Resampling.LANCZOS, frame)
        mask = None if mask is None else _framed(mask, shape, Image.Resampling.NEAREST, frame)
    if request.padding is None:
        picture = inputs.reduced(picture, size[1], size[0], Image.Resampling.LANCZOS)
    picture = _bounded(picture, Image.Resampling.LANCZOS)
    if mask is not None:
        if request.padding is None:
            mask = inputs.reduced(mask, size[1], size[0], Image.Resampling.NEAREST)
        mask = _bounded(mask, Image.Resampling.NEAREST)
        if mask.getbbox() is None:
            raise wrong(Code.EMPTY_MASK, "mask")
    pixels = np.asarray(_on_white(picture))
    if mask is None and files.redrawn == "transparent":
        mask = inputs.transparent_mask(picture)
        if mask is not None:
            pixels = inputs.spread(np.asarray(picture.convert("RGB")), np.asarray(mask))
    elif mask is not None and files.spread:
        pixels = inputs.spread(pixels, np.asarray(mask))
    return replace(
        request,
        size=request.size or (size if files.any_size else None),
        image=encode_png(pixels),
        mask=None if mask is None or mask.getbbox() is None else _written(mask),
    )


def _map_of(file: bytes, control: Control, sizes: Sequence[Size]) -> bytes:
    picture = _open(file, "image")
    width, height = _nearest(sizes, picture)
    picture = inputs.reduced(picture, height, width, Image.Resampling.LANCZOS)
    try:
        return encode_png(inputs.to_bytes(prepared(control, picture, height, width).clip(0, 1)))
    except InputError as error:
        raise wrong(Code.UNUSABLE_PICTURE, "image", reason=str(error)) from error


def _followed(files: ControlFiles) -> bytes:
    return encode_png(np.asarray(_control_picture(files)))


def _open(file: bytes, name: str) -> Image.Image:
    try:
        return open_picture(file, name)
    except InputError as error:
        raise wrong(Code.UNUSABLE_PICTURE, name, reason=str(error.__cause__)) from error


def _control_picture(files: ControlFiles) -> Image.Image:
    """Return a picture to follow, which keeps its transparent parts."""
    picture = _bounded(_open(files.image, "controls"), Image.Resampling.LANCZOS)
    if files.mask is None:
        return picture
    picture = _on_white(picture)
    mask = _on_white(_open(files.mask, "controls")).resize(picture.size).getchannel("R")
    if files.is_redrawn:
        picture.putalpha(mask.point(_TO_OPAQUE))
        return picture
    values = np.asarray(mask)
    is_drawn = values.max() > _UNDRAWN and values.min() < 255 - _UNDRAWN
    return mask.convert("RGB") if is_drawn else picture


def _mask(files: Input, size: Size) -> Image.Image | None:
    """Return the given mask in mode "1", white where the picture is redrawn; None without any."""
    assert files.mask is not None
    mask = _open(files.mask, "mask")
    if mask.size != size and not files.any_mask:
        value, expected = ("{}x{}".format(*shape) for shape in (mask.size, size))
        raise wrong(Code.MASK_SIZE, "mask", value=value, expected=expected)
    mask = mask.resize(size, Image.Resampling.LANCZOS)
    if files.redrawn == "transparent":
        return inputs.transparent_mask(mask)
    if files.redrawn == "opaque" and (hidden := inputs.transparent_mask(mask)):
        redrawn_part = ImageChops.invert(hidden)
    else:
        redrawn_part = _on_white(mask).convert("L").point(_TO_WHITE, "1")
    return ImageChops.invert(redrawn_part) if files.inverted else redrawn_part


def _on_white(picture: Image.Image) -> Image.Image:
    """Return a picture in mode "RGB", with white where it is transparent."""
    if picture.mode == "RGBA":
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert("RGB")


def _nearest(sizes: Sequence[Size], picture: Image.Image) -> Size:
    """Return the size whose shape is the nearest to a picture's."""
    return min(sizes, key=lambda size: unlikeness(size, picture.size))


def unlikeness(size: Size, other_size: Size) -> float:
    """Return how far the shapes of two sizes differ; 0 for equal shapes."""
    return abs(np.log(size[0] * other_size[1] / (size[1] * other_size[0])))


def _bounded(picture: Image.Image, by: Image.Resampling) -> Image.Image:
    """Return a picture or mask with at most `MAX_PIXELS` pixels."""
    width, height = picture.size
    scale = (MAX_PIXELS / (width * height)) ** 0.5
    if scale >= 1:
        return picture
    return picture.resize((max(1, int(scale * width)), max(1, int(scale * height))), by)


def _frames(files: Input, size: Size) -> list[tuple[Size, Frame]]:
    """Return the shapes that an image gets, one after the other, and how.

    An image that is only cut to the size that is drawn stays as it is: it is cut when it is drawn.
    """
    if files.shape is not None:
        return [(files.shape, files.frame), (size, "fill")]
    return [] if files.frame == "crop" else [(size, files.frame)]


def _framed(picture: Image.Image, size: Size, by: Image.Resampling, frame: Frame) -> Image.Image:
    """Return a picture or mask with the shape of a size.

    It is cut to this shape, stretched to this size, or set within it with its edges repeated.
    """
    if frame == "crop":
        top, left, bottom, right = inputs.centre(picture.height, picture.width, size[1], size[0])
        return picture.crop((left, top, right, bottom))
    if frame == "stretch":
        return picture.resize(size, by)
    scale = min(target / side for target, side in zip(size, picture.size, strict=True))
    width, height = (max(1, round(scale * side)) for side in picture.size)
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    sides = (top, size[1] - height - top), (left, size[0] - width - left)
    pixels = np.asarray(picture.resize((width, height), by))
    return Image.fromarray(np.pad(pixels, (*sides, *[(0, 0)] * (pixels.ndim - 2)), mode="edge"))


def _written(mask: Image.Image) -> bytes:
    file = io.BytesIO()
    mask.save(file, "PNG")
    return file.getvalue()
