"""Drawings of scenes: what a ControlNet learns from, and what the judge of pictures must know.

Signed distances make smooth edges, outlines and soft edges one line each, without drawing at a
larger size and shrinking.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from tools.miniature.scenes import BACKGROUNDS, COLOURS, RGB, Scene, Thing
from tools.miniature.shapes import signed_distance

# Width of a thing as a fraction of the picture's width, alone and as one of two.
_ALONE = {"small": 0.36, "medium": 0.52, "large": 0.72}
_PAIRED = {"small": 0.28, "medium": 0.34, "large": 0.4}
_CONTAINER, _CONTENT = 0.76, 0.27

# A thing's centre (x, y) and width, as fractions of the picture's width, and its angle in degrees.
Where: TypeAlias = tuple[tuple[float, float], float, float]

_WHITE, _DARK = np.float32(250), np.float32(20)


def draw(scene: Scene, rng: np.random.Generator, size: int = 256) -> np.ndarray:
    """Draw a scene, with slightly random places, sizes and angles.

    Args:
        scene: what to draw.
        rng: the only source of randomness.
        size: picture height and width in pixels.

    Returns:
        uint8 [size, size, 3], sRGB.
    """
    places = [(place, width, rng.uniform(-6, 6)) for _, place, width in _placed(scene, rng)]
    return _drawn(scene, places, size)


def draw_anywhere(scene: Scene, rng: np.random.Generator, size: int = 256) -> np.ndarray:
    """Draw a scene of one thing in a place, a size and at an angle that its words do not say."""
    width = rng.uniform(0.3, 0.75)
    edge = 0.04 + width / 2
    x, y = rng.uniform(edge, 1 - edge, 2)
    return _drawn(scene, [((x, y), width, rng.uniform(-15, 15))], size)


def _drawn(scene: Scene, places: Sequence[Where], size: int) -> np.ndarray:
    picture = _background(BACKGROUNDS[scene.background], size)
    for thing, ((x, y), width, degrees) in reversed([*zip(scene.things, places, strict=True)]):
        _paint(picture, thing, scene.style, x, y, width, degrees)
    return np.clip(picture + 0.5, 0, 255).astype(np.uint8)


def _background(colour: RGB, size: int) -> np.ndarray:
    """Return float32 [size, size, 3]: a colour, slightly lighter above and darker below."""
    slope = np.linspace(0.07, -0.07, size, dtype=np.float32)[:, None]
    base = np.array(colour, np.float32)
    rows = base + np.abs(slope) * (np.where(slope > 0, _WHITE, _DARK) - base)
    return np.repeat(rows[:, None, :], size, axis=1)


def _placed(
    scene: Scene, rng: np.random.Generator
) -> list[tuple[Thing, tuple[float, float], float]]:
    """Return each thing with its centre (x, y) and width, as fractions of the picture's width."""
    things = scene.things
    stretch = rng.uniform(0.95, 1.05, len(things))
    if len(things) == 1:
        width = _ALONE[things[0].size]
        centres = [_single_centre(scene.layout, width)]
        widths = [width]
    elif scene.layout == "inside":
        centres, widths = [(0.5, 0.5), (0.5, 0.5)], [_CONTENT, _CONTAINER]
    else:
        widths = [_PAIRED[thing.size] for thing in things]
        centres = _pair_centres(scene.layout, *widths)
    shift = rng.uniform(-0.012, 0.012, (len(things), 2))
    if scene.layout == "inside":
        shift[0] = shift[1]
    return [
        (thing, (x + dx, y + dy), width * s)
        for thing, (x, y), width, (dx, dy), s in zip(
            things, centres, widths, shift, stretch, strict=True
        )
    ]


def _single_centre(position: str, width: float) -> tuple[float, float]:
    edge = 0.06 + width / 2
    return {
        "centre": (0.5, 0.5),
        "left": (edge, 0.5),
        "right": (1 - edge, 0.5),
        "top": (0.5, edge),
        "bottom": (0.5, 1 - edge),
    }[position]


def _pair_centres(relation: str, first: float, second: float) -> list[tuple[float, float]]:
    """Return both centres, with the same gap before, between and after the two things."""
    gap = (1 - first - second) / 3
    if relation in ("above", "left of"):
        a, b = gap + first / 2, 1 - gap - second / 2
    else:
        a, b = 1 - gap - first / 2, gap + second / 2
    if relation in ("above", "below"):
        return [(0.5, a), (0.5, b)]
    return [(a, 0.5), (b, 0.5)]


def _paint(
    picture: np.ndarray, thing: Thing, style: str, x: float, y: float, width: float, degrees: float
) -> None:
    """Paint one thing into float32 [size, size, 3], in place."""
    size, radius = picture.shape[0], width * picture.shape[0] / 2
    region, u, v, distance = _surroundings(picture, thing.shape, x, y, width, degrees)
    colour = np.array(COLOURS[thing.colour], np.float32)
    if style == "outlined":
        half_line = min(0.014 * size, 0.09 * radius)
        _blend(region, _outline_colour(colour), _coverage(distance - half_line, 1))
        distance = distance + half_line
    edge = min(0.045 * size, 0.22 * radius) if style == "soft" else 1
    _blend(region, _shaded(colour, style, u, v), _coverage(distance, edge))


def _surroundings(
    picture: np.ndarray, shape: str, x: float, y: float, width: float, degrees: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Find the part of a picture in which a shape can be seen.

    Returns:
        That part [h, w, 3], a view; its coordinates u [1, w] and v [h, 1], in units of the shape's
        radius; and the distance of each pixel from the shape's edge [h, w], in pixels.
    """
    size = picture.shape[0]
    radius = width * size / 2
    reach = 1.15 * radius + 0.2 * size
    left, right = (int(np.clip(x * size + r, 0, size)) for r in (-reach, reach))
    top, bottom = (int(np.clip(y * size + r, 0, size)) for r in (-reach, reach))
    u = ((np.arange(left, right, dtype=np.float32) + 0.5 - x * size) / radius)[None, :]
    v = ((np.arange(top, bottom, dtype=np.float32) + 0.5 - y * size) / radius)[:, None]
    cos, sin = np.float32(np.cos(np.radians(degrees))), np.float32(np.sin(np.radians(degrees)))
    distance = signed_distance(shape, cos * u + sin * v, cos * v - sin * u) * radius
    return picture[top:bottom, left:right], u, v, distance


def _coverage(distance: np.ndarray, edge: float) -> np.ndarray:
    """Return how much of each pixel is covered, 0 to 1, across an edge of `edge` pixels."""
    t = np.clip(0.5 - distance / np.float32(edge), 0, 1)
    return t if edge <= 1 else t * t * (3 - 2 * t)


def _blend(region: np.ndarray, colour: np.ndarray | np.float32, coverage: np.ndarray) -> None:
    region += coverage[..., None] * (colour - region)


def _outline_colour(colour: np.ndarray) -> np.ndarray:
    """Return a darker shade of a colour; a lighter one for dark colours."""
    if colour.mean() < 60:
        return colour + np.float32(0.55) * (_WHITE - colour)
    return colour * np.float32(0.5)


def _shaded(colour: np.ndarray, style: str, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the colour of a thing's pixels: [3], or [h, w, 3] for a glossy one."""
    if style != "glossy":
        return colour
    light = np.exp(-((u + np.float32(0.35)) ** 2 + (v + np.float32(0.4)) ** 2) / np.float32(0.18))
    shade = np.clip((u + v) / 2, 0, 1) * np.float32(0.35)
    base = colour * (1 - shade[..., None])
    return base + np.float32(0.5) * light[..., None] * (255 - base)
