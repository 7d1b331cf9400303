"""Matrix products and convolutions of HLO, as a TPU's matrix unit sees them."""

import math
import re
from dataclasses import dataclass, replace

from benchmarks.hlo import ArrayType, Instruction

INT8 = {"s8", "u8"}


@dataclass(frozen=True)
class Product:
    """A matrix product, or a convolution written as one.

    Attributes:
        flops: 2 for each multiplication, without padding.
        contraction: the length of the sums; None where only the FLOPs are known.
        rows: rows of the result.
        columns: columns of the result.
        int8: whether both factors are whole numbers of 8 bits.
    """

    flops: float
    contraction: int | None = None
    rows: int = 1
    columns: int = 1
    int8: bool = False

    def padded(self, width: int) -> float:
        """Return the FLOPs that a matrix unit of `width` rows and columns spends.

        One factor stays in the unit while the other streams through it, so two sides are padded to
        whole multiples of the width: the contraction, and the side of the result that pads less.
        """
        if self.contraction is None:
            return self.flops
        side = min(_padding(self.rows, width), _padding(self.columns, width))
        return self.flops * _padding(self.contraction, width) * side


def product(instruction: Instruction, left: ArrayType, right: ArrayType) -> Product:
    """Return the product of a `dot` or `convolution` of arrays of these types."""
    is_dot = instruction.opcode == "dot"
    result = _dot(instruction, left) if is_dot else _convolution(instruction, left, right)
    return replace(result, int8=left.dtype in INT8 and right.dtype in INT8)


def _padding(size: int, width: int) -> float:
    return -(-size // width) * width / size


def _dot(instruction: Instruction, left: ArrayType) -> Product:
    def axes(name: str) -> list[int]:
        match = re.search(name + r"=\{([\d,]*)\}", instruction.attributes)
        return [int(axis) for axis in filter(None, match[1].split(","))] if match else []

    result = math.prod(instruction.outputs[0].shape)
    contraction = math.prod(left.shape[axis] for axis in axes("lhs_contracting_dims"))
    batch = math.prod(left.shape[axis] for axis in axes("lhs_batch_dims"))
    rows = math.prod(left.shape) // (contraction * batch)
    columns = result // (rows * batch)
    return Product(2.0 * result * contraction, contraction, rows, columns)


def _convolution(instruction: Instruction, image: ArrayType, kernel: ArrayType) -> Product:
    """Count a convolution without products with padding or with a dilation's holes.

    XLA writes batched matrix products as convolutions too, with the batch as dilated spatial axes.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    assert labels is not None
    image_axes, kernel_axes, output_axes = labels.groups()
    output = instruction.outputs[0]
    pairs = taps = pixels = 1
    for i, label in enumerate(label for label in output_axes if label.isdigit()):
        window = _window(instruction.attributes, i)
        outputs = output.shape[output_axes.index(label)]
        count = _pairs(window, image.shape[image_axes.index(label)], outputs)
        pairs *= count
        if window.size == 1 or count > outputs:  # a batch has one tap for each output
            taps *= window.size
            pixels *= outputs
    batch, features = (output.shape[output_axes.index(label)] for label in "bf")
    depth = kernel.shape[kernel_axes.index("i")]
    flops = 2.0 * batch * features * depth * pairs
    return Product(flops, depth * taps, batch * pixels, features)


@dataclass(frozen=True)
class _Window:
    size: int = 1
    stride: int = 1
    low: int = 0
    lhs_dilate: int = 1
    rhs_dilate: int = 1


def _window(attributes: str, axis: int) -> _Window:
    match = re.search(r"window=\{([^}]*)\}", attributes)
    values: dict[str, int] = {}
    for part in match[1].split() if match else []:
        key, _, value = part.partition("=")
        axis_value = value.split("x")[axis]
        if key == "pad":
            values["low"] = int(axis_value.split("_")[0])
        elif key in _Window.__dataclass_fields__:
            values[key] = int(axis_value)
    return _Window(**values)


def _pairs(window: _Window, inputs: int, outputs: int) -> int:
    """Count the pairs of an output and a tap that meet an input, along one axis."""
    count = 0
    for tap in range(window.size):
        offset = tap * window.rhs_dilate - window.low
        for place in range(outputs):
            at = place * window.stride + offset
            count += 0 <= at < (inputs - 1) * window.lhs_dilate + 1 and at % window.lhs_dilate == 0
    return count
