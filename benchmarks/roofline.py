"""Two counts of the time that a TPU needs for a compiled program, from its operations.

The lower one lets every operation take the time of the unit that it needs longest, which then never
waits. The higher one is the compiler's own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.hlo import Program
from benchmarks.hlo_costs import Cost, costs

# The unit that bounds an operation, by what it would wait for.
MATRIX, VECTOR, MEMORY, LINK = "matrix", "vector", "memory", "link"
# Seconds from one chip to the next before data flows, in the higher count; not published.
HOP = 1e-6
# A register has 8 x 128 words of 32 bits. In a cycle, the vector unit computes four registers and
# one of special functions, and writes one: the capacities that libtpu's dumps of schedules state.
REGISTER = 8 * 128
VECTOR_SLOTS = 4


@dataclass(frozen=True)
class Chip:
    """One chip.

    Attributes:
        flops: bfloat16 FLOP/s of its matrix units.
        int8: operations per second of its matrix units on 8-bit whole numbers.
        width: rows and columns of a matrix unit.
        bandwidth: bytes per second between HBM and the chip.
        clock: in Hz.
        link: bytes per second to one of the neighbouring chips.
    """

    flops: float
    int8: float
    width: int
    bandwidth: float
    clock: float
    link: float = math.inf

    def seconds(self, cost: Cost) -> dict[str, float]:
        """Return the least time of an operation in each of the units that share its work."""
        products = sum(
            product.padded(self.width) / (self.int8 if product.int8 else self.flops)
            for product in cost.products
        )
        cycles = max(
            cost.vector / (VECTOR_SLOTS * REGISTER),
            cost.special / REGISTER,
            cost.written / (4 * REGISTER),
        )
        return {
            MATRIX: products,
            VECTOR: cycles / self.clock,
            MEMORY: cost.bytes / self.bandwidth,
            LINK: cost.link / self.link,
        }


# A chip has four links. Google states their sum: 1600 Gbit/s for a v5e and 3584 for a v6e.
CHIPS = {
    "v5e": Chip(flops=197e12, int8=393e12, width=128, bandwidth=819e9, clock=1.5e9, link=50e9),
    "v6e": Chip(flops=918e12, int8=1836e12, width=256, bandwidth=1640e9, clock=1.75e9, link=112e9),
}


@dataclass(frozen=True)
class Kernel:
    """The compiler's schedule of a custom kernel, for which the HLO has no estimate.

    Attributes:
        cycles: bundles of instructions, one a cycle, of all blocks. Waits are not among them.
        idle: those that give the matrix unit nothing to do.
    """

    cycles: float
    idle: float


@dataclass
class Estimate:
    """The time of one run of a program, in microseconds.

    Attributes:
        least: the lower bound: the sum of the time of each operation in the unit that it needs
            longest, and `exposed`.
        compiler: the compiler's estimate, with kernels as they are scheduled.
        unsure: its part for operations of which the compiler has no model.
        exposed: the part of the transfers beside other operations that does not fit into the
            bandwidth that those operations leave unused.
    """

    least: float = 0.0
    compiler: float = 0.0
    unsure: float = 0.0
    exposed: float = 0.0

    def add(self, cost: Cost, times: int, chip: Chip, kernel: Kernel | None) -> None:
        """Add an operation that runs `times` times.

        A custom kernel takes at least its schedule, or the time of its products if that is longer.
        The cycles that leave the matrix unit idle come on top in `compiler`.
        """
        micro = times * 1e6
        seconds = chip.seconds(cost)
        if kernel is not None:
            seconds[MATRIX] = max(seconds[MATRIX], kernel.cycles / chip.clock)
        bound = micro * max(seconds.values())
        self.least += bound
        if kernel is not None:
            self.compiler += bound + micro * kernel.idle / chip.clock
            return
        # The compiler says nothing of some copies, which take their bound at least.
        estimate = micro * cost.instruction.estimated_cycles / chip.clock or bound
        self.compiler += estimate
        if not cost.instruction.estimate_is_valid:
            self.unsure += estimate

    def exchange(
        self, cost: Cost, times: int, chip: Chip, spans: Mapping[str, tuple[float, float]]
    ) -> None:
        """Add an exchange with other chips that runs `times` times.

        The operations beside it take `spans` microseconds in both counts, by their names. Only the
        time that they leave over counts.
        """
        seconds = chip.seconds(cost)[LINK]
        least, estimate = (
            max(0.0, micro - sum(spans[name][count] for name in cost.beside if name in spans))
            for count, micro in enumerate((seconds * 1e6, (seconds + HOP) * 1e6))
        )
        self.least += times * least
        self.compiler += times * estimate

    def as_json(self) -> dict[str, float]:
        """Return all times, rounded."""
        times = asdict(self)
        return {name: round(micro, 1) for name, micro in times.items()}


def estimate(
    text: str, chip: Chip, kernels: Mapping[float, Kernel], lengths: Sequence[int] = ()
) -> Estimate:
    """Estimate the time of a program.

    Args:
        text: the compiled program, from `jax.stages.Compiled.as_text()`.
        chip: the chip that it is compiled for.
        kernels: the schedules of custom kernels, by the FLOPs that they declare.
        lengths: the iterations of nested loops of unknown length, the outermost first.
    """
    total = Estimate()
    copy_time = unused_time = 0.0
    exchanges: list[tuple[Cost, int]] = []
    spans: dict[str, tuple[float, float]] = {}  # each operation's time in both counts
    for cost, times in costs(Program(text), lengths):
        if cost.link:
            exchanges.append((cost, times))
            continue
        transfer = times * cost.bytes / chip.bandwidth * 1e6
        if cost.hidden:
            copy_time += transfer
            continue
        least_before, compiler_before = total.least, total.compiler
        is_custom = cost.instruction.opcode == "custom-call"
        total.add(cost, times, chip, kernels.get(cost.flops) if is_custom else None)
        unused_time += total.least - least_before - transfer
        if times:
            durations = total.least - least_before, total.compiler - compiler_before
            spans[cost.instruction.name] = durations[0] / times, durations[1] / times
    for cost, times in exchanges:
        total.exchange(cost, times, chip, spans)
    total.exposed = max(0.0, copy_time - unused_time)
    total.least += total.exposed
    return total
