"""A lower bound of the time that a TPU needs for a compiled program, from its operations."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.hlo import Cost, Program

# The class of an operation, by the innermost of these scopes, which the networks' modules name.
CLASSES = {
    "flash_attention": "attention kernel",
    "self_attention": "self-attention projections",
    "cross_attention": "cross-attention projections",
    "feed_forward": "feed-forward",
    "layer_norm": "layer norm",
    "transformer": "rest of transformers",
    "group_norm": "group norm and SiLU",
    "resnet": "ResNet convolutions",
    "upsample": "upsampling",
    "downsample": "downsampling",
    "time_embedding": "time embedding",
}
OTHER = "other"


@dataclass(frozen=True)
class Chip:
    """One chip: bf16 FLOP/s of its matrix units, HBM bytes/s, clock in Hz."""

    flops: float
    bandwidth: float
    clock: float


CHIPS = {
    "v5e": Chip(flops=197e12, bandwidth=819e9, clock=1.5e9),
    "v6e": Chip(flops=918e12, bandwidth=1640e9, clock=1.75e9),
}


@dataclass
class Row:
    """The time and work of all operations of one class.

    `least` sums, over the operations, the larger of FLOPs over peak and bytes over bandwidth;
    `compiler` is the compiler's estimate. Both are in microseconds.
    """

    operations: int = 0
    gflop: float = 0.0
    megabytes: float = 0.0
    least: float = 0.0
    compiler: float = 0.0

    def add(self, cost: Cost, times: int, chip: Chip, kernel_cycles: float) -> None:
        """Add an operation that runs `times` times.

        `kernel_cycles` are a custom kernel's, for which the HLO has no estimate. They come from the
        kernel's schedule, which leaves out waits for the matrix unit and for memory. If the lower
        bound is higher, it is used instead.
        """
        seconds = max(cost.flops / chip.flops, cost.bytes / chip.bandwidth)
        kernel = max(kernel_cycles, seconds * chip.clock) if kernel_cycles else 0
        cycles = cost.instruction.estimated_cycles or kernel
        self.operations += times
        self.gflop += times * cost.flops / 1e9
        self.megabytes += times * cost.bytes / 1e6
        self.least += times * seconds * 1e6
        self.compiler += times * cycles / chip.clock * 1e6


@dataclass
class Estimate:
    """The time of one run of a program, or of one iteration of its loop, in microseconds.

    Some transfers run beside other operations. `exposed` is the part of them that does not fit into
    the bandwidth that those operations leave unused.
    """

    rows: dict[str, Row]
    exposed: float

    @property
    def least(self) -> float:
        """The lower bound."""
        return sum(row.least for row in self.rows.values()) + self.exposed

    @property
    def compiler(self) -> float:
        """The compiler's estimate, with kernels as they are scheduled."""
        return sum(row.compiler for row in self.rows.values())

    def as_json(self) -> dict[str, object]:
        """Return all values, rounded."""
        rows = {
            name: {key: round(value, 1) for key, value in asdict(row).items()}
            for name, row in sorted(self.rows.items(), key=lambda item: -item[1].least)
        }
        totals = {"least": self.least, "compiler": self.compiler, "exposed_copies": self.exposed}
        return {**{name: round(value, 1) for name, value in totals.items()}, "classes": rows}


def estimate(
    costs: Iterable[tuple[Cost, int]], chip: Chip, kernels: Mapping[float, float]
) -> Estimate:
    """Estimate a program's time from `Program.costs`.

    `kernels` has the cycles of custom kernels, by the FLOPs that they declare.
    """
    rows: dict[str, Row] = {}
    copied = unused = 0.0
    for cost, times in costs:
        transfer = times * cost.bytes / chip.bandwidth * 1e6
        if cost.hidden:
            copied += transfer
            continue
        row = rows.setdefault(kind(cost.instruction.scope), Row())
        before = row.least
        row.add(cost, times, chip, kernels.get(cost.flops, 0.0))
        unused += row.least - before - transfer
    return Estimate(rows, max(0.0, copied - unused))


def kind(scope: str) -> str:
    """Return the class of an operation, by its scope in the source."""
    found = [name for name in scope.split("/") if name in CLASSES]
    return CLASSES[found[-1]] if found else OTHER


def whole_and_loop(
    text: str, chip: Chip, kernels: Mapping[float, float]
) -> tuple[Estimate, Estimate | None]:
    """Estimate what a program runs once, and its loop of steps; None if it has no such loop."""
    program = Program(text)
    loop = program.loop()
    once = estimate(program.costs(program.entry), chip, kernels)
    return once, None if loop is None else estimate(program.costs(loop), chip, kernels)


def with_loops(
    text: str, chip: Chip, kernels: Mapping[float, float], lengths: Sequence[int]
) -> Estimate:
    """Estimate a program whose loops of unknown length have these lengths; see `Program.costs`."""
    program = Program(text)
    return estimate(program.costs(program.entry, lengths), chip, kernels)
