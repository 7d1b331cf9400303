"""The kinds of adapters: which parts make up each, their shapes, and the change that they make."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.adapters.adapter import Change, Shape
from pipeline.adapters.changes import (
    Difference,
    Factored,
    Hadamard,
    Kronecker,
    LowRank,
    Replacement,
    Tucker,
)
from pipeline.adapters.parts import Part

Shapes = Mapping[Part, Shape]
Arrays = Mapping[Part, np.ndarray]
# Parts that are no factors: the scale, and the norms that DoRA trains.
MODIFIERS = frozenset({Part.ALPHA, Part.DORA_SCALE, Part.MAGNITUDE})


@dataclass(frozen=True)
class Kind:
    """A kind of adapter.

    Attributes:
        shapes: the shapes that the parts must have, from those that they have and the changed
            tensor's `[out, in, *kernel]`. A rank is read from one part; 0 stands for a size that
            cannot be right.
        build: makes the change from the parts and the scale.
        rank: the part whose first axis is the rank, by which alpha is divided. None means that the
            scale is 1, whatever alpha says.
        modifiers: the parts that may stand beside those of the kind.
    """

    shapes: Callable[[Shapes, Shape], Shapes]
    build: Callable[[Arrays, float], Change]
    rank: Part | None = None
    modifiers: frozenset[Part] = MODIFIERS


def _low_rank_shapes(shapes: Shapes, target: Shape) -> Shapes:
    rank = shapes[Part.DOWN][0]
    return {Part.DOWN: (rank, *target[1:]), Part.UP: (target[0], rank)}


def _tucker_shapes(shapes: Shapes, target: Shape) -> Shapes:
    rank = shapes[Part.DOWN][0]
    core = (rank, rank, *target[2:])
    return {Part.DOWN: (rank, target[1]), Part.MID: core, Part.UP: (target[0], rank)}


def _loha_shapes(shapes: Shapes, target: Shape) -> Shapes:
    rank = shapes[Part.W1_B][0]
    up, down = (target[0], rank), (rank, *target[1:])
    return {Part.W1_A: up, Part.W1_B: down, Part.W2_A: up, Part.W2_B: down}


def _loha_tucker_shapes(shapes: Shapes, target: Shape) -> Shapes:
    rank = shapes[Part.W1_B][0]
    up, down, core = (rank, target[0]), (rank, target[1]), (rank, rank, *target[2:])
    matrices = {Part.W1_A: up, Part.W1_B: down, Part.W2_A: up, Part.W2_B: down}
    return {**matrices, Part.T1: core, Part.T2: core}


def _lokr_shapes(shapes: Shapes, target: Shape) -> Shapes:
    """Return the shapes of LoKr's parts; those of its small matrix decide about the other's."""
    first = Part.LOKR_W1 if Part.LOKR_W1 in shapes else Part.LOKR_W1_A
    last = Part.LOKR_W1 if Part.LOKR_W1 in shapes else Part.LOKR_W1_B
    rows, columns = shapes[first][0], math.prod(shapes[last][1:])
    a = _quotient(target[0], rows)
    b = _quotient(target[1], columns)
    rank_1 = shapes.get(Part.LOKR_W1_B, (0,))[0]
    rank_2 = shapes.get(Part.LOKR_W2_B, (0,))[0]
    tucker = Part.LOKR_T2 in shapes
    expected_shapes = {
        Part.LOKR_W1: (rows, columns),
        Part.LOKR_W1_A: (rows, rank_1),
        Part.LOKR_W1_B: (rank_1, columns),
        Part.LOKR_W2: (a, b, *target[2:]),
        Part.LOKR_W2_A: (rank_2, a) if tucker else (a, rank_2),
        Part.LOKR_W2_B: (rank_2, b) if tucker else (rank_2, b, *target[2:]),
        Part.LOKR_T2: (rank_2, rank_2, *target[2:]),
    }
    return {part: expected_shapes[part] for part in shapes}


def _quotient(dividend: int, divisor: int) -> int:
    """Return the quotient, or 0 if there is none."""
    return 0 if divisor == 0 or dividend % divisor else dividend // divisor


def _matrix(array: np.ndarray) -> np.ndarray:
    """Return a factor as a matrix: files have some with the axes of a kernel."""
    return array.reshape(len(array), -1)


def _low_rank(up: np.ndarray, down: np.ndarray, scale: float = 1.0) -> LowRank:
    return LowRank(_matrix(up), _matrix(down), scale)


def _tucker(up: np.ndarray, core: np.ndarray, down: np.ndarray, scale: float = 1.0) -> Tucker:
    """Return a product with a core; `up` is a matrix."""
    return Tucker(up, core.reshape(up.shape[1], len(down), -1), _matrix(down), scale)


def _locon_tucker(parts: Arrays, scale: float) -> Change:
    return _tucker(_matrix(parts[Part.UP]), parts[Part.MID], parts[Part.DOWN], scale)


def _loha(parts: Arrays, scale: float) -> Change:
    first = _low_rank(parts[Part.W1_A], parts[Part.W1_B])
    return Hadamard(first, _low_rank(parts[Part.W2_A], parts[Part.W2_B]), scale)


def _loha_tucker(parts: Arrays, scale: float) -> Change:
    """Return the product of two with cores; LyCORIS turns their up around."""
    first = _tucker(_matrix(parts[Part.W1_A]).T, parts[Part.T1], parts[Part.W1_B])
    second = _tucker(_matrix(parts[Part.W2_A]).T, parts[Part.T2], parts[Part.W2_B])
    return Hadamard(first, second, scale)


def _lokr(parts: Arrays, scale: float) -> Change:
    if Part.LOKR_W1 in parts:
        left = _matrix(parts[Part.LOKR_W1])
    else:
        up, down = _matrix(parts[Part.LOKR_W1_A]), _matrix(parts[Part.LOKR_W1_B])
        left = up.astype(np.float32) @ down.astype(np.float32)
    return Kronecker(left, _lokr_right(parts), scale)


def _lokr_right(parts: Arrays) -> Factored:
    if Part.LOKR_W2 in parts:
        return Difference(parts[Part.LOKR_W2])
    up, down = parts[Part.LOKR_W2_A], parts[Part.LOKR_W2_B]
    if Part.LOKR_T2 in parts:
        return _tucker(_matrix(up).T, parts[Part.LOKR_T2], down)
    return _low_rank(up, down)


def _lokr_kind(parts: frozenset[Part]) -> Kind:
    """Return the kind; as in LyCORIS, two full factors have no rank and no scale."""
    ranks = (part for part in (Part.LOKR_W2_B, Part.LOKR_W1_B) if part in parts)
    return Kind(_lokr_shapes, _lokr, next(ranks, None))


def _whole(part: Part, change: Callable[[np.ndarray], Change]) -> dict[frozenset[Part], Kind]:
    """Return the kind that gives a tensor's change, or its new values, in full."""
    kind = Kind(
        lambda _, target: {part: target}, lambda parts, _: change(parts[part]), None, frozenset()
    )
    return {frozenset({part}): kind}


_LOHA = frozenset({Part.W1_A, Part.W1_B, Part.W2_A, Part.W2_B})
_LOKR = tuple(
    frozenset(left | right)
    for left in ({Part.LOKR_W1}, {Part.LOKR_W1_A, Part.LOKR_W1_B})
    for right in (
        {Part.LOKR_W2},
        {Part.LOKR_W2_A, Part.LOKR_W2_B},
        {Part.LOKR_W2_A, Part.LOKR_W2_B, Part.LOKR_T2},
    )
)

# A kind for each set of parts of a weight, without modifiers.
WEIGHTS: dict[frozenset[Part], Kind] = {
    frozenset({Part.DOWN, Part.UP}): Kind(
        _low_rank_shapes,
        lambda parts, scale: _low_rank(parts[Part.UP], parts[Part.DOWN], scale),
        Part.DOWN,
    ),
    frozenset({Part.DOWN, Part.UP, Part.MID}): Kind(_tucker_shapes, _locon_tucker, Part.DOWN),
    _LOHA: Kind(_loha_shapes, _loha, Part.W1_B),
    _LOHA | {Part.T1, Part.T2}: Kind(_loha_tucker_shapes, _loha_tucker, Part.W1_B),
    **{parts: _lokr_kind(parts) for parts in _LOKR},
    **_whole(Part.DIFF, Difference),
    **_whole(Part.NORM, Difference),
    **_whole(Part.SET, Replacement),
}
# The parts of biases, of which a module has one at most.
BIASES = frozenset({Part.DIFF_BIAS, Part.NORM_BIAS, Part.UP_BIAS})
