"""The HLO text of a compiled TPU program, parsed into its computations.

An array whose layout has `S(1)` is in VMEM, others are in HBM. Sizes include the padding of the
tiled layouts.
"""

import json
import math
import re
from dataclasses import dataclass, field
from functools import cached_property

ITEM_BYTES = {"pred": 1, "s4": 0.5, "u4": 0.5, "bf16": 2, "token": 0}
ARRAY = re.compile(r"([a-z]+\d*[a-z0-9]*)\[([\d,]*)\](?:\{([^}]*)\})?")
HEADER = re.compile(r"^(ENTRY )?%(\S+) \(.*\{$")
INSTRUCTION = re.compile(r"^\s+(ROOT )?%(\S+) = (.*)$")
CALLED = re.compile(r"(?:calls|body|to_apply)=%([^\s,]+)")
CONDITION = re.compile(r"condition=%([\w.-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")


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
        return int(self.elements * _item_bytes(self.dtype))

    @property
    def elements(self) -> int:
        """Elements, with incomplete tiles counted whole."""
        shape = list(self.shape)
        order, _, tiling = self.layout.partition(":")
        tile = re.match(r"T\(([\d,]+)\)", tiling)
        if tile and order:
            minor_first = [int(axis) for axis in order.split(",")]
            sides = [int(side) for side in tile[1].split(",")]
            for axis, side in zip(minor_first, reversed(sides), strict=False):
                shape[axis] = -(-shape[axis] // side) * side
        return math.prod(shape)


def _item_bytes(dtype: str) -> float:
    if dtype in ITEM_BYTES:
        return ITEM_BYTES[dtype]
    bits = re.search(r"\d+", dtype)
    return int(bits[0]) / 8 if bits else 0


def _arrays(text: str) -> tuple[ArrayType, ...]:
    matches = ARRAY.findall(text)
    return tuple(
        ArrayType(d, tuple(map(int, filter(None, s.split(",")))), y) for d, s, y in matches
    )


@dataclass
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    outputs: tuple[ArrayType, ...]
    operands: tuple[str, ...]
    attributes: str

    @property
    def called(self) -> str | None:
        """The name of the computation that a fusion, a loop or a call runs."""
        match = CALLED.search(self.attributes)
        return match[1] if match else None

    @property
    def estimated_cycles(self) -> int:
        """The compiler's own estimate; it has none for custom kernels."""
        match = re.search(r'"estimated_cycles":"(\d+)"', self.attributes)
        return int(match[1]) if match else 0

    @property
    def estimate_is_valid(self) -> bool:
        """Whether the compiler has a model of the operation's cost; it marks others as invalid."""
        return "COST_MODEL_TYPE_INVALID" not in self.attributes

    @property
    def kernel_cost(self) -> tuple[float, float]:
        """FLOPs and bytes that a custom kernel declares."""
        match = re.search(r'"cost_estimate":(\{[^}]*\})', self.attributes)
        cost = json.loads(match[1]) if match else {}
        return float(cost.get("flops", 0)), float(cost.get("bytes_accessed", 0))

    @property
    def group(self) -> int:
        """The number of chips that exchange data with each other in a collective operation."""
        if match := re.search(r"replica_groups=\[\d+,(\d+)\]", self.attributes):
            return int(match[1])
        match = re.search(r"(?:replica_groups|source_target_pairs)=\{\{([\d,]+)\}", self.attributes)
        return len(match[1].split(",")) if match else 1

    @property
    def known_trips(self) -> int | None:
        """The number of a loop's iterations, where the compiler has annotated it."""
        match = re.search(r'"known_trip_count":\{"n":"(\d+)"', self.attributes)
        return int(match[1]) if match else None


@dataclass
class Computation:
    """A function: its instructions in order."""

    instructions: list[Instruction] = field(default_factory=list)
    root: Instruction | None = None  # the instruction whose outputs are returned

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        """The instructions by name."""
        return {instruction.name: instruction for instruction in self.instructions}


class Program:
    """A compiled program, from `jax.stages.Compiled.as_text()`."""

    def __init__(self, text: str):
        self.computations: dict[str, Computation] = {}
        self.entry = ""
        computation = Computation()
        for line in text.splitlines():
            if header := HEADER.match(line):
                computation = self.computations[header[2]] = Computation()
                self.entry = header[2] if header[1] else self.entry
            elif match := INSTRUCTION.match(line):
                computation.instructions.append(_instruction(match[2], match[3]))
                if match[1]:
                    computation.root = computation.instructions[-1]

    def trips(self, computation: Computation, loop: Instruction) -> int | None:
        """Return the iterations of a loop that is annotated, or counts between two constants.

        The result is None for a loop of unknown length. `computation` contains the loop.
        """
        if loop.known_trips is not None:
            return loop.known_trips
        match = CONDITION.search(loop.attributes)
        assert match is not None
        condition = self.computations[match[1]]
        root = condition.root
        if root is None or root.opcode != "compare":
            return None
        counter, limit = (condition.by_name[name] for name in root.operands)
        place = re.search(r"index=(\d+)", counter.attributes)
        state = computation.by_name[loop.operands[0]]
        if place is None or state.opcode != "tuple":
            return None
        begin = _number(computation, state.operands[int(place[1])])
        end = _number(condition, limit.name)
        return None if begin is None or end is None else end - begin


def _number(computation: Computation, name: str) -> int | None:
    """Return the value of a constant integer, or of a copy of one."""
    instruction = computation.by_name[name]
    while instruction.opcode in ("copy", "bitcast"):
        instruction = computation.by_name[instruction.operands[0]]
    match = (
        re.match(r"\((\d+)\)", instruction.attributes) if instruction.opcode == "constant" else None
    )
    return int(match[1]) if match else None


def _instruction(name: str, text: str) -> Instruction:
    end = _closing(text, 0) + 1 if text.startswith("(") else _type_end(text)
    types, call = text[:end], text[end:].lstrip()
    opcode, _, _ = call.partition("(")
    close = _closing(call, len(opcode))
    arguments, attributes = call[len(opcode) : close + 1], call[close + 1 :]
    operands = tuple(re.findall(r"%([^\s,()]+)", arguments))
    if opcode in ("parameter", "constant"):
        attributes = arguments + attributes
    return Instruction(name, opcode, _arrays(types), operands, attributes)


def _type_end(text: str) -> int:
    """Return where the opcode of `bf16[8,192]{1,0:T(8,128)(2,1)} convolution(...` begins."""
    match = re.match(r"[a-z0-9]+\[[\d,]*\](\{[^}]*\})?", text)
    assert match is not None, text[:80]
    return match.end()


def _closing(text: str, start: int) -> int:
    depth = 0
    for i in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    raise ValueError(f"unbalanced parentheses: {text[:80]}")
