"""Pictures and masks of a request, as arrays of a size that was compiled."""

import numpy as np
from PIL import Image

from pipeline.errors import InputError

Picture = Image.Image | np.ndarray

REDRAWN = 0.5  # a mask's least value where the picture is redrawn
_GREY = 0.5  # the masked part of the picture that networks for inpainting take


def read_image(image: Picture, name: str = "image") -> np.ndarray:
    """Return a picture as `[H, W, 3]` float32 in 0..1.

    Args:
        image: a picture of any mode, whose transparent parts become white; or `[H, W, 3]` float32
            in 0..1.
        name: the argument that it was given as, for messages.

    Raises:
        InputError: if it is neither.
    """
    if isinstance(image, Image.Image):
        return _read_pillow(image)
    return _checked(image, name, 3, "a PIL picture or [height, width, 3] float32 in 0..1")


def _read_pillow(image: Image.Image) -> np.ndarray:
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), layer)
    return np.asarray(image.convert("RGB"), np.float32) / 255


def read_mask(mask: Picture, name: str = "mask") -> np.ndarray:
    """Return a mask as `[H, W]` float32: 1 where the picture is redrawn, 0 where it is kept.

    Args:
        mask: a picture whose white parts are redrawn; or `[H, W]` float32 in 0..1. Greys are
            rounded to black and white.
        name: the argument that it was given as, for messages.

    Raises:
        InputError: if it is neither.
    """
    if isinstance(mask, Image.Image):
        values = np.asarray(Image.fromarray(to_bytes(_read_pillow(mask))).convert("L")) / 255
    else:
        values = _checked(mask, name, None, "a PIL picture or [height, width] float32 in 0..1")
    return (values >= REDRAWN).astype(np.float32)


def transparent_mask(image: Image.Image) -> Image.Image | None:
    """Return the mask in mode "1" that redraws a picture's transparent parts; None without any.

    Many programs write an alpha channel that is opaque everywhere.
    """
    if not image.has_transparency_data:
        return None
    alpha = image.convert("RGBA").getchannel("A")
    mask = alpha.point([255 * (value < 255 * REDRAWN) for value in range(256)], "1")
    return None if mask.getbbox() is None else mask


def _checked(values: object, name: str, channels: int | None, expectation: str) -> np.ndarray:
    """Return an array of a picture or mask; raise InputError if it is none."""
    if not isinstance(values, np.ndarray):
        raise InputError(f"{name} is of type {type(values).__name__}; expected {expectation}")
    tail = () if channels is None else (channels,)
    if values.ndim != 2 + len(tail) or values.shape[2:] != tail or not values.size:
        raise InputError(f"{name} has the shape {list(values.shape)}; expected {expectation}")
    if values.dtype != np.float32:
        raise InputError(f"{name} is {values.dtype}; expected {expectation}")
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= 1):  # NaN is refused too
        raise InputError(f"{name} has values from {low} to {high}; expected {expectation}")
    return values


def fitted(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return a picture `[H, W, 3]` or a mask `[H, W]` of another size.

    Where its shape differs, it is cut at both sides, as much at one as at the other. A mask stays
    black and white.
    """
    top, left, bottom, right = centre(pixels.shape[0], pixels.shape[1], height, width)
    return resized(pixels[top:bottom, left:right], height, width)


def read_fitted(image: Picture, height: int, width: int) -> np.ndarray:
    """Return a picture as `[H, W, 3]` float32 in 0..1 of another size; see `fitted`.

    A PIL picture is reduced first, as servers do, so that the same bits come over HTTP.

    Raises:
        InputError: if it is no picture; see `read_image`.
    """
    if isinstance(image, Image.Image):
        picture = image.convert("RGBA" if image.has_transparency_data else "RGB")
        image = reduced(picture, height, width, Image.Resampling.LANCZOS)
    return fitted(read_image(image), height, width)


def reduced(
    image: Image.Image, height: int, width: int, resampling: Image.Resampling
) -> Image.Image:
    """Return a picture or mask with no more pixels than a size has.

    It is cut as by `fitted`, and then reduced to this size, but never enlarged. One that is small
    enough stays as it is.
    """
    if image.width * image.height > width * height:
        top, left, bottom, right = centre(image.height, image.width, height, width)
        image = image.crop((left, top, right, bottom))
    is_small = image.width * image.height < width * height
    return image if is_small else image.resize((width, height), resampling)


def centre(height: int, width: int, to_height: int, to_width: int) -> tuple[int, int, int, int]:
    """Return top, left, bottom and right of the part of a picture that `fitted` keeps."""
    scale = min(height / to_height, width / to_width)
    rows, columns = (max(1, round(scale * side)) for side in (to_height, to_width))
    top, left = (height - rows) // 2, (width - columns) // 2
    return top, left, top + rows, left + columns


def resized(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return a picture `[H, W, 3]` or a mask `[H, W]`, stretched to another size.

    Pictures are interpolated by Lanczos' filter. A mask's pixels are those nearest to the old ones.
    """
    if pixels.shape[:2] == (height, width):
        return pixels
    if pixels.ndim == 2:
        return _resized(pixels, height, width, Image.Resampling.NEAREST)
    planes = [
        _resized(plane, height, width, Image.Resampling.LANCZOS)
        for plane in np.moveaxis(pixels, -1, 0)
    ]
    return np.clip(np.stack(planes, axis=-1), 0, 1)


def _resized(
    plane: np.ndarray, height: int, width: int, resampling: Image.Resampling
) -> np.ndarray:
    image = Image.fromarray(np.ascontiguousarray(plane, np.float32))
    return np.asarray(image.resize((width, height), resampling))


def spread(pixels: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return a picture `[H, W, 3]` whose masked part has the colours of its surroundings.

    Args:
        pixels: the picture; its masked part is unknown, such as pixels behind transparency.
        mask: `[H, W]`, true in the masked part.
    """
    if mask.all():
        return pixels
    from scipy import ndimage  # here: it takes 0.2 s of a start

    indices = ndimage.distance_transform_edt(mask, return_distances=False, return_indices=True)
    assert indices is not None
    return pixels[tuple(indices)]


def masked(pixels: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return pictures `[..., H, W, 3]` with their masked parts in grey, for networks that inpaint.

    The masks are `[..., H, W]`.
    """
    return np.where(mask[..., None] >= REDRAWN, np.float32(_GREY), pixels)


def latent_mask(mask: np.ndarray, factor: int) -> np.ndarray:
    """Return a mask `[H, W]` in latent pixels, `[H / factor, W / factor, 1]`, as diffusers does."""
    return mask[::factor, ::factor, None]


def to_bytes(pixels: np.ndarray) -> np.ndarray:
    """Return float32 in 0..1 as uint8, rounded as on the devices."""
    return np.round(pixels * 255).astype(np.uint8)
