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
    def estimate_is_valid(self) -> bool:
        """Whether the compiler has a model of the operation's cost; it marks others as invalid."""
        return "COST_MODEL_TYPE_INVALID" not in self.attributes

    @property
    def kernel_cost(self) -> tuple[float, float]:
        """FLOPs and bytes that a custom kernel declares."""
        found = re.search(r'"cost_estimate":(\{[^}]*\})', self.attributes)
        stated = json.loads(found[1]) if found else {}
        return float(stated.get("flops", 0)), float(stated.get("bytes_accessed", 0))

    @property
    def group(self) -> int:
        """The number of chips that exchange data with each other in a collective operation."""
        if found := re.search(r"replica_groups=\[\d+,(\d+)\]", self.attributes):
            return int(found[1])
        found = re.search(r"(?:replica_groups|source_target_pairs)=\{\{([\d,]+)\}", self.attributes)
        return len(found[1].split(",")) if found else 1

    @property
    def known_trips(self) -> int | None:
        """The number of a loop's iterations, where the compiler has annotated it."""
        found = re.search(r'"known_trip_count":\{"n":"(\d+)"', self.attributes)
        return int(found[1]) if found else None


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
        current = Computation()
        for line in text.splitlines():
            if header := HEADER.match(line):
                current = self.computations[header[2]] = Computation()
                self.entry = header[2] if header[1] else self.entry
            elif found := INSTRUCTION.match(line):
                current.instructions.append(_instruction(found[2], found[3]))
                if found[1]:
                    current.root = current.instructions[-1]

    def trips(self, inside: Computation, loop: Instruction) -> int | None:
        """Return the iterations of a loop that is annotated, or counts between two constants.

        The result is None for a loop of unknown length. `inside` has the loop.
        """
        if loop.known_trips is not None:
            return loop.known_trips
        found = CONDITION.search(loop.attributes)
        assert found is not None
        condition = self.computations[found[1]]
        last = condition.root
        if last is None or last.opcode != "compare":
            return None
        counter, limit = (condition.by_name[name] for name in last.operands)
        place = re.search(r"index=(\d+)", counter.attributes)
        state = inside.by_name[loop.operands[0]]
        if place is None or state.opcode != "tuple":
            return None
        begin = _number(inside, state.operands[int(place[1])])
        end = _number(condition, limit.name)
        return None if begin is None or end is None else end - begin


def _number(inside: Computation, name: str) -> int | None:
    """Return the value of a constant integer, or of a copy of one."""
    made = inside.by_name[name]
    while made.opcode in ("copy", "bitcast"):
        made = inside.by_name[made.operands[0]]
    found = re.match(r"\((\d+)\)", made.attributes) if made.opcode == "constant" else None
    return int(found[1]) if found else None


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
