"""A judge that says what a picture of a scene shows, without knowing what was asked for.

Plain image processing, nothing learned: the background is the border's colour; things are even
regions that differ from it; colours are the nearest palette entry in CIE L*a*b*; shapes are the
template with the best overlap.
"""

from dataclasses import dataclass
from functools import cache
from typing import cast

import numpy as np
from PIL import Image
from scipy import ndimage

from tools.miniature.scenes import BACKGROUNDS, COLOURS, RGB, SHAPES, Scene
from tools.miniature.shapes import signed_distance

_SIZE = 128  # pictures are judged at this width: half of the noise, a quarter of the work
_BORDER = 3  # pixels at that width that show nothing but background

# In L*a*b* units. The closest two colours of the palette are 30 apart.
_UNLIKE_BACKGROUND = 13.0
_SAME_COLOUR = 20.0
# Slope per pixel: a steeper one is an edge between things, a flatter one is shading.
_EDGE = 4.5

_SMALLEST = 0.004  # as a fraction of the picture's area; anything less is a speck
_THINNEST = 2.0  # pixels from a region's edge to its middle; anything less is an outline


@dataclass(frozen=True)
class SeenThing:
    """One object in a picture.

    Attributes:
        colour, shape: words from `COLOURS` and `SHAPES`.
        centre: (x, y) of its middle, as fractions of the picture's width and height.
        area: the fraction of the picture that it covers.
    """

    colour: str
    shape: str
    centre: tuple[float, float]
    area: float


@dataclass(frozen=True)
class Seen:
    """A picture's content: a word from `BACKGROUNDS`, and things, largest first."""

    background: str
    things: tuple[SeenThing, ...]


@dataclass(frozen=True)
class Verdict:
    """The parts of a scene that a picture gets right.

    Attributes:
        background: whether its colour is right.
        colour: whether the colours of all things are right.
        shape: whether the shapes of all things are right.
    """

    background: bool
    colour: bool
    shape: bool


@dataclass(frozen=True)
class Region:
    """One thing's place in the reduced picture.

    Attributes:
        colours: float32 [n, 3], L*a*b*, from its even middle.
        mask: bool [_SIZE, _SIZE], its visible part.
        whole: the mask together with those of the things that lie inside it.
    """

    colours: np.ndarray
    mask: np.ndarray
    whole: np.ndarray


def look(picture: np.ndarray) -> Seen:
    """Return what a picture shows.

    Args:
        picture: uint8 [H, W, 3], sRGB, H = W.
    """
    lab = to_lab(reduced(picture))
    background = _nearest(np.median(_border_of(lab), axis=0), BACKGROUNDS)
    things = [_describe(region) for region in _regions(lab, _foreground(lab))]
    # The grammar has no thing in its background's colour, so this is an uneven background.
    things = [thing for thing in things if thing.colour != background]
    return Seen(background, tuple(sorted(things, key=lambda thing: -thing.area)))


def judge_scene(picture: np.ndarray, scene: Scene) -> Verdict:
    """Compare a picture, uint8 [H, W, 3], with the scene that was asked for.

    If one thing was asked for, the largest one that is seen counts.
    """
    seen = look(picture)
    things = seen.things[: len(scene.things)]
    return Verdict(
        background=seen.background == scene.background,
        colour=sorted(t.colour for t in things) == sorted(t.colour for t in scene.things),
        shape=sorted(t.shape for t in things) == sorted(t.shape for t in scene.things),
    )


def reduced(picture: np.ndarray) -> np.ndarray:
    """Reduce a picture to float32 [_SIZE, _SIZE, 3], 0 to 255.

    Raises:
        ValueError: if it is not a square RGB picture of bytes.
    """
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        raise ValueError(f"expected uint8 [H, W, 3], got {picture.dtype} {picture.shape}")
    if picture.shape[0] != picture.shape[1]:
        raise ValueError(f"expected a square picture, got {picture.shape}")
    return np.asarray(Image.fromarray(picture).resize((_SIZE, _SIZE), Image.Resampling.BOX), "f4")


def to_lab(rgb: np.ndarray) -> np.ndarray:
    """Convert sRGB 0 to 255 [..., 3] to CIE L*a*b* under D65 (IEC 61966-2-1, CIE 15)."""
    linear = np.where(rgb <= 10.31475, rgb / 3294.6, ((rgb / 255 + 0.055) / 1.055) ** 2.4)
    f = linear @ _XYZ_FROM_RGB.T
    f = np.where(f > 0.008856, np.cbrt(f), 7.787 * f + 16 / 116)
    x, y, z = f[..., 0], f[..., 1], f[..., 2]
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1).astype(np.float32)


# Relative to the white point, so that white is (1, 1, 1).
_XYZ_FROM_RGB = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
     [0.0193339, 0.1191920, 0.9503041]]
) / np.array([[0.95047], [1.0], [1.08883]])  # fmt: skip


def _nearest(lab: np.ndarray, palette: dict[str, RGB]) -> str:
    """Return the name of the palette entry nearest to a colour, float [3] in L*a*b*."""
    entries = to_lab(np.array(list(palette.values()), np.float32))
    return list(palette)[int(np.linalg.norm(entries - lab, axis=1).argmin())]


def _border_of(lab: np.ndarray) -> np.ndarray:
    inner = np.zeros(lab.shape[:2], bool)
    inner[_BORDER:-_BORDER, _BORDER:-_BORDER] = True
    return lab[~inner]


def side_columns(lab: np.ndarray) -> np.ndarray:
    """Return the columns of a picture that show nothing but background: [_SIZE, n, 3]."""
    return np.concatenate([lab[:, :_BORDER], lab[:, -_BORDER:]], axis=1)


def minus_background(lab: np.ndarray) -> np.ndarray:
    """Return a picture minus its background, which may fade downwards: [_SIZE, _SIZE, 3]."""
    rows = np.median(side_columns(lab), axis=1)
    rows = ndimage.gaussian_filter1d(rows, 4, axis=0, mode="nearest")
    return ndimage.gaussian_filter(lab, (0.7, 0.7, 0)) - rows[:, None]


def _foreground(lab: np.ndarray) -> np.ndarray:
    """Return where a picture differs from its background: bool [_SIZE, _SIZE]."""
    unlike = np.linalg.norm(minus_background(lab), axis=-1) > _UNLIKE_BACKGROUND
    return ndimage.binary_opening(unlike, iterations=1)


def _regions(lab: np.ndarray, foreground: np.ndarray) -> list[Region]:
    """Find the things in the foreground."""
    cores = _cores(lab, foreground)
    if not cores:
        return []
    # Edges and outlines belong to the nearest thing; isolated specks belong to none.
    numbered = np.zeros(foreground.shape, int)
    for i, core in enumerate(cores, 1):
        numbered[core] = i
    rows, columns = _nearest_marked(numbered > 0)
    attached = ndimage.binary_propagation(numbered > 0, mask=foreground)
    owner = numbered[rows, columns] * attached
    masks = [owner == i for i in range(1, len(cores) + 1)]
    regions = []
    for core, mask in zip(cores, masks, strict=True):
        outside = ~np.asarray(ndimage.binary_fill_holes(mask))
        whole = np.logical_or.reduce([other for other in masks if not (other & outside).any()])
        regions.append(Region(lab[core], mask, whole))
    return regions


def _cores(lab: np.ndarray, foreground: np.ndarray) -> list[np.ndarray]:
    """Find the even middles of things, away from edges: bool [_SIZE, _SIZE] each."""
    smooth = ndimage.gaussian_filter(lab, (0.8, 0.8, 0))
    slope = np.sqrt(sum((np.gradient(smooth, axis=i) ** 2).sum(-1) for i in (0, 1)))
    pieces, piece_count = _label(foreground & (slope < _EDGE))
    islands, island_count = _label(foreground)
    merged: dict[int, list[np.ndarray]] = {i: [] for i in range(1, island_count + 1)}
    for core in (pieces == i for i in range(1, piece_count + 1)):
        if _is_thing(core):
            _add_core(merged[int(islands[core][0])], core, lab)
    for i, cores in merged.items():
        if not cores and (islands == i).mean() >= _SMALLEST:
            # The island is all edge, like an outlined ring, so take the pixels deepest inside it.
            depth = _depth(islands == i)
            cores.append(depth > 0.7 * depth.max())
    return [core for cores in merged.values() for core in cores]


def _add_core(cores: list[np.ndarray], core: np.ndarray, lab: np.ndarray) -> None:
    """Add a core to those of the same island, joining it to one of the same colour.

    A thing that shows through a hole, or on both sides of a thing in front of it, is one thing.
    """
    colour = np.median(lab[core], axis=0)
    for other in cores:
        if np.linalg.norm(colour - np.median(lab[other], axis=0)) < _SAME_COLOUR:
            other |= core
            return
    cores.append(core)


def _label(mask: np.ndarray) -> tuple[np.ndarray, int]:
    """Label the connected pieces of a mask from 1; return the labels and their count."""
    labels = np.empty(mask.shape, np.int32)
    return labels, int(cast(int, ndimage.label(mask, output=labels)))


def _depth(mask: np.ndarray) -> np.ndarray:
    """Return the distance of each pixel of a mask from its edge, in pixels."""
    return cast(np.ndarray, ndimage.distance_transform_edt(mask))


def _nearest_marked(mask: np.ndarray) -> np.ndarray:
    """Find the marked pixel nearest to each pixel.

    Returns:
        int [2, _SIZE, _SIZE]: its row and its column.
    """
    found = ndimage.distance_transform_edt(~mask, return_distances=False, return_indices=True)
    return cast(np.ndarray, found)


def _centre(mask: np.ndarray) -> np.ndarray:
    """Return the mean row and column of a mask: float [2]."""
    return np.argwhere(mask).mean(0)


def _is_thing(core: np.ndarray) -> bool:
    if core.sum() < _SMALLEST * core.size:
        return False
    return _depth(core).max() >= _THINNEST


def _describe(region: Region) -> SeenThing:
    y, x = (_centre(region.whole) + 0.5) / _SIZE
    return SeenThing(
        colour=_nearest(np.median(region.colours, axis=0), COLOURS),
        shape=_best_shape(region.whole),
        centre=(float(x), float(y)),
        area=float(region.mask.mean()),
    )


_GRID = 48  # masks are compared at this width
_SPREAD = 2.4  # width of that grid in units of the square root of a mask's area


def _normalised(mask: np.ndarray) -> np.ndarray:
    """Move a mask to the middle and scale it to a fixed area: float32 [_GRID * _GRID]."""
    centre = _centre(mask)
    step = _SPREAD * np.sqrt(mask.sum()) / _GRID
    offsets = (np.arange(_GRID) - (_GRID - 1) / 2) * step
    rows, columns = np.meshgrid(centre[0] + offsets, centre[1] + offsets, indexing="ij")
    return ndimage.map_coordinates(mask.astype(np.float32), (rows, columns), order=1).ravel()


# Outlines and blur make things fatter and holes smaller, by this fraction of their radius.
_GROWTH = (0.0, 0.12)


@cache
def _templates() -> tuple[list[str], np.ndarray]:
    """Return names and float32 [n, _GRID * _GRID] of every shape, also rotated and fattened."""
    names, masks = [], []
    v, u = np.mgrid[-1.3:1.3:128j, -1.3:1.3:128j].astype(np.float32)
    for shape in SHAPES:
        for degrees in range(-15, 16, 5):
            cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
            distance = signed_distance(shape, cos * u + sin * v, cos * v - sin * u)
            names += [shape] * len(_GROWTH)
            masks += [_normalised(distance < growth) for growth in _GROWTH]
    return names, np.stack(masks)


def _best_shape(mask: np.ndarray) -> str:
    """Return the shape whose template overlaps best with a mask: intersection over union."""
    names, templates = _templates()
    normalised = _normalised(mask)
    both = np.minimum(templates, normalised).sum(1)
    either = np.maximum(templates, normalised).sum(1)
    return names[int((both / either).argmax())]
