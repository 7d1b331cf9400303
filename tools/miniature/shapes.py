"""The shapes that the bundled miniature knows, as signed distances.

A signed distance is the distance of a pixel from a shape's edge, negative inside.

Source of the distance formulas: Inigo Quilez, https://iquilezles.org/articles/distfunctions2d/
"""

from itertools import pairwise

import numpy as np


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
