"""The bar plot in the README, made from the records in benchmarks/results.

    python -m tools.benchmark_docs

It is an SVG file with a background of its own, so that it can be read on light and dark pages.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape

from tools.benchmark_tables import (
    CPU_512,
    CPU_MINIATURE,
    LIBRARIES,
    TPU_INCUMBENT,
    estimate,
    value,
)

WIDTH, LABELS, RIGHT = 760, 250, 150  # pixels: the whole, the labels, what is right of the bars
BAR, GAP, TITLE, BETWEEN = 18, 8, 46, 22  # heights in pixels
STYLE = """
    .page { fill: #ffffff; stroke: #d1d9e0 }
    text { fill: #1f2328; font: 13px system-ui, -apple-system, "Segoe UI", sans-serif }
    .title { font-weight: 600 }
    .small { fill: #59636e; font-size: 12px }
    .label { text-anchor: end }
    .ours { fill: #4f46e5 }
    .theirs { fill: #8c959f }
    .estimated { fill-opacity: 0.35; stroke-dasharray: 3 2 }
    .ours.estimated { stroke: #4f46e5 }
    .theirs.estimated { stroke: #59636e }
    .axis { stroke: #d1d9e0; fill: none }
    .line { fill: none; stroke-width: 2 }
    .line.ours { stroke: #4f46e5; fill: none }
    .line.theirs { stroke: #8c959f; fill: none }
    .end { text-anchor: end }
    .middle { text-anchor: middle }
    @media (prefers-color-scheme: dark) {
      .page { fill: #0d1117; stroke: #3d444d }
      text { fill: #f0f6fc }
      .small { fill: #9198a1 }
      .ours { fill: #8b85ff }
      .theirs { fill: #6e7681 }
      .ours.estimated { stroke: #8b85ff }
      .axis { stroke: #3d444d }
      .line.ours { stroke: #8b85ff }
      .line.theirs { stroke: #6e7681 }
    }
"""


@dataclass(frozen=True)
class Bar:
    """A bar: seconds, or the two ends of an estimate."""

    label: str
    seconds: float
    least: float | None = None
    ours: bool = False
    note: str = ""


@dataclass(frozen=True)
class Panel:
    """Bars that share a scale, below a title."""

    title: str
    small: str
    bars: list[Bar]

    @property
    def height(self) -> int:
        return TITLE + len(self.bars) * (BAR + GAP)


def panels() -> list[Panel]:
    """Return all panels, with figures from the records."""
    theirs = value(TPU_INCUMBENT["v5e-4"], "incumbent/request_seconds")
    low, high = estimate()
    return [
        Panel(
            "The miniature's shapes: four 256x256 pictures, 25 steps",
            "Seconds on two cores of an AMD EPYC, torch without text encoding. Shorter is better.",
            _measured(CPU_MINIATURE["AMD EPYC, AVX512_BF16"], "miniature"),
        ),
        Panel(
            "SDXL base: one 512x512 picture, 3 steps",
            "Seconds on the same processor, torch without text encoding.",
            _measured(CPU_512, "sdxl 512x512"),
        ),
        Panel(
            "SDXL base on a TPU v5e-4: four 1024x1024 pictures, 25 steps",
            "Seconds. No TPU has run these programs: a bar is an estimate with its uncertainty.",
            [
                Bar("here, bfloat16", high, low, ours=True, note="estimated"),
                Bar(
                    "diffusers 0.39, Flax, bfloat16",
                    theirs["compiler"],
                    theirs["least"],
                    note="estimated",
                ),
            ],
        ),
    ]


def _measured(name: str, job: str) -> list[Bar]:
    seconds = {
        library: found["request_seconds"]
        for library, found in value(name, job).items()
        if "request_seconds" in found
    }
    return [
        Bar(LIBRARIES[library], seconds[library], ours=library.startswith("ours"))
        for library in sorted(seconds, key=lambda each: seconds[each])
    ]


def svg() -> str:
    """Return the plot."""
    drawn, top = [], BETWEEN
    for panel in panels():
        drawn += _panel(panel, top)
        top += panel.height + BETWEEN
    return page("Seconds of a request, here and with diffusers", drawn, top)


def page(title: str, drawn: Iterable[str], height: int) -> str:
    """Return an SVG file with a background of its own, from its elements."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img">',
            f"<title>{title}; docs/benchmarks.md has the tables</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" '
            f'height="{height - 1}" rx="8"/>',
            *drawn,
            "</svg>\n",
        ]
    )


def _panel(panel: Panel, top: int) -> Iterator[str]:
    yield f'<text class="title" x="20" y="{top + 12}">{escape(panel.title)}</text>'
    yield f'<text class="small" x="20" y="{top + 30}">{escape(panel.small)}</text>'
    scale = (WIDTH - LABELS - RIGHT) / max(bar.seconds for bar in panel.bars)
    for i, bar in enumerate(panel.bars):
        yield from _bar(bar, scale, top + TITLE + i * (BAR + GAP))


def _bar(bar: Bar, scale: float, y: int) -> Iterator[str]:
    """Draw a bar; an estimate is lighter, and lightest above its least."""
    kind = "ours" if bar.ours else "theirs"
    end = LABELS + bar.seconds * scale
    text_y = y + BAR - 5
    yield f'<text class="label" x="{LABELS - 10}" y="{text_y}">{escape(bar.label)}</text>'
    if bar.least:
        kind = f"{kind} estimated"
        yield _rect(kind, LABELS, LABELS + bar.least * scale, y)
    yield _rect(kind, LABELS, end, y)
    seconds = f"{bar.seconds:.{2 if bar.seconds < 10 else 1}f}"
    shown = f"{bar.least:.1f} to {bar.seconds:.1f}" if bar.least else seconds
    note = f' <tspan class="small">{bar.note}</tspan>' if bar.note else ""
    yield f'<text x="{end + 8:.1f}" y="{text_y}">{shown}{note}</text>'


def _rect(kind: str, left: float, right: float, y: int) -> str:
    width = right - left
    return f'<rect class="{kind}" x="{left:.1f}" y="{y}" width="{width:.1f}" height="{BAR}"/>'
