"""The job that devices are measured by, with random weights, for a program of any library.

Imports neither JAX nor torch: each program brings one of them.
"""

import argparse
import importlib.metadata
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

GUIDANCE_SCALE = 5.0
# For four 1024x1024 pictures: 25 steps with guidance, and the VAE.
REQUEST_TFLOP = 1394.0
# The side of the square matrices whose product gives the machine's own rate.
MATMUL = 8192
MATMUL_ON_CPU = 2048


def read_arguments(program: str) -> argparse.Namespace:
    """Read the arguments that all programs share; `configs` has a checkpoint's JSON files."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{program}")
    parser.add_argument("configs")
    parser.add_argument("--weights", action="store_true", help="load the model named as configs")
    parser.add_argument("--pixels", type=int, help="along each side; the model's own if not given")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float32"), help="that of a server if not given"
    )
    parser.add_argument("--devices", type=int, help="the most of them; all if not given")
    parser.add_argument("--repeats", type=int, default=5, help="after one to warm up")
    parser.add_argument("--compile", action="store_true", help="by torch.compile")
    parser.add_argument("--openvino", action="store_true", help="the UNet by OpenVINO, on a CPU")
    parser.add_argument("--processes", type=int, default=1, help="that share the pictures")
    parser.add_argument("--profile", type=Path, help="a folder for the profile of a request")
    parser.add_argument("--fidelity", action="store_true", help="compare with float32")
    parser.add_argument("--cache", type=Path, help="a folder for compiled programs")
    return parser.parse_args()


def config(folder: str | Path, name: str) -> dict[str, Any]:
    """Return one of a checkpoint's JSON files."""
    return json.loads(Path(folder, name).read_text())


class Report:
    """Measurements, printed together as a line of JSON whenever one is added.

    If a program breaks off, its last line has everything that it has measured.
    """

    def __init__(self, **figures: Any):
        self._figures: dict[str, Any] = {}
        self.add(**figures)

    def add(self, **figures: Any) -> None:
        """Add measurements, and print."""
        self._figures |= figures
        print(json.dumps(self._figures), flush=True)


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of packages."""
    return {name: importlib.metadata.version(name) for name in packages}


class Times(NamedTuple):
    """The seconds of several runs."""

    minimum: float
    median: float
    maximum: float

    def figures(self, name: str, runs: int = 1) -> dict[str, Any]:
        """Return the seconds of one of `runs` equal parts, as the figures of a report."""
        low, middle, high = (round(seconds / runs, 5) for seconds in self)
        return {f"{name}_seconds": middle, f"{name}_seconds_range": [low, high]}


def measure_requests(
    report: Report,
    draw: Callable[[], object],
    draw_latents: Callable[[], object],
    options: argparse.Namespace,
) -> None:
    """Measure a library that draws in one call, up to the pictures and up to their latents."""
    begin = time.perf_counter()
    draw()
    report.add(first_request_seconds=round(time.perf_counter() - begin, 3))
    request = measure(draw, options.repeats)
    report.add(**request.figures("request"))
    without_decode = measure(draw_latents, options.repeats)
    decode_seconds = round(request.median - without_decode.median, 4)
    report.add(**without_decode.figures("step", options.steps), decode_seconds=decode_seconds)


def measure(run: Callable[[], object], repeats: int) -> Times:
    """Measure several runs, after one to warm up.

    `run` must return only when the work is done.
    """
    run()
    durations = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        durations.append(time.perf_counter() - begin)
    return Times(min(durations), median(durations), max(durations))
