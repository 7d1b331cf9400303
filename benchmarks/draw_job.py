"""The job that devices are measured by, for programs of whichever library draws: random weights.

Knows neither JAX nor torch, of which each program has its own.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

GUIDANCE_SCALE = 5.0
# Of four 1024x1024 pictures, 25 steps with guidance and the VAE included.
REQUEST_TFLOP = 1394.0


def read_arguments(program: str) -> argparse.Namespace:
    """What all programs take; `configs` is a folder with a checkpoint's JSON files."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{program}")
    parser.add_argument("configs", type=Path)
    parser.add_argument("--pixels", type=int, default=1024, help="along each side")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--repeats", type=int, default=5, help="after one to warm up")
    parser.add_argument("--profile", type=Path, help="a folder for the profile of a request")
    parser.add_argument("--fidelity", action="store_true", help="compare with float32")
    return parser.parse_args()


def config(folder: Path, name: str) -> dict[str, Any]:
    """One of a checkpoint's JSON files."""
    return json.loads((folder / name).read_text())


def seconds(run: Callable[[], object], repeats: int) -> float:
    """The median of several runs after one more; `run` returns when it is done."""
    run()
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin)
    return median(taken)
