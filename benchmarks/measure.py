"""`make measure`: what this machine takes to draw, as one table and one record.

    make measure ACCELERATOR=tpu
    python3 -m benchmarks.measure

Draws with SDXL base in its real shapes, with random weights, because weights do not change the
time; or with the model that MODEL_ID names. An accelerator draws four 1024x1024 pictures in 25
steps. A CPU draws the bundled miniature's four, and one step of a 256x256 picture by SDXL. Every
measurement runs in a process of its own:

- `device`: copies and products at the device's own rate, attention and two layers of the UNet, and
  their difference from float32;
- `first start`: loads, compiles, and then measures requests for all pictures and for one, in all
  steps and in four, a step, decoding and memory;
- `warm start`: starts again with the compiled programs.

Needs only JAX, Flax, NumPy, Pillow and safetensors. Writes every figure into
results/<date>-measure-<device>.json as soon as it has it, and prints the table at the end.

    python3 -m benchmarks.measure profile torch

A part that is named is measured instead, on one GPU, into a record of its own. The job is the same
in bfloat16, with random weights.

- `profile`: the kernels of the job;
- `fidelity`: the pictures in float32 from the same latents, and the difference;
- `torch` and `torch.compile`: the job with torch's diffusers;
- `flax`: the job with the Flax pipeline of diffusers 0.39;
- `xla_gpu_...`: the job with this flag of XLA, which might be a good default.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.apart import Record, Run
from benchmarks.draw_job import REQUEST_TFLOP
from benchmarks.processes import ROOT
from pipeline.default_model import BUNDLED
from tools.published_configs import SDXL_BASE, write

SDXL = "SDXL base, random weights"
# The job of an accelerator, and of a CPU.
JOB = {
    True: ("--images", "4", "--steps", "25"),
    False: ("--images", "1", "--steps", "1", "--pixels", "256", "--repeats", "1"),
}
STARTS = {"first start": (), "warm start": ("--repeats", "0")}
ADVICE = """The record is {}. To contribute it, open an issue with the template Measurement, and
put the table and the record into it."""
# The rows of the table after those of the requests: the process and the name of a figure, and its
# format.
_COMPARED = "{0[milliseconds]:.1f} ms, off by {0[relative_error]:.0e}"
ROWS = {
    "a step": ("first start", "step_seconds", "{:.3g} s"),
    "decoding": ("first start", "decode_seconds", "{:.3g} s"),
    "first start": ("first start", "start_seconds", "{:.0f} s"),
    "start with the programs kept": ("warm start", "start_seconds", "{:.0f} s"),
    "most memory": ("first start", "peak_memory_mb", "{:.0f} MB"),
    "rate of the largest request": ("first start", "tflops", "{:.0f} TFLOP/s"),
    "rate of large products": ("first start", "matmul_tflops", "{:.3g} TFLOP/s"),
    "copies": ("device", "copy_gb_per_second", "{:.0f} GB/s"),
    "self-attention": ("device", "self-attention", _COMPARED),
    "transformer block": ("device", "transformer block", _COMPARED),
    "ResNet block": ("device", "ResNet block", _COMPARED),
}
OURS = "benchmarks.draw_ours"
_TORCH, _ONE_GPU = "benchmarks.draw_torch", (*JOB[True], "--pixels", "1024", "--devices", "1")
FLAGS = (
    "--xla_gpu_autotune_level=4",
    "--xla_gpu_triton_gemm_any=true",
    "--xla_gpu_enable_command_buffer=",
    "--xla_gpu_enable_latency_hiding_scheduler=true",
)
PARTS = {
    part.name: part
    for part in (
        Run("profile", OURS, ("--repeats", "0", "--profile", str(ROOT / "out/profile"))),
        Run("fidelity", OURS, ("--repeats", "0", "--fidelity")),
        Run("torch", _TORCH, library="torch"),
        Run("torch.compile", _TORCH, ("--compile",), "torch"),
        Run("flax", "benchmarks.draw_flax", library="flax"),
        *(Run(flag[2:].partition("=")[0], OURS, environment={"XLA_FLAGS": flag}) for flag in FLAGS),
    )
}


def main() -> None:
    """Measure, record the figures and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.measure",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    parser.add_argument("--model", default=os.environ.get("MODEL_ID"), help="default: MODEL_ID")
    parser.add_argument("--seconds", type=float, default=1800, help="the most for a process")
    parser.add_argument("--cache", type=Path, help="for programs; an empty folder if not given")
    parser.add_argument("--results", type=Path, default=record.RESULTS, help="for the record")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options.cache = options.cache or Path(folder, "cache")
        published = str(write(Path(folder), SDXL_BASE))
        for name in options.parts:
            measure_part(options, published, PARTS[name])
        if not options.parts:
            kept = measure(options, published)
            print(table(kept.report), ADVICE.format(kept.file), sep="\n\n")


def measure_part(options: argparse.Namespace, published: str, part: Run) -> None:
    """Measure a part, and record and print its figures. `published` has SDXL's JSON files."""
    kept = Record("measure", options.results, part.name)
    environments = (gpu_environment(options.cache), part.environment)
    flags = " ".join(variables.get("XLA_FLAGS", "") for variables in environments).strip()
    job = (published, *_ONE_GPU, "--dtype", "bfloat16", "--cache", str(options.cache))
    run = replace(part, arguments=(*job, *part.arguments), environment={"XLA_FLAGS": flags})
    print(json.dumps(kept.follow("figures", run, options.seconds), indent=2), flush=True)


def measure(options: argparse.Namespace, published: str) -> Record:
    """Measure all jobs, and return their record. `published` has SDXL's JSON files."""
    kept, environment = Record("measure", options.results), gpu_environment(options.cache)
    model = (options.model, "--weights") if options.model else (published,)
    name = options.model or SDXL
    # The CPU is there too, to compare with, whichever platform JAX is told to use.
    platforms = os.environ.get("JAX_PLATFORMS")
    with_cpu = {"JAX_PLATFORMS": f"{platforms},cpu"} if platforms else {}
    device = Run("device", "benchmarks.device", model, environment=environment | with_cpu)
    is_accelerator = kept.follow(name, device, options.seconds).get("is_accelerator", False)
    jobs = {name: (*model, *JOB[is_accelerator])}
    if not is_accelerator and not options.model:
        jobs["the bundled miniature"] = (str(BUNDLED), "--weights", *JOB[True])
    for name, job in jobs.items():
        for start, more in STARTS.items():
            arguments = (*job, "--cache", str(options.cache), *more)
            run = Run(start, OURS, arguments, environment=environment)
            figures = kept.follow(name, run, options.seconds)
            if name == SDXL and is_accelerator and "request_seconds" in figures:
                figures["tflops"] = REQUEST_TFLOP / figures["request_seconds"]
    return kept


def table(report: dict[str, Any]) -> str:
    """Return a report's figures as a table in Markdown, with a column for each job."""
    jobs = {name: part for name, part in report.items() if isinstance(part, dict)}
    rows: dict[str, list[str]] = {"": [*jobs], "---": ["---"] * len(jobs)}
    requests = [part.get("first start", {}).get("requests", {}) for part in jobs.values()]
    for request in dict.fromkeys(name for times in requests for name in times):
        form = "{0[median]:.3g} s ({0[minimum]:.3g} to {0[maximum]:.3g})"
        rows[request] = [
            form.format(times[request]) if request in times else "" for times in requests
        ]
    for label, (process, name, form) in ROWS.items():
        values = [part.get(process, {}).get(name) for part in jobs.values()]
        rows[label] = ["" if value is None else form.format(value) for value in values]
    lines = (f"| {label} | {' | '.join(cells)} |" for label, cells in rows.items() if any(cells))
    machine = "{date}, {device}, {cores} cores, {processor}".format(**report)
    return "\n".join([machine, "", *lines])


def gpu_environment(cache: Path) -> dict[str, str]:
    """Return the variables of processes that keep what XLA finds out about a GPU's kernels."""
    if shutil.which("nvidia-smi") is None:
        return {}
    flag = f"--xla_gpu_per_fusion_autotune_cache_dir={cache.absolute() / 'autotune'}"
    return {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flag if known(flag) else ''}".strip()}


def known(flag: str) -> bool:
    """Return whether the installed XLA knows a flag; one that it does not know ends a process."""
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flag}
    return not subprocess.run(command, env=environment, capture_output=True).returncode


if __name__ == "__main__":
    main()
