"""The work of every operation of a compiled TPU program, from its HLO.

XLA's own `cost_analysis` does not look into loops, and counts no padding. Counted here are
multiplications in the matrix unit, operations of the vector unit, registers written, and bytes that
move between HBM and the chip. An operation moves what it uses: a slice moves its own size, an
update in place moves the part that is new.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.hlo import BRANCHES, ArrayType, Computation, Instruction, Program
from benchmarks.hlo_products import Product, product

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
FREE_KERNEL = 'custom_call_target="ConcatBitcast"'  # joins slices that lie side by side
# Transfers that run beside other operations. The ends of asynchronous operations are free.
TRANSFERS = {"copy-start", "slice-start", "dynamic-slice-start", "async-start"}
END = "-done"
# Operations that use a part of their first operand, as large as their result.
SLICES = {"slice", "dynamic-slice", "gather"}
UPDATE = "dynamic-update-slice"
# Operations of the vector unit on an element, in 32 bits. Others only move data. Functions count
# with the fewest operations that their polynomials need: for erf, XLA's rational function in x^2 of
# degrees 4 and 6 (`math.cc`, ErfImpl32), where products and sums are separate operations.
VECTOR = {
    **dict.fromkeys(
        (
            *("abs", "add", "and", "compare", "convert", "divide", "exponential", "floor", "log"),
            *("log-plus-one", "logistic", "maximum", "minimum", "multiply", "negate", "not", "or"),
            *("power", "round-nearest-even", "select", "shift-left", "shift-right-arithmetic"),
            *("shift-right-logical", "sqrt", "subtract", "xor"),
        ),
        1,
    ),
    "clamp": 2,
    "cosine": 10,
    "sine": 10,
    "erf": 24,
}
# Operations of the unit for reciprocals, roots and exponentials.
SPECIAL = {
    **dict.fromkeys(("divide", "erf", "exponential", "log", "log-plus-one", "rsqrt", "sqrt"), 1),
    **dict.fromkeys(("logistic", "power"), 2),
    "tanh": 1,
}
REDUCTIONS = {"reduce", "reduce-window"}
# Exchanges between n chips in a ring of neighbours, and how many times its operand each chip sends.
# With a start and an end they run beside the operations in between.
COLLECTIVES: dict[str, Callable[[int], float]] = {
    "all-gather": lambda n: n - 1,
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda _: 1,
}
START = "-start"


@dataclass(frozen=True)
class Cost:
    """The work of an operation each time it runs.

    Attributes:
        instruction: the operation.
        products: its matrix products and convolutions.
        vector: operations of the vector unit, each on 32 bits.
        special: reciprocals, roots and exponentials, likewise.
        written: bytes of its results, wherever they are.
        bytes: bytes that move between HBM and the chip.
        hidden: whether it is a transfer beside other operations.
        link: bytes that each link sends to another chip.
        beside: the names of the operations beside an exchange with other chips.
    """

    instruction: Instruction
    products: tuple[Product, ...] = ()
    vector: float = 0.0
    special: float = 0.0
    written: float = 0.0
    bytes: float = 0.0
    hidden: bool = False
    link: float = 0.0
    beside: tuple[str, ...] = ()

    @property
    def flops(self) -> float:
        """FLOPs of the products, without padding."""
        return sum(product.flops for product in self.products)


def costs(program: Program, lengths: Sequence[int] = ()) -> Iterator[tuple[Cost, int]]:
    """Yield every operation of a program and how often it runs.

    Args:
        program: the program.
        lengths: the iterations of nested loops of unknown length, the outermost first.

    Raises:
        ValueError: if a loop's length is neither known nor given.
    """
    return _Counter(program.computations).costs(program, program.entry, lengths)


class _Counter:
    """Counts the work of instructions, whose fusions are among `computations`."""

    def __init__(self, computations: Mapping[str, Computation]):
        self._computations = computations

    def costs(
        self, program: Program, name: str, lengths: Sequence[int]
    ) -> Iterator[tuple[Cost, int]]:
        computation = self._computations[name]
        for instruction in computation.instructions:
            opcode = instruction.opcode
            if opcode in FREE or opcode.endswith(END) or FREE_KERNEL in instruction.attributes:
                continue
            if opcode == "while":
                trips, inner_lengths = _trips(program, computation, instruction, lengths)
                assert instruction.called is not None
                for cost, times in self.costs(program, instruction.called, inner_lengths):
                    yield cost, times * trips
            elif opcode == "call":
                assert instruction.called is not None
                yield from self.costs(program, instruction.called, lengths)
            elif opcode == "conditional":
                yield from self._cheapest_branch(program, instruction, lengths)
            else:
                yield self._cost(computation, instruction), 1

    def _cheapest_branch(
        self, program: Program, instruction: Instruction, lengths: Sequence[int]
    ) -> list[tuple[Cost, int]]:
        """Return the costs of the branch that moves the fewest bytes.

        A scheduler that adds no noise of its own takes this branch.
        """
        match = BRANCHES.search(instruction.attributes)
        names = match[1].replace("%", "").split(", ") if match else []
        branches = [list(self.costs(program, name, lengths)) for name in names]
        return min(branches, key=lambda costs: sum(cost.bytes for cost, _ in costs), default=[])

    def _cost(self, computation: Computation, instruction: Instruction) -> Cost:
        if instruction.opcode.removesuffix(START) in COLLECTIVES:
            return self._exchange(computation, instruction)
        if instruction.opcode in TRANSFERS:
            return Cost(instruction, bytes=_transferred(computation, instruction), hidden=True)
        flops, moved_bytes = instruction.kernel_cost
        if flops or moved_bytes:
            return Cost(instruction, (Product(flops),), bytes=moved_bytes)
        products = tuple(self._products(computation, instruction))
        vector, special = self._vector_work(computation, instruction)
        writes = self._written(computation, instruction)
        read_bytes = sum(
            self._read(computation, instruction, index)
            for index in range(len(instruction.operands))
        )
        return Cost(
            instruction,
            products,
            vector,
            special,
            sum(size for _, size in writes),
            read_bytes + sum(size for array, size in writes if not array.in_vmem),
        )

    def _exchange(self, computation: Computation, instruction: Instruction) -> Cost:
        opcode, count = instruction.opcode.removesuffix(START), instruction.group
        operands = (computation.by_name[name].outputs for name in instruction.operands)
        size = sum(array.size for arrays in operands for array in arrays)
        # A ring of more than two chips sends half of the data each way around.
        links = 1 if opcode == "collective-permute" else max(1, min(2, count - 1))
        link = size * COLLECTIVES[opcode](count) / links
        names = [operation.name for operation in computation.instructions]
        begin = end = names.index(instruction.name)
        if instruction.opcode.endswith(START):
            end = next(
                place
                for place, operation in enumerate(computation.instructions)
                if operation.opcode == opcode + END and operation.operands[0] == instruction.name
            )
        beside = tuple(names[begin + 1 : end])
        return Cost(instruction, link=link, beside=beside)

    def _fused(self, instruction: Instruction) -> Computation | None:
        """Return the computation of a fusion; None for other instructions."""
        if instruction.opcode != "fusion" or instruction.called is None:
            return None
        return self._computations[instruction.called]

    def _products(self, computation: Computation, instruction: Instruction) -> Iterator[Product]:
        if (fusion := self._fused(instruction)) is not None:
            for part in fusion.instructions:
                yield from self._products(fusion, part)
        elif instruction.opcode in ("convolution", "dot"):
            left, right = (computation.by_name[name].outputs[0] for name in instruction.operands)
            yield product(instruction, left, right)

    def _vector_work(
        self, computation: Computation, instruction: Instruction
    ) -> tuple[float, float]:
        """Return the operations of the vector unit, and of its unit for special functions."""
        if (fusion := self._fused(instruction)) is not None:
            parts = [self._vector_work(fusion, part) for part in fusion.instructions]
            return sum(part[0] for part in parts), sum(part[1] for part in parts)
        opcode = instruction.opcode
        if opcode in REDUCTIONS:
            operands = instruction.operands[: len(instruction.operands) // 2]
            return sum(_words(computation.by_name[name].outputs[:1]) for name in operands), 0.0
        words = _words(instruction.outputs[:1])
        return VECTOR.get(opcode, 0) * words, SPECIAL.get(opcode, 0) * words

    def _read(self, computation: Computation, instruction: Instruction, index: int) -> float:
        """Return the HBM bytes that are read of an operand."""
        arrays = computation.by_name[instruction.operands[index]].outputs
        size = float(sum(array.size for array in arrays if not array.in_vmem))
        used_bytes = self._used_by(instruction, index)
        return size if used_bytes is None else min(size, used_bytes)

    def _used_by(self, instruction: Instruction, index: int) -> float | None:
        """Return the bytes of an operand that an instruction uses; None if it uses all."""
        if instruction.opcode in SLICES:
            return float(sum(out.size for out in instruction.outputs)) if index == 0 else None
        if instruction.opcode == UPDATE:
            return 0.0 if index == 0 else None
        if (fusion := self._fused(instruction)) is None:
            return None
        parameters = (
            parameter for parameter in fusion.instructions if parameter.opcode == "parameter"
        )
        parameter = next(
            parameter for parameter in parameters if parameter.attributes.startswith(f"({index})")
        )
        return self._used_of(fusion, parameter.name)

    def _used_of(self, fusion: Computation, name: str) -> float | None:
        """Return the bytes of an array that a computation uses; None if it uses all."""
        total = 0.0
        for user in fusion.instructions:
            for index, operand in enumerate(user.operands):
                if operand != name:
                    continue
                is_bitcast = user.opcode == "bitcast"
                used_bytes = (
                    self._used_of(fusion, user.name) if is_bitcast else self._used_by(user, index)
                )
                if used_bytes is None:
                    return None
                total += used_bytes
        return total

    def _written(
        self, computation: Computation, instruction: Instruction
    ) -> list[tuple[ArrayType, float]]:
        """Return each result, and the bytes of it that are written."""
        fusion = self._fused(instruction)
        if fusion is None or fusion.root is None:
            if instruction.opcode == UPDATE:
                return [(instruction.outputs[0], _new(computation, instruction))]
            return [(array, float(array.size)) for array in instruction.outputs]
        root = fusion.root
        if root.opcode != "tuple":  # one array, or several of one operation
            sizes = [float(array.size) for array in instruction.outputs]
            return list(zip(instruction.outputs, [_new(fusion, root), *sizes[1:]], strict=True))
        sources = (fusion.by_name[name] for name in root.operands)
        return [
            (array, _new(fusion, source))
            for array, source in zip(instruction.outputs, sources, strict=True)
        ]


def _new(computation: Computation, instruction: Instruction) -> float:
    """Return the bytes of an instruction's first result that it writes."""
    while instruction.opcode == "bitcast":
        instruction = computation.by_name[instruction.operands[0]]
    if instruction.opcode == UPDATE:
        instruction = computation.by_name[instruction.operands[1]]
    return float(instruction.outputs[0].size)


def _trips(
    program: Program, computation: Computation, loop: Instruction, lengths: Sequence[int]
) -> tuple[int, Sequence[int]]:
    """Return a loop's iterations, and the lengths that are left for the loops inside it."""
    if (trips := program.trips(computation, loop)) is not None:
        return trips, lengths
    if not lengths:
        raise ValueError(f"the length of the loop {loop.name} is not known; pass it in lengths")
    return lengths[0], lengths[1:]


def _transferred(computation: Computation, instruction: Instruction) -> float:
    """Return the bytes that a transfer moves to or from HBM; for a slice, only the slice's."""
    place = 0 if instruction.opcode == "copy-start" else len(instruction.operands)
    result = instruction.outputs[place]
    source = computation.by_name[instruction.operands[0]].outputs[0]
    return float(result.size * ((not source.in_vmem) + (not result.in_vmem)))


def _words(arrays: Sequence[ArrayType]) -> float:
    """Return the 32-bit words of arrays in registers, where a predicate takes a word."""
    return sum(
        array.elements if array.dtype == "pred" else min(array.size / 4, array.elements)
        for array in arrays
    )
