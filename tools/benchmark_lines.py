"""The line plots of docs/benchmarks.md, made from the records in benchmarks/results.

python -m tools.benchmark_docs
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from tools.benchmark_plot import BETWEEN, WIDTH, page
from tools.benchmark_tables import CLIENTS, STEPS, estimate, value

LEFT, RIGHT, TOP, HEIGHT, BELOW = 70, 190, 58, 150, 44  # pixels around and inside the axes

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A line, or a band between two lines for an estimate with its range.

    Attributes:
        label: its name, at its right end.
        points: x and y of its points, from left to right.
        upper: the upper edge of a band, at the same x.
        ours: whether it is drawn in the project's colour.
    """

    label: str
    points: Sequence[Point]
    upper: Sequence[Point] = ()
    ours: bool = True


@dataclass(frozen=True)
class Chart:
    """Lines that share their axes, below a title; both axes begin at 0."""

    title: str
    small: str
    x_label: str
    lines: Sequence[Line]


def steps_svg() -> str:
    """Return the plot of a request's seconds against its steps."""
    runs = [run for run in value(STEPS, "requests") if run["decoder"] == "full"]
    guided = [run["num_inference_steps"] for run in runs if _is_guided(run)]
    plain = [run["num_inference_steps"] for run in runs if not _is_guided(run)]

    def seconds(steps: Sequence[int]) -> list[Point]:
        by_steps = {run["num_inference_steps"]: run["request_seconds"] for run in runs}
        return [(each, by_steps[each]) for each in steps]

    def estimated(program: str, steps: Sequence[int]) -> Line:
        low, high = zip(*(estimate(each, program) for each in steps), strict=True)
        label = "with guidance" if program == "step" else "without guidance"
        band = [*zip(steps, low, strict=True)], [*zip(steps, high, strict=True)]
        return Line(label, *band, ours=program == "step")

    charts = [
        Chart(
            "The miniature: four pictures, over HTTP",
            "Measured seconds on two cores that had other work.",
            "steps",
            [
                Line("with guidance", seconds(guided)),
                Line("without guidance", seconds(plain), ours=False),
            ],
        ),
        Chart(
            "SDXL base on a TPU v5e-4: four 1024x1024 pictures",
            "Seconds. No TPU has run these programs: a band is an estimate with its uncertainty.",
            "steps",
            [
                estimated("step", (1, 4, 8, 25)),
                estimated("step, unguided", (1, 2, 4, 8, 25)),
            ],
        ),
    ]
    return _svg("Seconds of a request against its steps", charts)


def _is_guided(run: dict[str, object]) -> bool:
    return "recipe" not in run and run.get("guidance_scale") != 1


def clients_svg() -> str:
    """Return the plot of pictures per second against clients."""

    def line(name: str, label: str, figure: str) -> Line:
        return Line(label, [(each["clients"], each[figure]) for each in value(CLIENTS, name)])

    def chart(figure: str, small: str) -> Iterator[Chart]:
        for name, title in (
            ("miniature", "The miniature on two cores"),
            ("stand_in", "A stand-in with the step time of SDXL on a TPU v5e-4"),
        ):
            yield Chart(title, small, "clients", [line(name, "4 slots", figure)])

    return _svg(
        "Pictures per second against clients",
        [*chart("pictures_per_second", "Pictures per second. Each client asks for one at a time.")],
    )


def _svg(title: str, charts: Sequence[Chart]) -> str:
    height = TOP + HEIGHT + BELOW
    drawn = [
        part for i, chart in enumerate(charts) for part in _chart(chart, BETWEEN // 2 + i * height)
    ]
    return page(title, drawn, BETWEEN + len(charts) * height)


def _chart(chart: Chart, top: int) -> Iterator[str]:
    yield f'<text class="title" x="20" y="{top + 22}">{escape(chart.title)}</text>'
    yield f'<text class="small" x="20" y="{top + 40}">{escape(chart.small)}</text>'
    every = [point for line in chart.lines for point in (*line.points, *line.upper)]
    most_x, most_y = (max(values) for values in zip(*every, strict=True))
    ceiling, step = _scale(most_y)
    right, bottom = WIDTH - RIGHT, top + TOP + HEIGHT

    def place(point: Point) -> tuple[float, float]:
        x, y = point
        return LEFT + x / most_x * (right - LEFT), bottom - y / ceiling * HEIGHT

    for number in range(round(ceiling / step) + 1):
        _, y = place((0, number * step))
        yield f'<path class="axis" d="M{LEFT} {y:.1f}H{right}"/>'
        yield f'<text class="small end" x="{LEFT - 8}" y="{y + 4:.1f}">{number * step:g}</text>'
    for x in sorted({point[0] for point in every}):
        at, _ = place((x, 0))
        yield f'<text class="small middle" x="{at:.1f}" y="{bottom + 18}">{x:g}</text>'
    yield f'<text class="small" x="{right + 14}" y="{bottom + 18}">{chart.x_label}</text>'
    for line in chart.lines:
        yield from _line(line, [*map(place, line.points)], [*map(place, line.upper)])


def _line(line: Line, points: Sequence[Point], upper: Sequence[Point]) -> Iterator[str]:
    kind = "ours" if line.ours else "theirs"
    if upper:
        yield f'<path class="{kind} estimated" d="M{_path([*points, *reversed(upper)])}Z"/>'
    else:
        yield f'<path class="line {kind}" d="M{_path(points)}"/>'
        yield from (f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points)
    x, y = (upper or points)[-1]
    low = points[-1][1]
    yield f'<text x="{x + 10:.1f}" y="{(y + low) / 2 + 4:.1f}">{escape(line.label)}</text>'


def _path(points: Sequence[Point]) -> str:
    return "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _scale(most: float) -> tuple[float, float]:
    """Return the top of an axis that begins at 0, and the distance of its marks."""
    step = next(each for each in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if most <= 5 * each)
    return -(-most // step) * step, step
