"""The kinds of adapters: which parts make up each, their shapes, and the change that they make."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.adapters.adapter import (
    Change,
    Difference,
    Factored,
    Hadamard,
    Kronecker,
    LowRank,
    Replacement,
    Shape,
    Tucker,
)

# A part of a module's change: a factor, its scale or a new norm, by its name in most files.
Part = str
PARTS = (
    *("lora_down.weight", "lora_up.weight", "lora_mid.weight", "lora_B.bias"),
    *("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", "hada_t1", "hada_t2"),
    *("lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b", "lokr_t2"),
    *("diff", "diff_b", "w_norm", "b_norm", "set_weight"),
    *("alpha", "dora_scale", "lora_magnitude_vector"),
)
Shapes = Mapping[Part, Shape]
Arrays = Mapping[Part, np.ndarray]
# The ends of tensors' names, after the name of a module.
SUFFIXES: dict[str, Part] = {
    **{part: part for part in PARTS},
    **dict.fromkeys(("lora_A", "lora_A.weight", "lora_down"), "lora_down.weight"),
    "lora_A.default.weight": "lora_down.weight",
    "lora.down.weight": "lora_down.weight",
    "lora_linear_layer.down.weight": "lora_down.weight",
    "down.weight": "lora_down.weight",  # after old names such as `to_q_lora`
    **dict.fromkeys(("lora_B", "lora_B.weight", "lora_up"), "lora_up.weight"),
    "lora_B.default.weight": "lora_up.weight",
    "lora.up.weight": "lora_up.weight",
    "lora_linear_layer.up.weight": "lora_up.weight",
    "up.weight": "lora_up.weight",
    "lora_B.default.bias": "lora_B.bias",
    "lora_magnitude_vector.weight": "lora_magnitude_vector",
    "lora_magnitude_vector.default": "lora_magnitude_vector",
    "lora_magnitude_vector.default.weight": "lora_magnitude_vector",
}
LONGEST = max(suffix.count(".") + 1 for suffix in SUFFIXES)
# The parts of kinds of adapters that are not supported.
UNSUPPORTED = {
    "oft_blocks": "OFT or BOFT",
    "oft_diag": "OFT",
    "oft_r": "OFT",
    "oft_R": "OFT",
    "oft_R.weight": "OFT",
    "oft_R.scaled_oft": "OFT",
    "boft_R": "BOFT",
    "boft_s": "BOFT",
    "a1.weight": "GLoRA",
    "a2.weight": "GLoRA",
    "b1.weight": "GLoRA",
    "b2.weight": "GLoRA",
    "bm.weight": "GLoRA",
    "on_input": "IA3",
    "ia3_l": "IA3",
    "lambda_layer": "T-LoRA",
    "vera_lambda_b": "VeRA",
    "vera_lambda_d": "VeRA",
}
# The norms that DoRA trains, and all parts that are no factors.
NORMS: tuple[Part, ...] = ("dora_scale", "lora_magnitude_vector")
MODIFIERS: frozenset[Part] = frozenset({"alpha", *NORMS})


@dataclass(frozen=True)
class Kind:
    """A kind of adapter.

    Attributes:
        shapes: returns the shapes that the parts must have. The arguments are the shapes that they
            do have, from which the rank is read, and the shape of the changed tensor, `[out, in,
            *kernel]`. A size of 0 in the result means that no size would be right.
        build: makes the change from the parts and the scale.
        rank: the part whose first axis is the rank, by which alpha is divided. None means that the
            scale is 1, whatever alpha says.
        modifiers: the parts that may stand beside those of the kind.
    """

    shapes: Callable[[Shapes, Shape], Shapes]
    build: Callable[[Arrays, float], Change]
    rank: Part | None = None
    modifiers: frozenset[Part] = MODIFIERS


def split(key: str) -> tuple[str, str]:
    """Return the name of a tensor in a file as a module's name and a known suffix.

    The suffix is empty if there is none.
    """
    pieces = key.split(".")
    for count in range(min(LONGEST, len(pieces) - 1), 0, -1):
        suffix = ".".join(pieces[-count:])
        if suffix in SUFFIXES or suffix in UNSUPPORTED:
            return ".".join(pieces[:-count]), suffix
    return key, ""


def _low_rank_shapes(shapes: Shapes, target: Shape) -> Shapes:
    rank = shapes["lora_down.weight"][0]
    return {"lora_down.weight": (rank, *target[1:]), "lora_up.weight": (target[0], rank)}


def _tucker_shapes(shapes: Shapes, target: Shape) -> Shapes:
    rank = shapes["lora_down.weight"][0]
    core = (rank, rank, *target[2:])
    return {
        "lora_down.weight": (rank, target[1]),
        "lora_mid.weight": core,
        "lora_up.weight": (target[0], rank),
    }


def _loha_shapes(shapes: Shapes, target: Shape) -> Shapes:
    rank = shapes["hada_w1_b"][0]
    up, down = (target[0], rank), (rank, *target[1:])
    return {"hada_w1_a": up, "hada_w1_b": down, "hada_w2_a": up, "hada_w2_b": down}


def _loha_tucker_shapes(shapes: Shapes, target: Shape) -> Shapes:
    rank = shapes["hada_w1_b"][0]
    up, down, core = (rank, target[0]), (rank, target[1]), (rank, rank, *target[2:])
    matrices = {"hada_w1_a": up, "hada_w1_b": down, "hada_w2_a": up, "hada_w2_b": down}
    return {**matrices, "hada_t1": core, "hada_t2": core}


def _lokr_shapes(shapes: Shapes, target: Shape) -> Shapes:
    """Return the shapes of LoKr's parts; those of its small matrix decide about the other's."""
    first = "lokr_w1" if "lokr_w1" in shapes else "lokr_w1_a"
    last = "lokr_w1" if "lokr_w1" in shapes else "lokr_w1_b"
    rows, columns = shapes[first][0], math.prod(shapes[last][1:])
    a = _quotient(target[0], rows)
    b = _quotient(target[1], columns)
    rank_1 = shapes.get("lokr_w1_b", (0,))[0]
    rank_2 = shapes.get("lokr_w2_b", (0,))[0]
    tucker = "lokr_t2" in shapes
    expected_shapes = {
        "lokr_w1": (rows, columns),
        "lokr_w1_a": (rows, rank_1),
        "lokr_w1_b": (rank_1, columns),
        "lokr_w2": (a, b, *target[2:]),
        "lokr_w2_a": (rank_2, a) if tucker else (a, rank_2),
        "lokr_w2_b": (rank_2, b) if tucker else (rank_2, b, *target[2:]),
        "lokr_t2": (rank_2, rank_2, *target[2:]),
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
    return _tucker(
        _matrix(parts["lora_up.weight"]), parts["lora_mid.weight"], parts["lora_down.weight"], scale
    )


def _loha(parts: Arrays, scale: float) -> Change:
    first = _low_rank(parts["hada_w1_a"], parts["hada_w1_b"])
    return Hadamard(first, _low_rank(parts["hada_w2_a"], parts["hada_w2_b"]), scale)


def _loha_tucker(parts: Arrays, scale: float) -> Change:
    """Return the product of two with cores; LyCORIS turns their up around."""
    first = _tucker(_matrix(parts["hada_w1_a"]).T, parts["hada_t1"], parts["hada_w1_b"])
    second = _tucker(_matrix(parts["hada_w2_a"]).T, parts["hada_t2"], parts["hada_w2_b"])
    return Hadamard(first, second, scale)


def _lokr(parts: Arrays, scale: float) -> Change:
    if "lokr_w1" in parts:
        left = _matrix(parts["lokr_w1"])
    else:
        up, down = _matrix(parts["lokr_w1_a"]), _matrix(parts["lokr_w1_b"])
        left = up.astype(np.float32) @ down.astype(np.float32)
    return Kronecker(left, _lokr_right(parts), scale)


def _lokr_right(parts: Arrays) -> Factored:
    if "lokr_w2" in parts:
        return Difference(parts["lokr_w2"])
    up, down = parts["lokr_w2_a"], parts["lokr_w2_b"]
    if "lokr_t2" in parts:
        return _tucker(_matrix(up).T, parts["lokr_t2"], down)
    return _low_rank(up, down)


def _lokr_kind(parts: frozenset[Part]) -> Kind:
    """Return the kind; as in LyCORIS, two full factors have no rank and no scale."""
    ranks = (part for part in ("lokr_w2_b", "lokr_w1_b") if part in parts)
    return Kind(_lokr_shapes, _lokr, next(ranks, None))


def _whole(part: Part, change: Callable[[np.ndarray], Change]) -> dict[frozenset[Part], Kind]:
    """Return the kind that gives a tensor's change, or its new values, in full."""
    kind = Kind(
        lambda _, target: {part: target}, lambda parts, _: change(parts[part]), None, frozenset()
    )
    return {frozenset({part}): kind}


_LOHA = frozenset({"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"})
_LOKR = tuple(
    frozenset(left | right)
    for left in ({"lokr_w1"}, {"lokr_w1_a", "lokr_w1_b"})
    for right in (
        {"lokr_w2"},
        {"lokr_w2_a", "lokr_w2_b"},
        {"lokr_w2_a", "lokr_w2_b", "lokr_t2"},
    )
)

# A kind for each set of parts of a weight, without modifiers.
WEIGHTS: dict[frozenset[Part], Kind] = {
    frozenset({"lora_down.weight", "lora_up.weight"}): Kind(
        _low_rank_shapes,
        lambda parts, scale: _low_rank(parts["lora_up.weight"], parts["lora_down.weight"], scale),
        "lora_down.weight",
    ),
    frozenset({"lora_down.weight", "lora_up.weight", "lora_mid.weight"}): Kind(
        _tucker_shapes, _locon_tucker, "lora_down.weight"
    ),
    _LOHA: Kind(_loha_shapes, _loha, "hada_w1_b"),
    _LOHA | {"hada_t1", "hada_t2"}: Kind(_loha_tucker_shapes, _loha_tucker, "hada_w1_b"),
    **{parts: _lokr_kind(parts) for parts in _LOKR},
    **_whole("diff", Difference),
    **_whole("w_norm", Difference),
    **_whole("set_weight", Replacement),
}
# The parts of biases, of which a module has one at most.
BIASES = frozenset({"diff_b", "b_norm", "lora_B.bias"})
