"""How long a TPU needs at least for a compiled program, from what its operations ask of it."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from benchmarks.hlo import Cost, Program

# The innermost of these scopes, which the networks' modules name, is an operation's class.
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
    """What the operations of one class take together.

    `least` is the larger of FLOPs over peak and bytes over bandwidth of every operation, summed;
    `compiler` what the compiler estimates. Both in microseconds.
    """

    operations: int = 0
    gflop: float = 0.0
    megabytes: float = 0.0
    least: float = 0.0
    compiler: float = 0.0

    def add(self, cost: Cost, times: int, chip: Chip, kernel_cycles: float) -> None:
        """`kernel_cycles`: of a custom kernel, of which the compiler says nothing in the HLO.

        They are those of its schedule, in which nothing waits for the matrix unit or for memory,
        so that the bound counts where it is higher.
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
    """Of one run of a program, or of one turn of its loop. Microseconds.

    `exposed` is the part of the transfers that run beside other operations which does not fit into
    the time in which these leave bandwidth unused.
    """

    rows: dict[str, Row]
    exposed: float

    @property
    def least(self) -> float:
        """The lower bound."""
        return sum(row.least for row in self.rows.values()) + self.exposed

    @property
    def compiler(self) -> float:
        """The compiler's estimate, kernels as they are scheduled."""
        return sum(row.compiler for row in self.rows.values())

    def as_json(self) -> dict[str, object]:
        """Everything, rounded."""
        rows = {
            name: {key: round(value, 1) for key, value in asdict(row).items()}
            for name, row in sorted(self.rows.items(), key=lambda item: -item[1].least)
        }
        totals = {"least": self.least, "compiler": self.compiler, "exposed_copies": self.exposed}
        return {**{name: round(value, 1) for name, value in totals.items()}, "classes": rows}


def estimate(
    costs: Iterable[tuple[Cost, int]], chip: Chip, kernels: Mapping[float, float]
) -> Estimate:
    """From `Program.costs`; `kernels`: cycles of custom kernels, by the FLOPs they state."""
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
    """The class of an operation, from where in the source it comes from."""
    found = [name for name in scope.split("/") if name in CLASSES]
    return CLASSES[found[-1]] if found else OTHER


def whole_and_loop(
    text: str, chip: Chip, kernels: Mapping[float, float]
) -> tuple[Estimate, Estimate | None]:
    """What runs once, and what runs in every step where the program has a loop of steps."""
    program = Program(text)
    loop = program.loop()
    once = estimate(program.costs(program.entry), chip, kernels)
    return once, None if loop is None else estimate(program.costs(loop), chip, kernels)
