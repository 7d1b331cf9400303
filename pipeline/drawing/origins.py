"""The pictures and masks that a request starts from, in the size in which it is drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from pipeline.errors import InputError
from pipeline.images import canvas
from pipeline.images.canvas import Frame
from pipeline.images.inputs import Picture, fitted, read_fitted, read_image, read_mask, resized
from pipeline.request import Request, check_count, check_faults

T = TypeVar("T")
SIDES = ("top", "left", "bottom", "right")
MAX_SIDE = 8192  # pixels that are added
EXTEND_PADDING = 32  # pixels of a picture around its new parts that are drawn with them
Given: TypeAlias = Picture | Sequence[Picture] | None  # one for all pictures, or one for each


class Inputs(NamedTuple):
    """The arrays that a request starts from; see `SDXLPipeline.generate`.

    Attributes:
        image: pictures to start from.
        mask: the parts of them to redraw.
        latents: noise in place of the seeds', or latents to go on from.
        denoising_start: the share of the denoising that the latents have had; None if they are
            noise.
        controls: the pictures to follow, one for each of the request's controls; None stands for
            `image`.
    """

    image: Given = None
    mask: Given = None
    latents: np.ndarray | None = None
    denoising_start: float | None = None
    controls: Sequence[Given] = ()


NO_INPUTS = Inputs()


@dataclass(frozen=True)
class Origin:
    """The pictures that a request's n pictures start from.

    Attributes:
        images: `[n, H, W, 3]` float32 in 0..1, in the size in which they are drawn.
        masks: `[n, H, W]` float32, 1 where a picture is redrawn and 0 where it is kept; None
            without masks.
        frames: the picture around each drawn part, into which it is pasted; none without masks.
    """

    images: np.ndarray
    masks: np.ndarray | None
    frames: Sequence[Frame]

    def check_one_size(self) -> None:
        """Raise InputError if the results, which have the frames' sizes, fit no single array."""
        sizes = {frame.pixels.shape[1::-1] for frame in self.frames}
        if len(sizes) > 1:
            size_names = ", ".join(f"{width}x{height}" for width, height in sorted(sizes))
            raise InputError(
                f"image has pictures of the sizes {size_names}; expected a single size, because"
                " output_type 'np' puts all pictures into one array"
            )


def check_origin(
    request: Request,
    inputs: Inputs,
    takes_mask: bool = False,
    needs_image: bool = False,
) -> None:
    """Raise InputError if an argument is missing that another one or the model needs.

    Args:
        request: the request.
        inputs: its arrays, or anything else in place of those that are there.
        takes_mask: whether the model draws only from a picture and a mask.
        needs_image: whether the model draws only from a picture or from latents.
    """
    start = inputs.denoising_start
    is_given = {
        "image": inputs.image is not None,
        "mask": inputs.mask is not None,
        "strength": request.strength is not None,
        "padding": request.padding is not None,
        "denoising_start": start is not None,
        "latents": inputs.latents is not None,
    }
    needs = {
        "mask": "image",
        "strength": "image",
        "padding": "mask",
        "denoising_start": "latents",
    }
    is_share = isinstance(start, int | float) and not isinstance(start, bool) and 0 <= start < 1
    check_faults(
        {
            f"denoising_start is {start!r}; expected a number from 0 to below 1": (
                start is not None and not is_share
            ),
            **{
                f"{name} is given without {needed}; pass {needed} too, or leave it out": (
                    is_given[name] and not is_given[needed]
                )
                for name, needed in needs.items()
            },
            "the model is for inpainting and draws nothing without image and mask": (
                takes_mask and not is_given["mask"]
            ),
            "the model is a refiner and draws nothing without image, or latents and"
            " denoising_start": needs_image and not is_given["image"] and start is None,
            "denoising_start goes on from latents; pass image only beside a mask": (
                start is not None and is_given["image"] and not is_given["mask"]
            ),
            "pass either latents or variation_strength, not both": (
                is_given["latents"] and start is None and request.variation_strength > 0
            ),
        }
    )


def read_origin(
    inputs: Inputs, images: int, height: int, width: int, padding: int | None
) -> Origin | None:
    """Return the pictures and masks of a request; None if it has no picture.

    Args:
        inputs: a picture, or one for each of the request's pictures, and masks of their sizes; see
            `read_image` and `read_mask`.
        images: the number of pictures.
        height, width: the size in which they are drawn.
        padding: the pixels around the masked part if it is drawn alone; None draws all.

    Raises:
        InputError: if one cannot be used; the message says why.
    """
    if inputs.image is None:
        return None
    pictures = pictures_of("image", inputs.image, images)
    if inputs.mask is None:
        fitted_pictures = [read_fitted(picture, height, width) for picture in pictures]
        return Origin(np.stack(repeated(fitted_pictures, images)), None, ())
    masks = [read_mask(mask) for mask in pictures_of("mask", inputs.mask, images)]
    count = max(len(pictures), len(masks))
    pairs = zip(repeated(pictures, count), repeated(masks, count), strict=True)
    masked_parts = [_masked(*pair, height, width, padding) for pair in pairs]
    parts, small_masks, frames = zip(*repeated(masked_parts, images), strict=True)
    return Origin(np.stack(parts), np.stack(small_masks), frames)


def _masked(
    source: Picture, mask: np.ndarray, height: int, width: int, padding: int | None
) -> tuple[np.ndarray, np.ndarray, Frame]:
    """Return the part of a picture that is drawn, its mask, and the frame around it."""
    picture = read_image(source)
    if mask.shape != picture.shape[:2]:
        size, wanted_size = (f"{shape[1]}x{shape[0]}" for shape in (mask.shape, picture.shape))
        raise InputError(f"mask is of size {size}; expected {wanted_size}, that of image")
    if not mask.any():
        raise InputError("mask is empty; expected at least one white pixel")
    if padding is None:
        picture, mask = read_fitted(source, height, width), fitted(mask, height, width)
        box = canvas.Box(0, 0, height, width)
    else:
        box = canvas.masked_box(mask, height, width, padding)
    part, small_mask = (resized(box.of(array), height, width) for array in (picture, mask))
    return part, small_mask, Frame.around(picture, box, mask)


def extended(
    image: Given, mask: Given, sides: Mapping[str, int]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return larger pictures and the masks of their new parts.

    Args:
        image: a picture, or several.
        mask: None.
        sides: the number of pixels to add, by the keys of `SIDES`.

    Raises:
        InputError: if a value cannot be used, or there is a mask or no picture.
    """
    if image is None or mask is not None:
        raise InputError("extend needs image, and makes the mask itself; pass no mask")
    for name, pixels in sides.items():
        if name not in SIDES:
            raise InputError(f"extend has the key {name!r}; expected {', '.join(map(repr, SIDES))}")
        check_count(f"extend[{name!r}]", pixels, 0, MAX_SIDE)
    pairs = [canvas.extended(read_image(picture), **sides) for picture in _listed(image)]
    return [picture for picture, _ in pairs], [mask for _, mask in pairs]


def pictures_of(name: str, value: Picture | Sequence[Picture], images: int) -> list[Picture]:
    """Return the pictures of an argument as a list: one, or as many as the request has."""
    pictures = _listed(value)
    if len(pictures) not in (1, images):
        raise InputError(
            f"{name} has {len(pictures)} pictures; expected one, or {images}, one for each"
        )
    return pictures


def _listed(value: Picture | Sequence[Picture]) -> list[Picture]:
    if isinstance(value, list | tuple):
        return [*value]
    return [value]  # type: ignore[list-item]  # `inputs` refuses anything else


def repeated(values: list[T], count: int) -> list[T]:
    """Return `count` values: those that there are, or a single one several times."""
    return values * count if len(values) == 1 else values
