"""The work of a compiled TPU program: FLOPs and bytes of every operation in its HLO text.

The text is parsed because XLA's own `cost_analysis` does not look into loops. Only the matrix
unit's FLOPs are counted (matrix products and convolutions), and only the bytes that move between
HBM and the chip: an array whose layout has `S(1)` is in VMEM already. Sizes include the padding of
the tiled layouts.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

ITEM_BYTES = {"pred": 1, "s4": 0.5, "u4": 0.5, "bf16": 2, "token": 0}
ARRAY = re.compile(r"([a-z]+\d*[a-z0-9]*)\[([\d,]*)\](?:\{([^}]*)\})?")
HEADER = re.compile(r"^(ENTRY )?%(\S+) \(.*\{$")
INSTRUCTION = re.compile(r"^\s+(ROOT )?%(\S+) = (.*)$")
CALLED = re.compile(r"(?:calls|body|to_apply)=%([^\s,]+)")
CONDITION = re.compile(r"condition=%([\w.-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
# Operations that only name, join or split existing arrays, and move no data.
FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "partition-id",
}
# The ends of asynchronous operations, which are counted at their starts.
ENDS = {"copy-done", "slice-done", "all-gather-done", "collective-permute-done", "async-done"}
ASYNC = {"copy-start", "slice-start", "async-start"}
SLICES = {"slice", "dynamic-slice"}


@dataclass(frozen=True)
class ArrayType:
    """An array's logical size, and its layout in memory."""

    dtype: str
    shape: tuple[int, ...]
    layout: str

    @property
    def in_vmem(self) -> bool:
        """Whether the array is on the chip, so that reading it costs no bandwidth."""
        return "S(1)" in self.layout

    @property
    def size(self) -> int:
        """Bytes, with incomplete tiles counted whole."""
        shape = list(self.shape)
        order, _, tiling = self.layout.partition(":")
        tile = re.match(r"T\(([\d,]+)\)", tiling)
        if tile and order:
            minor_first = [int(axis) for axis in order.split(",")]
            sides = [int(side) for side in tile[1].split(",")]
            for axis, side in zip(minor_first, reversed(sides), strict=False):
                shape[axis] = -(-shape[axis] // side) * side
        return int(math.prod(shape) * _item_bytes(self.dtype))


def _item_bytes(dtype: str) -> float:
    if dtype in ITEM_BYTES:
        return ITEM_BYTES[dtype]
    bits = re.search(r"\d+", dtype)
    return int(bits[0]) / 8 if bits else 0


def _arrays(text: str) -> tuple[ArrayType, ...]:
    found = ARRAY.findall(text)
    return tuple(ArrayType(d, tuple(map(int, filter(None, s.split(",")))), y) for d, s, y in found)


@dataclass
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    outputs: tuple[ArrayType, ...]
    operands: tuple[str, ...]
    attributes: str

    @property
    def scope(self) -> str:
        """The path of `jax.named_scope`s in the source that the instruction comes from."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found[1] if found else ""

    @property
    def called(self) -> str | None:
        """The name of the computation that a fusion, a loop or a call runs."""
        found = CALLED.search(self.attributes)
        return found[1] if found else None

    @property
    def estimated_cycles(self) -> int:
        """The compiler's own estimate; it has none for custom kernels."""
        found = re.search(r'"estimated_cycles":"(\d+)"', self.attributes)
        return int(found[1]) if found else 0

    @property
    def kernel_cost(self) -> tuple[float, float]:
        """FLOPs and bytes that a custom kernel declares."""
        found = re.search(r'"cost_estimate":(\{[^}]*\})', self.attributes)
        stated = json.loads(found[1]) if found else {}
        return float(stated.get("flops", 0)), float(stated.get("bytes_accessed", 0))

    @property
    def trips(self) -> int | None:
        """The number of a loop's iterations, where the compiler has annotated it."""
        found = re.search(r'"known_trip_count":\{"n":"(\d+)"', self.attributes)
        return int(found[1]) if found else None


@dataclass
class Computation:
    """A function: its instructions in order."""

    instructions: list[Instruction] = field(default_factory=list)

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        """The instructions by name."""
        return {instruction.name: instruction for instruction in self.instructions}


@dataclass(frozen=True)
class Cost:
    """The work of an operation each time it runs; `hidden` bytes move while others compute."""

    instruction: Instruction
    flops: float
    bytes: float
    hidden: bool = False


class Program:
    """A compiled program, from `jax.stages.Compiled.as_text()`."""

    def __init__(self, text: str):
        self.computations: dict[str, Computation] = {}
        self.entry = ""
        current = Computation()
        for line in text.splitlines():
            if header := HEADER.match(line):
                current = self.computations[header[2]] = Computation()
                self.entry = header[2] if header[1] else self.entry
            elif found := INSTRUCTION.match(line):
                current.instructions.append(_instruction(found[2], found[3]))

    def loop(self) -> str | None:
        """Return the body of the loop of unknown length; the largest if there are several."""
        bodies = [
            instruction.called
            for instruction in self.computations[self.entry].instructions
            if instruction.opcode == "while"
            and self._trips(instruction) is None
            and instruction.called
        ]
        return max(bodies, key=lambda body: len(self.computations[body].instructions), default=None)

    def _trips(self, loop: Instruction) -> int | None:
        """Return the iterations of a loop that is annotated, or counts from 0 to a constant."""
        if loop.trips is not None:
            return loop.trips
        found = CONDITION.search(loop.attributes)
        assert found is not None
        condition = self.computations[found[1]]
        *_, last = condition.instructions
        limit = condition.by_name[last.operands[1]] if last.opcode == "compare" else last
        number = re.match(r"\((\d+)\)", limit.attributes) if limit.opcode == "constant" else None
        return int(number[1]) if number else None

    def costs(self, computation: str, lengths: Sequence[int] = ()) -> Iterator[tuple[Cost, int]]:
        """Yield every operation of a computation and how often it runs.

        `lengths` are the iterations of loops of unknown length, the outermost first; deeper ones
        are left out.
        """
        inside = self.computations[computation]
        for instruction in inside.instructions:
            if instruction.opcode == "while":
                yield from self._loop_costs(instruction, lengths)
            elif instruction.opcode == "call":
                assert instruction.called is not None
                yield from self.costs(instruction.called, lengths)
            elif instruction.opcode == "conditional":
                yield from self._cheapest_branch(instruction)
            elif instruction.opcode not in FREE | ENDS:
                yield self._cost(inside, instruction), 1

    def _loop_costs(self, loop: Instruction, lengths: Sequence[int]) -> Iterator[tuple[Cost, int]]:
        body, trips = loop.called, self._trips(loop)
        if trips is None and lengths:
            trips, lengths = lengths[0], lengths[1:]
        if body is not None and trips is not None:
            for cost, times in self.costs(body, lengths):
                yield cost, times * trips

    def _cheapest_branch(self, instruction: Instruction) -> list[tuple[Cost, int]]:
        """Return the costs of the branch that moves the fewest bytes.

        A scheduler that adds no noise of its own takes this branch.
        """
        found = BRANCHES.search(instruction.attributes)
        names = found[1].replace("%", "").split(", ") if found else []
        branches = [list(self.costs(name)) for name in names]
        return min(branches, key=lambda costs: sum(cost.bytes for cost, _ in costs), default=[])

    def _cost(self, inside: Computation, instruction: Instruction) -> Cost:
        if instruction.opcode in ASYNC:
            # The outputs include the source again, so only the first operand counts.
            moved = sum(_hbm(inside.by_name[name].outputs) for name in instruction.operands[:1])
            moved = moved or _hbm(instruction.outputs[:1])
            return Cost(instruction, 0, moved, hidden=True)
        if instruction.opcode == "custom-call":
            flops, moved = instruction.kernel_cost
            if flops or moved:
                return Cost(instruction, flops, moved)
        flops = self._flops(inside, instruction)
        read = [self._read(inside, instruction, i) for i in range(len(instruction.operands))]
        return Cost(instruction, flops, sum(read) + _hbm(instruction.outputs))

    def _read(self, inside: Computation, instruction: Instruction, index: int) -> float:
        """Return the HBM bytes read of an operand: all, unless only slices of it are used."""
        arrays = inside.by_name[instruction.operands[index]].outputs
        if instruction.opcode in SLICES:
            return min(_hbm(arrays), _hbm(instruction.outputs)) if index == 0 else 0
        if instruction.opcode != "fusion" or instruction.called is None:
            return _hbm(arrays)
        fused = self.computations[instruction.called]
        parameters = {i.name: i for i in fused.instructions if i.opcode == "parameter"}
        name = next(n for n, i in parameters.items() if i.attributes.startswith(f"({index})"))
        users = [i for i in fused.instructions if name in i.operands]
        if users and all(user.opcode in SLICES for user in users):
            part = sum(output.size for user in users for output in user.outputs)
            return min(_hbm(arrays), part)
        return _hbm(arrays)

    def _flops(self, inside: Computation, instruction: Instruction) -> float:
        if instruction.opcode == "fusion" and instruction.called is not None:
            fused = self.computations[instruction.called]
            return sum(self._flops(fused, part) for part in fused.instructions)
        if instruction.opcode == "convolution":
            image, kernel = (inside.by_name[name].outputs[0] for name in instruction.operands)
            return _convolution_flops(instruction, image, kernel)
        if instruction.opcode == "dot":
            return _dot_flops(instruction, inside.by_name[instruction.operands[0]].outputs[0])
        return 0


def _hbm(arrays: tuple[ArrayType, ...]) -> float:
    return sum(array.size for array in arrays if not array.in_vmem)


def _instruction(name: str, rest: str) -> Instruction:
    end = _closing(rest, 0) + 1 if rest.startswith("(") else _type_end(rest)
    types, call = rest[:end], rest[end:].lstrip()
    opcode, _, _ = call.partition("(")
    close = _closing(call, len(opcode))
    inner, attributes = call[len(opcode) : close + 1], call[close + 1 :]
    operands = tuple(re.findall(r"%([^\s,()]+)", inner))
    if opcode in ("parameter", "constant"):
        attributes = inner + attributes
    return Instruction(name, opcode, _arrays(types), operands, attributes)


def _type_end(text: str) -> int:
    """Return where the opcode of `bf16[8,192]{1,0:T(8,128)(2,1)} convolution(...` begins."""
    found = re.match(r"[a-z0-9]+\[[\d,]*\](\{[^}]*\})?", text)
    assert found is not None, text[:80]
    return found.end()


def _closing(text: str, start: int) -> int:
    depth = 0
    for i in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    raise ValueError(f"unbalanced parentheses: {text[:80]}")


def _dot_flops(instruction: Instruction, left: ArrayType) -> float:
    found = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
    contracted = [left.shape[int(axis)] for axis in found[1].split(",")] if found else []
    return 2.0 * math.prod(instruction.outputs[0].shape) * math.prod(contracted)


def _convolution_flops(instruction: Instruction, image: ArrayType, kernel: ArrayType) -> float:
    """Count a convolution's FLOPs, without products with padding or with a dilation's holes.

    XLA writes batched matrix products as convolutions too, with the batch as dilated spatial axes.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    assert labels is not None
    image_axes, kernel_axes, output_axes = labels.groups()
    output = instruction.outputs[0]
    spatial = [label for label in output_axes if label.isdigit()]
    pairs = 1
    for i, label in enumerate(spatial):
        pairs *= _pairs(
            _window(instruction.attributes, i),
            image.shape[image_axes.index(label)],
            output.shape[output_axes.index(label)],
        )
    batch, features = (output.shape[output_axes.index(label)] for label in "bf")
    return 2.0 * batch * features * kernel.shape[kernel_axes.index("i")] * pairs


@dataclass(frozen=True)
class _Window:
    size: int = 1
    stride: int = 1
    low: int = 0
    lhs_dilate: int = 1
    rhs_dilate: int = 1


def _window(attributes: str, axis: int) -> _Window:
    found = re.search(r"window=\{([^}]*)\}", attributes)
    values: dict[str, int] = {}
    for part in found[1].split() if found else []:
        key, _, value = part.partition("=")
        mine = value.split("x")[axis]
        if key == "pad":
            values["low"] = int(mine.split("_")[0])
        elif key in _Window.__dataclass_fields__:
            values[key] = int(mine)
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
