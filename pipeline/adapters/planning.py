"""From a module's parts in a file to its changes: checks of shapes first, then the values."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from pipeline.adapters.adapter import Change, Shape
from pipeline.adapters.alphas import Alphas
from pipeline.adapters.changes import Decomposed, Difference, Factored
from pipeline.adapters.faults import Faults
from pipeline.adapters.kinds import BIASES, MODIFIERS, WEIGHTS, Arrays, Kind
from pipeline.adapters.names import Module
from pipeline.adapters.parts import Part
from pipeline.checkpoints.tensors import Tensor

MAX_RANK = 4096  # more than the layers of any Stable Diffusion can use
INTEGERS = (np.dtype(np.int64), np.dtype(np.int32))

Parts = Mapping[Part, Tensor]


@dataclass(frozen=True)
class PlannedChange:
    """A change whose parts have the right shapes and are not read yet.

    Attributes:
        network: the network of the changed tensor.
        target: the changed tensor's name in diffusers' layout.
        parts: the tensors to read.
        make: makes the change from their values.
    """

    network: str
    target: str
    parts: Parts
    make: Callable[[Arrays], Change]

    def read(self, faults: Faults) -> Change:
        """Read the parts and return the change; values that are not finite are faults."""
        arrays = {}
        for part, tensor in self.parts.items():
            arrays[part] = tensor.read()
            if not np.isfinite(arrays[part].astype(np.float32, copy=False)).all():
                faults.add(tensor, "has values that are not finite numbers")
        return self.make(arrays)


@dataclass(frozen=True)
class _Scale:
    """The scale of a module's factors: alpha divided by the rank.

    Attributes:
        file_alpha: alpha from the file's notes.
        rank: None if the scale is 1.
        divisor: the rank, or another number in its place.
    """

    file_alpha: float | None
    rank: int | None
    divisor: float

    def __call__(self, arrays: Arrays) -> float:
        if self.rank is None:
            return 1.0
        alpha = float(arrays[Part.ALPHA].item()) if Part.ALPHA in arrays else self.file_alpha
        # No alpha, and alpha 0, mean the rank: so sd-scripts and LyCORIS read it.
        return (alpha or self.rank) / self.divisor


def plan_changes(
    module: Module, parts: Parts, targets: Mapping[str, Shape], alphas: Alphas, faults: Faults
) -> Iterator[PlannedChange]:
    """Yield the changes of a module's weight and bias, if nothing is wrong with their parts.

    Args:
        module: the module's network and name.
        parts: the tensors that the file has for it.
        targets: the shapes of the network's tensors.
        alphas: the scales in the file's notes.
        faults: gets the tensors that cannot be used.
    """
    weight = {part: tensor for part, tensor in parts.items() if part not in BIASES}
    bias = {part: tensor for part, tensor in parts.items() if part in BIASES}
    kind = WEIGHTS.get(frozenset(weight) - MODIFIERS)
    complete = kind is not None and kind.modifiers >= weight.keys() & MODIFIERS
    scale = _Scale(None, None, 1)
    if kind is not None and complete:
        network, name = module
        target = targets[f"{name}.weight"]
        if _check_weight(kind, weight, target, faults):
            scale = _scale(kind, weight, module, alphas)
            make = partial(_make_weight, kind=kind, scale=scale, shape=target)
            yield PlannedChange(network, f"{name}.weight", weight, make)
    else:
        _refuse(weight, parts, faults)
    for part in bias:
        if len(bias) > 1 or (part is Part.UP_BIAS and Part.UP not in parts):
            _refuse(bias, parts, faults)
        else:
            yield from _plan_bias(module, part, parts, targets, scale, faults)


def _refuse(refused_parts: Parts, parts: Parts, faults: Faults) -> None:
    names = ", ".join(part.value for part in parts)
    for tensor in refused_parts.values():
        faults.add(tensor, f"makes up no complete change; its module has the parts {names}")


def _plan_bias(
    module: Module,
    part: Part,
    parts: Parts,
    targets: Mapping[str, Shape],
    scale: _Scale,
    faults: Faults,
) -> Iterator[PlannedChange]:
    """Yield the change of a bias; only PEFT's is scaled, as the product beside it is."""
    network, name = module
    shape = targets.get(f"{name}.bias")
    if shape is None:
        faults.add(parts[part], "changes a bias, and the module has none")
    elif _check_shapes({part: parts[part]}, {part: shape}, faults):
        keys = (part, Part.ALPHA) if part is Part.UP_BIAS else (part,)
        tensors = {key: parts[key] for key in keys if key in parts}
        make = partial(_make_bias, part=part, scale=scale)
        yield PlannedChange(network, f"{name}.bias", tensors, make)


def _check_weight(kind: Kind, parts: Parts, target: Shape, faults: Faults) -> bool:
    """Return whether all parts of a weight's change have the right shapes."""
    factors = {part: tensor for part, tensor in parts.items() if part not in MODIFIERS}
    for tensor in factors.values():
        if not tensor.shape:
            faults.add(tensor, "is a single number; expected a matrix or a kernel")
            return False
        if kind.modifiers and len(target) < 2:
            faults.add(tensor, f"is a matrix's factor; the weight has shape {list(target)}")
            return False
    shapes = kind.shapes({part: tensor.shape for part, tensor in factors.items()}, target)
    right = _check_shapes(factors, shapes, faults)
    if right and kind.rank is not None and factors[kind.rank].shape[0] > MAX_RANK:
        rank = factors[kind.rank].shape[0]
        faults.add(factors[kind.rank], f"has rank {rank}; the most is {MAX_RANK}")
        right = False
    return right and _check_modifiers(parts, target, faults)


def _check_shapes(parts: Parts, shapes: Mapping[Part, Shape], faults: Faults) -> bool:
    mistakes = 0
    for part, tensor in parts.items():
        if tensor.dtype in INTEGERS:
            faults.add(tensor, f"has dtype {tensor.dtype}; expected floating point")
        elif 0 in shapes[part] or not _fits(tensor.shape, shapes[part]):
            shape = " x ".join(str(size or "?") for size in shapes[part])
            faults.add(tensor, f"has shape {list(tensor.shape)}; expected {shape}")
        else:
            continue
        mistakes += 1
    return mistakes == 0


def _fits(shape: Shape, target: Shape) -> bool:
    """Return whether both shapes are the same matrix, as a 1x1 kernel and a linear layer's are."""
    return shape[:1] == target[:1] and math.prod(shape[1:]) == math.prod(target[1:])


def _check_modifiers(parts: Parts, target: Shape, faults: Faults) -> bool:
    alpha, norms = parts.get(Part.ALPHA), _norms(parts)
    if alpha is not None and math.prod(alpha.shape) != 1:
        faults.add(alpha, f"has shape {list(alpha.shape)}; expected a single number")
        return False
    if len(norms) > 1:
        _refuse(norms, parts, faults)
        return False
    for part, tensor in norms.items():
        if _norm_axis(part, tensor.shape, target) is None:
            rows, columns = target[:2]
            expectation = f"expected {rows} norms of rows or 1 x {columns} of columns"
            faults.add(tensor, f"has shape {list(tensor.shape)}; {expectation}")
            return False
    return True


def _norms(parts: Parts) -> Parts:
    return {
        part: tensor for part, tensor in parts.items() if part in (Part.DORA_SCALE, Part.MAGNITUDE)
    }


def _norm_axis(part: Part, shape: Shape, target: Shape) -> int | None:
    """Return the axis of a tensor along which a file has norms; None if they do not fit.

    PEFT's norms are those of rows, whatever their shape. LyCORIS's shape tells the axis.
    """
    if not shape:
        return None
    size = math.prod(shape)
    rows = part is Part.MAGNITUDE or shape[0] == target[0]
    if rows:
        return 0 if size == target[0] else None
    return 1 if shape[:2] == (1, size) and size == target[1] else None


def _scale(kind: Kind, parts: Parts, module: Module, alphas: Alphas) -> _Scale:
    if kind.rank is None:
        return _Scale(None, None, 1)
    rank = parts[kind.rank].shape[0]
    return _Scale(alphas.alpha(*module), rank, alphas.divisor(module[0], rank))


def _make_weight(arrays: Arrays, kind: Kind, scale: _Scale, shape: Shape) -> Change:
    change = kind.build(arrays, scale(arrays))
    for part in (Part.DORA_SCALE, Part.MAGNITUDE):
        if part in arrays and isinstance(change, Factored):
            axis = _norm_axis(part, arrays[part].shape, shape)
            return Decomposed(change, arrays[part].reshape(-1), axis or 0)
    return change


def _make_bias(arrays: Arrays, part: Part, scale: _Scale) -> Change:
    return Difference(arrays[part], scale(arrays) if part is Part.UP_BIAS else 1.0)
