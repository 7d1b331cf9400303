"""Preparation of a control's picture: the map that a ControlNet follows, in the pictures' size.

Preprocessors, their sliders and the rules for fitting are those of sd-webui-controlnet 1.1.455
(https://github.com/Mikubill/sd-webui-controlnet), so that its clients get the same maps.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Event
from typing import Literal

import numpy as np
from PIL import Image

from pipeline.errors import InputError, raise_if_cancelled
from pipeline.functions import import_function
from pipeline.images.inputs import REDRAWN, Picture, fitted, read_image, to_bytes
from pipeline.text.controls import MAX_RESOLUTION, Control

log = logging.getLogger(__name__)

MAX_RATIO = 8  # of a picture's longer side to its shorter one, so that no map is enormous
MAX_PIXELS = 2**23  # of a picture that a preprocessor reads; a larger one is reduced
MASKED = -1.0  # what networks for inpainting see in the part that is redrawn
_BLOCK = 64  # preprocessors read pictures whose sides are multiples of it
_DARK, _LIGHT = 16, 240  # two colours beyond these are black and white
_ROUNDS = 32  # of the thinning of lines, each of which takes a pixel off

# A preprocessor's computation: of a picture [H, W, 3] uint8 and the values of its sliders.
Function = Callable[[np.ndarray, float, float], np.ndarray]


@dataclass(frozen=True)
class Slider:
    """A number that a preprocessor takes."""

    name: str
    minimum: float
    maximum: float
    default: float
    step: float = 0.01


RESOLUTION = Slider("Resolution", 64, MAX_RESOLUTION, 512, 8)


@dataclass(frozen=True)
class Preprocessor:
    """How a map is made of a picture.

    Attributes:
        name: name in requests.
        function: makes the map `[H, W]` or `[H, W, C]`, uint8.
        label: another name of it, which sd-webui-controlnet's page shows; "" for the same.
        type: what a network of the union kind follows in such a map; "" if that is open.
        tags: the kinds of networks that it is for, as sd-webui-controlnet names them.
        sliders: those of `Control.threshold_a` and `threshold_b`, as far as it has them.
        reads: the picture that it reads: "original", "resized" to the resolution, or that one
            "padded" to multiples of 64 pixels.
        has_resolution: whether sd-webui-controlnet shows a resolution for it, even an unused one.
        priority: its place in sd-webui-controlnet's lists; the highest is first.
        takes_mask: whether the part of the picture that is redrawn is hidden from the network.
    """

    name: str
    function: Function
    label: str = ""
    type: str = ""
    tags: tuple[str, ...] = ()
    sliders: tuple[Slider, ...] = ()
    reads: Literal["original", "resized", "padded"] = "original"
    has_resolution: bool = True
    priority: int = 0
    takes_mask: bool = False


def _unchanged(image: np.ndarray, _a: float, _b: float) -> np.ndarray:
    return image


def _canny(image: np.ndarray, low: float, high: float) -> np.ndarray:
    import cv2

    return cv2.Canny(image, int(low), int(high))


def _invert(image: np.ndarray, _a: float, _b: float) -> np.ndarray:
    return 255 - image


def _xdog(image: np.ndarray, threshold: float, _: float) -> np.ndarray:
    import cv2

    pixels = image.astype(np.float32)
    fine, coarse = (cv2.GaussianBlur(pixels, (0, 0), sigma) for sigma in (0.5, 5.0))
    edges = 255 - (255 - np.min(coarse - fine, axis=2)).clip(0, 255).astype(np.uint8)
    # Steep edges wrap around in uint8 there, and networks were trained with such maps.
    return np.where(np.uint8(2) * edges > threshold, np.uint8(255), np.uint8(0))


def _threshold(image: np.ndarray, threshold: float, _: float) -> np.ndarray:
    return np.where(image.min(axis=2) > threshold, np.uint8(255), np.uint8(0))


def _blur(image: np.ndarray, sigma: float, _: float) -> np.ndarray:
    import cv2

    return cv2.GaussianBlur(image, (0, 0), sigma)


def _tile(image: np.ndarray, rate: float, _: float) -> np.ndarray:
    import cv2

    if rate < 1.1:
        return image
    height, width = (max(1, int(side / rate)) for side in image.shape[:2])
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)


def _luminance(image: np.ndarray, gamma: float, _: float) -> np.ndarray:
    import cv2

    # Networks were trained with maps that read red as blue.
    return _corrected(cv2.cvtColor(image, cv2.COLOR_BGR2LAB)[..., 0], gamma)


def _intensity(image: np.ndarray, gamma: float, _: float) -> np.ndarray:
    return _corrected(image.max(axis=2), gamma)


def _corrected(values: np.ndarray, gamma: float) -> np.ndarray:
    powers = (values.astype(np.float32) / 255) ** np.float32(gamma)
    return (powers * 255).clip(0, 255).astype(np.uint8)


_GAMMA = (Slider("Gamma Correction", 0.1, 2.0, 1.0, 0.001),)
_PREPROCESSORS = (
    Preprocessor("none", _unchanged, tags=("InstructP2P",), priority=10),
    Preprocessor(
        "canny",
        _canny,
        type="hard",
        tags=("Canny",),
        sliders=(
            Slider("Low Threshold", 1, 255, 100, 1),
            Slider("High Threshold", 1, 255, 200, 1),
        ),
        reads="padded",
        priority=100,
    ),
    Preprocessor(
        "invert",
        _invert,
        "invert (from white bg & black line)",
        type="hard",
        tags=("Canny", "Lineart", "Scribble", "MLSD"),
        has_resolution=False,
        priority=20,
    ),
    Preprocessor(
        "scribble_xdog",
        _xdog,
        type="soft",
        tags=("Scribble", "SparseCtrl"),
        sliders=(Slider("XDoG Threshold", 1, 64, 32),),
        reads="padded",
    ),
    Preprocessor(
        "threshold",
        _threshold,
        sliders=(Slider("Binarization Threshold", 0, 255, 127),),
        reads="padded",
    ),
    Preprocessor(
        "blur_gaussian",
        _blur,
        type="tile",
        tags=("Tile",),
        sliders=(Slider("Sigma", 0.01, 64, 9.0),),
        reads="resized",
    ),
    Preprocessor(
        "tile_resample",
        _tile,
        type="tile",
        tags=("Tile",),
        sliders=(Slider("Down Sampling Rate", 1.0, 8.0, 1.0),),
        priority=100,
    ),
    Preprocessor("recolor_luminance", _luminance, tags=("Recolor",), sliders=_GAMMA, priority=100),
    Preprocessor("recolor_intensity", _intensity, tags=("Recolor",), sliders=_GAMMA),
    Preprocessor(
        "inpaint_only",
        _unchanged,
        type="repaint",
        tags=("Inpaint",),
        has_resolution=False,
        priority=100,
        takes_mask=True,
    ),
    Preprocessor(
        "inpaint",
        _unchanged,
        "inpaint_global_harmonious",
        type="repaint",
        tags=("Inpaint",),
        has_resolution=False,
        takes_mask=True,
    ),
)
# The preprocessors that need no network, by name.
PREPROCESSORS = {preprocessor.name: preprocessor for preprocessor in _PREPROCESSORS}


def add_preprocessors(texts: Iterable[str], setting: str = "--preprocessors") -> None:
    """Add the operator's own preprocessors; see `load_preprocessor`."""
    loaded = [load_preprocessor(text, setting) for text in texts]
    PREPROCESSORS.update({preprocessor.name: preprocessor for preprocessor in loaded})


def load_preprocessor(text: str, setting: str = "--preprocessors") -> Preprocessor:
    """Return the operator's own preprocessor that a text such as "depth=my_module:function" names.

    The function is given a picture `[H, W, 3]` uint8 in the resolution of the map, and returns the
    map as uint8, `[H, W]`, `[H, W, 1]` or `[H, W, 3]`.

    Raises:
        InputError: if it is no such text, or the function cannot be imported.
    """
    name, separator, function_name = text.partition("=")
    if not (name and separator):
        raise InputError(f"{setting}: {text!r} is no preprocessor such as depth=my_module:function")
    function = import_function(function_name, setting)

    def guarded(image: np.ndarray, _a: float, _b: float) -> np.ndarray:
        try:
            values = np.asarray(function(image))
        except Exception as error:  # the operator's code can raise anything
            log.exception("The preprocessor %s failed", name)
            raise InputError(f"the preprocessor {name!r} failed") from error
        is_map = values.ndim == 2 or (values.ndim == 3 and values.shape[2] in (1, 3))
        if values.dtype != np.uint8 or not is_map or not values.size:
            shape = f"{values.dtype} of shape {list(values.shape)}"
            raise InputError(
                f"the preprocessor {name!r} returned {shape}; expected [H, W, 3] uint8"
            )
        return values

    return Preprocessor(name, guarded, reads="resized")


def find_preprocessor(name: str) -> Preprocessor:
    """Return the preprocessor with a name or label.

    Raises:
        InputError: if there is none; the message lists those that there are.
    """
    by_label = {preprocessor.label: preprocessor for preprocessor in PREPROCESSORS.values()}
    preprocessor = PREPROCESSORS.get(name) or by_label.get(name or "none")
    if preprocessor is None:
        names = ", ".join(map(repr, PREPROCESSORS))
        raise InputError(f"preprocessor is {name[:80]!r}; expected one of {names}")
    return preprocessor


def prepared(
    control: Control,
    image: Picture,
    height: int,
    width: int,
    mask: np.ndarray | None = None,
    *,
    masked: float = MASKED,
    cancelled: Event | None = None,
) -> np.ndarray:
    """Return what a control's network sees, `[height, width, 3]` float32 in 0..1.

    Args:
        control: the control; its own `image` is not read.
        image: its picture. For preprocessors of inpainting, its transparent parts are redrawn.
        height: that of the pictures that follow it.
        width: that of the pictures.
        mask: `[H, W]`, 1 where the pictures are redrawn, as large as they are. It counts for
            preprocessors of inpainting alone.
        masked: what these put in place of the part that is redrawn: -1, or 0 for networks of the
            union kind.
        cancelled: stops the preparation once it is set.

    Raises:
        Cancelled: if the request was cancelled.
        InputError: if it cannot be prepared; the message says why.
    """
    preprocessor = find_preprocessor(control.preprocessor)
    pixels = _read(image, preprocessor.takes_mask)
    rows, columns = pixels.shape[:2]
    resolution = control.resolution or pixel_perfect(
        rows, columns, height, width, control.resize_mode
    )
    thresholds = control.threshold_a, control.threshold_b
    detected_map = detected(preprocessor, pixels[..., :3], resolution, thresholds)
    if preprocessor.takes_mask:
        detected_map = np.concatenate([detected_map, pixels[..., 3:]], axis=2)
    raise_if_cancelled(cancelled)
    fit = fitted_map(detected_map, height, width, control.resize_mode)
    raise_if_cancelled(cancelled)
    hint = fit[..., :3].astype(np.float32) / 255
    if preprocessor.takes_mask:
        hint[fit[..., 3] > 127] = masked
        if mask is not None:
            hint[fitted(mask, height, width) >= REDRAWN] = masked
    return hint


def _read(image: Picture, takes_mask: bool) -> np.ndarray:
    """Return a picture as `[H, W, 3]` uint8, or `[H, W, 4]` with the mask of its hidden parts."""
    if takes_mask and isinstance(image, Image.Image):
        layers = np.asarray(image.convert("RGBA"))  # hidden pixels keep their colours
        is_hidden = layers[..., 3] < 255 * REDRAWN
        return np.dstack([layers[..., :3], 255 * is_hidden.astype(np.uint8)])
    pixels = to_bytes(read_image(image))
    return np.pad(pixels, ((0, 0), (0, 0), (0, int(takes_mask))))


def pixel_perfect(rows: int, columns: int, height: int, width: int, resize_mode: str) -> int:
    """Return the resolution in which a picture's map has as many pixels as the pictures."""
    scale = (min if resize_mode == "fill" else max)(height / rows, width / columns)
    return max(1, round(scale * min(rows, columns)))


def detected(
    preprocessor: Preprocessor,
    image: np.ndarray,
    resolution: int,
    thresholds: tuple[float | None, float | None] = (None, None),
) -> np.ndarray:
    """Return the map `[H, W, 3]` that a preprocessor makes of a picture `[H, W, 3]`, both uint8.

    Args:
        preprocessor: the preprocessor.
        image: the picture.
        resolution: the shorter side of the map, for those that do not read the original.
        thresholds: the values of its sliders; None for their defaults.

    Raises:
        InputError: if the picture is too long, a value is out of range, or the operator's own
            function fails.
    """
    rows, columns = image.shape[:2]
    if max(rows, columns) > MAX_RATIO * min(rows, columns):
        raise InputError(
            f"the picture to follow is {columns}x{rows}; expected one whose longer side is at most"
            f" {MAX_RATIO} times the shorter one"
        )
    values = [_value(preprocessor, index, value) for index, value in enumerate(thresholds)]
    if preprocessor.reads == "original":
        return _with_colours(preprocessor.function(image, *values))
    resized = _resized(image, resolution)
    height, width = resized.shape[:2]
    if preprocessor.reads == "padded":
        sides = [(0, -side % _BLOCK) for side in (height, width)]
        resized = np.pad(resized, [*sides, (0, 0)], mode="edge")
    return _with_colours(preprocessor.function(resized, *values)[:height, :width])


def _value(preprocessor: Preprocessor, index: int, value: float | None) -> float:
    if index >= len(preprocessor.sliders):
        return 0.0
    slider = preprocessor.sliders[index]
    if value is None:
        return slider.default
    if not slider.minimum <= value <= slider.maximum:
        raise InputError(
            f"threshold_{'ab'[index]} of {preprocessor.name!r} is {value:g}; expected a number "
            f"from {slider.minimum:g} to {slider.maximum:g}, its {slider.name}"
        )
    return float(value)


def _resized(image: np.ndarray, resolution: int) -> np.ndarray:
    """Return a picture whose shorter side has a resolution, as far as `MAX_PIXELS` allows."""
    import cv2

    rows, columns = image.shape[:2]
    scale = min(
        min(resolution, MAX_RESOLUTION) / min(rows, columns), (MAX_PIXELS / (rows * columns)) ** 0.5
    )
    height, width = (max(1, round(scale * side)) for side in (rows, columns))
    interpolation = cv2.INTER_CUBIC if scale > 1 else cv2.INTER_AREA
    return cv2.resize(image, (width, height), interpolation=interpolation)


def _with_colours(values: np.ndarray) -> np.ndarray:
    """Return a map `[H, W]`, `[H, W, 1]` or `[H, W, 3]` as `[H, W, 3]`."""
    planes = values.reshape(*values.shape[:2], -1)
    return np.ascontiguousarray(np.broadcast_to(planes, (*planes.shape[:2], 3)))


def fitted_map(values: np.ndarray, height: int, width: int, resize_mode: str) -> np.ndarray:
    """Return a map in another size.

    Args:
        values: `[H, W, 3]` uint8, or `[H, W, 4]` with a mask of the part that is redrawn.
        height: that of the result.
        width: that of the result.
        resize_mode: "crop" cuts what is outside of the new shape, "stretch" changes the shape, and
            "fill" adds borders in the usual colour of the edges, which belong to the mask.
    """
    if resize_mode == "stretch":
        return _resized_map(values, height, width)
    is_filled = resize_mode == "fill"
    rows, columns = values.shape[:2]
    scale = (min if is_filled else max)(height / rows, width / columns)
    rows, columns = (max(1, round(scale * side)) for side in (rows, columns))
    resized = _resized_map(values, rows, columns)
    top, left = abs(rows - height) // 2, abs(columns - width) // 2
    if not is_filled:
        return resized[top : top + height, left : left + width]
    edges = np.concatenate([values[0], values[-1], values[:, 0], values[:, -1]])
    colour = np.median(edges, axis=0).astype(np.uint8)
    colour[3:] = 255
    background = np.tile(colour, (height, width, 1))
    background[top : top + rows, left : left + columns] = resized
    return background


def _resized_map(values: np.ndarray, height: int, width: int) -> np.ndarray:
    """Stretch a map so that its colours and lines stay what they mean.

    Maps of few colours get no others. Those in black and white stay so, and thin lines stay thin.
    """
    import cv2

    rows, columns = values.shape[:2]
    if (rows, columns) == (height, width):
        return values
    colours = np.ascontiguousarray(values[..., :3])
    num_colours = _count_colours(colours)
    if 2 < num_colours < 200:
        interpolation = cv2.INTER_NEAREST
    else:
        is_smaller = height * width < rows * columns
        interpolation = cv2.INTER_AREA if is_smaller else cv2.INTER_CUBIC
    resized = cv2.resize(values, (width, height), interpolation=interpolation)
    if num_colours == 2 and colours.min() < _DARK and colours.max() > _LIGHT:
        grey = resized[..., :3].astype(np.float32).mean(axis=2).astype(np.uint8)
        opened = cv2.morphologyEx(colours, cv2.MORPH_OPEN, np.ones((3, 3), np.uint8))
        is_thin = 2 * np.count_nonzero(opened < colours) > np.count_nonzero(colours > 127)
        grey = _ridges(grey) if is_thin else grey
        grey = cv2.threshold(grey, 0, 255, cv2.THRESH_BINARY + cv2.THRESH_OTSU)[1]
        if is_thin:
            grey = _thinned(grey, without_spurs=height * width > rows * columns)
        resized[..., :3] = grey[..., None]
    return resized


def _count_colours(colours: np.ndarray) -> int:
    is_used = np.zeros(2**24, bool)
    red, green, blue = np.moveaxis(colours.astype(np.uint32), 2, 0)
    is_used[red << 16 | green << 8 | blue] = True
    return int(np.count_nonzero(is_used))


def _ridges(grey: np.ndarray) -> np.ndarray:
    """Keep the pixels that are the brightest across a line in one of four directions."""
    import cv2

    middle = np.zeros((3, 3), np.uint8)
    middle[1] = 1
    diagonal = np.eye(3, dtype=np.uint8)
    lines = middle, middle.T.copy(), diagonal, diagonal[::-1].copy()
    is_ridge = [cv2.dilate(grey, line) == grey for line in lines]
    return np.where(np.any(is_ridge, axis=0), grey, np.uint8(0))


# The pixels that thinning removes from lines, by their neighbours, in each of four directions: 1 is
# white, -1 black, 0 either.
_OUTER = ((-1, -1, -1), (0, 1, 0), (1, 1, 1)), ((0, -1, -1), (1, 1, -1), (0, 1, 0))
_SPURS = ((-1, -1, -1), (-1, 1, -1), (0, 0, -1)), ((-1, -1, -1), (-1, 1, -1), (-1, 0, 0))


def _thinned(grey: np.ndarray, *, without_spurs: bool) -> np.ndarray:
    """Return lines, white on black, a pixel wide."""
    for _ in range(_ROUNDS):
        thinner = _without(grey, _OUTER)
        if np.array_equal(thinner, grey):
            break
        grey = thinner
    return _without(grey, _SPURS) if without_spurs else grey


def _without(grey: np.ndarray, patterns: tuple[tuple[tuple[int, ...], ...], ...]) -> np.ndarray:
    """Return a map without the pixels whose surroundings are one of these, turned in any way."""
    import cv2

    for turns in range(4):
        for pattern in patterns:
            kernel = np.rot90(np.array(pattern, np.int32), turns).copy()
            hits = cv2.morphologyEx(grey, cv2.MORPH_HITMISS, kernel)
            grey = np.where(hits > 127, np.uint8(0), grey)
    return grey
