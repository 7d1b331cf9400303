"""Drawings of scenes, made from signed distances.

A signed distance is the distance of a pixel from a shape's edge, negative inside. It makes smooth
edges, outlines and soft edges one line each, without drawing at a larger size and shrinking.

Source of the distance formulas: Inigo Quilez, https://iquilezles.org/articles/distfunctions2d/
"""

from itertools import pairwise

import numpy as np

from tools.miniature.scenes import BACKGROUNDS, COLOURS, RGB, Scene, Thing

# Width of a thing as a fraction of the picture's width, alone and as one of two.
_ALONE = {"small": 0.36, "medium": 0.52, "large": 0.72}
_PAIRED = {"small": 0.28, "medium": 0.34, "large": 0.4}
_CONTAINER, _CONTENT = 0.76, 0.27

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
    picture = _background(BACKGROUNDS[scene.background], size)
    for thing, (x, y), width in reversed(_placed(scene, rng)):
        degrees = rng.uniform(-6, 6)
        _paint(picture, thing, scene.style, x, y, width, degrees)
    return np.clip(picture + 0.5, 0, 255).astype(np.uint8)


def signed_distance(shape: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the distance from a shape's edge, negative inside.

    Args:
        shape: a word from `SHAPES`.
        x: float32 of any shape; the drawn shape is about two wide, centred at zero.
        y: the same, downwards.

    Returns:
        float32, of the shape of x, in the same unit.
    """
    if shape == "circle":
        return np.hypot(x, y) - np.float32(0.94)
    if shape == "ring":
        return np.abs(np.hypot(x, y) - np.float32(0.71)) - np.float32(0.27)
    if shape == "moon":
        x = x + np.float32(0.16)
        body = np.hypot(x, y) - np.float32(0.98)
        return np.maximum(body, np.float32(0.8) - np.hypot(x - np.float32(0.52), y))
    if shape == "heart":
        return _heart(x, y)
    return _polygon(_OUTLINES[shape], x, y)


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


def _heart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    scale = np.float32(0.6)
    x = np.abs(x) * scale
    y = np.float32(0.56) - y * scale
    upper = np.hypot(x - np.float32(0.25), y - np.float32(0.75)) - np.float32(np.sqrt(2) / 4)
    middle = np.maximum(x + y, 0) / 2
    lower = np.sqrt(np.minimum(x * x + (y - 1) ** 2, (x - middle) ** 2 + (y - middle) ** 2))
    return np.where(x + y > 1, upper, lower * np.sign(x - y)) / scale


def _polygon(right_half: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the distance from a polygon that is symmetric, left to right.

    Args:
        right_half: float32 [n, 2], its corners with x >= 0, from top to bottom.
        x: float32 of any shape.
        y: the same, downwards.
    """
    x = np.abs(x)
    nearest = np.full(np.broadcast_shapes(x.shape, y.shape), np.inf, np.float32)
    inside = np.zeros(nearest.shape, bool)
    for (ax, ay), (bx, by) in pairwise(right_half):
        ex, ey = bx - ax, by - ay
        px, py = x - ax, y - ay
        t = np.clip((px * ex + py * ey) / (ex * ex + ey * ey), 0, 1)
        nearest = np.minimum(nearest, (px - t * ex) ** 2 + (py - t * ey) ** 2)
        if ey:
            inside ^= ((y >= ay) != (y >= by)) & (px < py * (ex / ey))
    return np.where(inside, -1, 1) * np.sqrt(nearest)


def _regular(corners: int, radius: float, dent: float = 1.0) -> list[tuple[float, float]]:
    """Return the right half of a regular polygon that points up.

    The radius of every other corner is multiplied by `dent`.
    """
    angles = np.pi * np.arange(corners // 2 + 1) / (corners / 2)
    radii = radius * np.where(np.arange(len(angles)) % 2, dent, 1)
    return [(r * np.sin(a), -r * np.cos(a)) for a, r in zip(angles, radii, strict=True)]


_OUTLINES = {
    name: np.array(corners, np.float32)
    for name, corners in {
        "square": [(0, -0.84), (0.84, -0.84), (0.84, 0.84), (0, 0.84)],
        "triangle": [(0, -0.86), (0.99, 0.82), (0, 0.82)],
        "diamond": [(0, -1.03), (0.77, 0), (0, 1.03)],
        "cross": [(0, -0.95), (0.33, -0.95), (0.33, -0.33), (0.95, -0.33), (0.95, 0.33),
                  (0.33, 0.33), (0.33, 0.95), (0, 0.95)],
        "star": [(x, y + 0.08) for x, y in _regular(10, 1.06, dent=0.46)],
        "hexagon": [(0, -0.85), (0.49, -0.85), (0.98, 0), (0.49, 0.85), (0, 0.85)],
    }.items()
}  # fmt: skip
