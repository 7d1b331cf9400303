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
from typing import Any

GUIDANCE_SCALE = 5.0
# For four 1024x1024 pictures: 25 steps with guidance, and the VAE.
REQUEST_TFLOP = 1394.0
# The side of the square matrices whose product gives the machine's own rate.
MATMUL = 8192
MATMUL_ON_CPU = 2048


def read_arguments(program: str) -> argparse.Namespace:
    """Read the arguments that all programs share; `configs` has a checkpoint's JSON files."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{program}")
    parser.add_argument("configs", type=Path)
    parser.add_argument("--pixels", type=int, default=1024, help="along each side")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--repeats", type=int, default=5, help="after one to warm up")
    parser.add_argument("--profile", type=Path, help="a folder for the profile of a request")
    parser.add_argument("--fidelity", action="store_true", help="compare with float32")
    parser.add_argument("--control", action="store_true", help="measure a ControlNet's steps too")
    parser.add_argument("--cache", type=Path, help="a folder for compiled programs")
    return parser.parse_args()


def config(folder: Path, name: str) -> dict[str, Any]:
    """Return one of a checkpoint's JSON files."""
    return json.loads((folder / name).read_text())


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


def request_figures(
    draw: Callable[[], object], draw_latents: Callable[[], object], steps: int, repeats: int
) -> dict[str, float]:
    """Measure a library that draws in one call, up to the pictures and up to their latents."""
    begin = time.perf_counter()
    draw()
    first_seconds = time.perf_counter() - begin
    request = seconds(draw, repeats)
    without_decode = seconds(draw_latents, repeats)
    return {
        "first_request_seconds": first_seconds,
        "request_seconds": request,
        "step_seconds": without_decode / steps,
        "decode_seconds": request - without_decode,
    }


def seconds(run: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of several runs, after one to warm up.

    `run` must return only when the work is done.
    """
    run()
    durations = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        durations.append(time.perf_counter() - begin)
    return median(durations)
