"""`make bench-gpu`: full-size SDXL with random weights on one NVIDIA GPU, with three libraries.

    python3 -m benchmarks.gpu first

Needs only JAX, Flax, NumPy, Pillow and safetensors, and no environment of its own. Each part runs
in other processes, ends within nine minutes, and writes every figure into
results/<date>-<device>-gpu-<part>.json as soon as it has it. Parts share compiled programs.

- `first`: copies and products at the device's own rate, attention, two layers, two steps of a small
  picture, and then the job: four 1024x1024 pictures, 25 steps, guidance 5, bfloat16;
- `profile`: the kernels of the job;
- `fidelity`: the pictures in float32 from the same latents, and the difference;
- `flags`: the job with each of the XLA flags in `FLAGS`;
- `torch` and `flax`: the job with torch's diffusers and `torch.compile`, and with the Flax pipeline
  of diffusers 0.39. A library without an environment is left out, and the report says so.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import apart, record
from benchmarks.draw_job import REQUEST_TFLOP
from benchmarks.processes import ROOT
from tools.published_configs import SDXL_BASE, write

ENVIRONMENTS = {
    "ours": Path(sys.executable),
    "flax": ROOT / ".venv-incumbent/bin/python",
    "torch": ROOT / ".venv-reference/bin/python",
}
# XLA flags that might be good defaults; none becomes one without a measurement.
FLAGS = (
    "--xla_gpu_autotune_level=4",
    "--xla_gpu_triton_gemm_any=true",
    "--xla_gpu_enable_command_buffer=",
    "--xla_gpu_enable_latency_hiding_scheduler=true",
)
PARTS = ("first", "profile", "fidelity", "flags", "torch", "flax")
SMOKE_PIXELS = 256


@dataclass(frozen=True)
class Run:
    """A process of a part: the name of its figures, its module and its arguments."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    library: str = "ours"
    environment: dict[str, str] = field(default_factory=dict)


def main() -> None:
    """Measure the parts, one after another."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", default=PARTS, metavar="part", help=", ".join(PARTS))
    parser.add_argument("--pixels", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=530, help="the most that a part takes")
    parser.add_argument("--cache", type=Path, default=ROOT / "out/gpu", help="compiled programs")
    parser.add_argument("--results", type=Path, default=record.RESULTS, help="for the reports")
    parser.add_argument("--configs", type=Path, help="a model's JSON files; SDXL base if not given")
    for name, python in ENVIRONMENTS.items():
        parser.add_argument(f"--{name}", type=Path, default=python, help="a Python")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        configs = options.configs or write(Path(folder), SDXL_BASE)
        for part in options.parts:
            measure(part, options, configs, Path(folder) / "profile")


def runs(part: str, options: argparse.Namespace, configs: Path, profile: Path) -> Iterator[Run]:
    """Yield the processes of a part.

    Raises:
        KeyError: if there is no such part.
    """
    job = (str(configs), "--pixels", str(options.pixels), "--steps", str(options.steps))
    cached_job = (*job, "--cache", str(options.cache))
    module, repeat_arguments = "benchmarks.draw_ours", ("--repeats", str(options.repeats))
    if part == "first":
        smoke = (str(configs), "--pixels", str(min(SMOKE_PIXELS, options.pixels)), "--steps", "2")
        yield Run("device", "benchmarks.gpu_first")
        yield Run("smoke", module, (*smoke, "--repeats", "1", "--cache", str(options.cache)))
        yield Run("ours", module, (*cached_job, *repeat_arguments))
    elif part == "flags":
        for flag in FLAGS:
            # Its programs are others than the cached ones.
            yield Run(flag, module, (*job, "--repeats", "1"), environment={"XLA_FLAGS": flag})
    elif part in ("torch", "flax"):
        yield Run(part, f"benchmarks.draw_{part}", (*job, *repeat_arguments), library=part)
    else:
        arguments = {"profile": ("--profile", str(profile)), "fidelity": ("--fidelity",)}[part]
        yield Run("ours", module, (*cached_job, "--repeats", "1", *arguments))


def measure(part: str, options: argparse.Namespace, configs: Path, profile: Path) -> None:
    """Run a part, and write its report anew with every figure."""
    end = time.monotonic() + options.seconds
    report: dict[str, Any] = {
        **record.head("benchmarks.gpu"),
        "part": part,
        "job": f"4 x {options.pixels}x{options.pixels}, {options.steps} steps",
        "device": "unknown",
        "figures": {},
    }
    for run in runs(part, options, configs, profile):
        run_figures: dict[str, Any] = {}
        for figures in followed(run, getattr(options, run.library), end - time.monotonic()):
            run_figures |= figures
            report["figures"][run.name] = run_figures | rates(run_figures, options)
            report["device"] = run_figures.get("device", report["device"])
            record.save(f"{report['device']}-gpu-{part}", report, options.results)
    print(json.dumps(report, indent=2), flush=True)


def followed(run: Run, python: Path, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the figures of a process as it prints them, then how it failed if it did.

    A failure is not raised, so that the other measurements are kept.
    """
    if not python.exists():
        yield {"left_out": f"{python} is not there"}
        return
    if seconds <= 0:
        yield {"left_out": "the part's time was over"}
        return
    try:
        yield from apart.stream(run.module, run.arguments, python, seconds, **run.environment)
    except subprocess.TimeoutExpired:
        yield {"failed": f"{run.module} was ended after {seconds:.0f} s"}
    except subprocess.CalledProcessError as error:
        yield {"failed": f"{run.module} ended with status {error.returncode}"}


def rates(figures: dict[str, Any], options: argparse.Namespace) -> dict[str, float]:
    """Return a request's TFLOP/s, and their share of the device's rate for matrix products.

    The rate is known only for the job of 25 steps at 1024x1024, whose work is known.
    """
    if "request_seconds" not in figures or (options.pixels, options.steps) != (1024, 25):
        return {}
    rate = REQUEST_TFLOP / figures["request_seconds"]
    result = {"tflops": round(rate, 1)}
    if "matmul_tflops" in figures:
        result["share_of_matmul_rate"] = round(rate / figures["matmul_tflops"], 3)
    return result


if __name__ == "__main__":
    main()
