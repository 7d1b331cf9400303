"""`make bench-gpu`: full-size SDXL with random weights on one NVIDIA GPU, with three libraries.

Draws four 1024x1024 pictures, 25 steps, guidance 5, bfloat16, with this project's sampler, the Flax
pipeline of diffusers 0.39 and torch's diffusers with `torch.compile`, each in its own process and
environment. A library without an environment is left out, and the report says so. Then repeats this
project's job with each of the XLA flags in `SWEEP`. Writes results/<date>-<device>-gpu.json, and
plots the history of all such files.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import apart, record
from benchmarks.draw_job import REQUEST_TFLOP
from benchmarks.processes import ROOT
from tools.published_configs import SDXL_BASE, write

HISTORY = record.RESULTS / "gpu-history.png"
ENVIRONMENTS = {
    "ours": Path(sys.executable),
    "flax": ROOT / ".venv-incumbent/bin/python",
    "torch": ROOT / ".venv-reference/bin/python",
}
# XLA flags that might be good defaults; none becomes one without a measurement.
SWEEP = (
    "--xla_gpu_autotune_level=4",
    "--xla_gpu_triton_gemm_any=true",
    "--xla_gpu_enable_command_buffer=",
    "--xla_gpu_enable_latency_hiding_scheduler=true",
)


def main() -> None:
    """Measure, record the results, and plot their history."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--pixels", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-sweep", dest="sweep", action="store_false")
    for name, python in ENVIRONMENTS.items():
        parser.add_argument(f"--{name}", type=Path, default=python, help="a Python, or 'none'")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = measure(options, write(Path(folder), SDXL_BASE))
    file = record.save(f"{report['device']}-gpu", report)
    print(json.dumps(report, indent=2), file, sep="\n")
    plot(HISTORY)


def measure(options: argparse.Namespace, configs: Path) -> dict[str, Any]:
    """Measure every library in turn, then every flag."""
    common = [str(configs), "--pixels", str(options.pixels), "--repeats", str(options.repeats)]
    found: dict[str, Any] = {}
    for name in ENVIRONMENTS:
        python = getattr(options, name)
        if not python.exists():
            found[name] = {"left_out": f"{python} is not there"}
            continue
        extra = ["--fidelity", "--profile", str(configs / "profile")] if name == "ours" else []
        found[name] = run(python, f"benchmarks.draw_{name}", [*common, *extra])
    ours = found["ours"]
    for each in found.values():
        if seconds := each.get("request_seconds"):
            each |= compared(seconds, ours, options.pixels)
    sweep = {
        flag: run(options.ours, "benchmarks.draw_ours", common, XLA_FLAGS=flag).get(
            "request_seconds"
        )
        for flag in (SWEEP if options.sweep else ())
    }
    return {
        **record.head("benchmarks.gpu"),
        "device": ours.get("device", "unknown"),
        "job": f"4 x {options.pixels}x{options.pixels}, 25 steps",
        **found,
        "request_seconds_with_flag": sweep,
    }


def compared(seconds: float, ours: dict[str, Any], pixels: int) -> dict[str, float]:
    """Return the ratio of a library's seconds to ours, and the rate that its seconds amount to.

    The work is known, and so the rate, only for pictures of 1024x1024.
    """
    if "failed" in ours or "left_out" in ours:
        return {}
    ratio = {"times_ours": round(seconds / ours["request_seconds"], 3)}
    if pixels != 1024:
        return ratio
    rate = REQUEST_TFLOP / seconds
    share = rate / ours["matmul_tflops"]
    return {"tflops": round(rate, 1), "share_of_matmul_rate": round(share, 3), **ratio}


def run(python: Path, module: str, arguments: list[str], **environment: str) -> dict[str, Any]:
    """Return the JSON that a program prints, or how it failed.

    A failure is not raised, so that the other measurements are kept.
    """
    try:
        return apart.run(module, arguments, python, **environment)
    except subprocess.CalledProcessError as error:
        return {"failed": f"{module} ended with status {error.returncode}"}


def plot(file: Path) -> None:
    """Plot the seconds per request from all of this command's files, a line for each library."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    reports = [json.loads(path.read_text()) for path in sorted(record.RESULTS.glob("*-gpu.json"))]
    figure, axes = pyplot.subplots(figsize=(8, 4))
    for name in ENVIRONMENTS:
        points = [(r["date"], r[name].get("request_seconds")) for r in reports if name in r]
        shown = [(date, value) for date, value in points if value is not None]
        if shown:
            axes.plot(*zip(*shown, strict=True), marker="o", label=name)
    axes.set(ylabel="seconds for four pictures", ylim=(0, None))
    axes.legend()
    figure.savefig(file, dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main()
