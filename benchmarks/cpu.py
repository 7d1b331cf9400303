"""`make bench-cpu`: small models and full-size SDXL on this machine's CPU, with three libraries.

All have random weights. The mid-size model is the miniature with other channels, which the old Flax
pipelines can draw with. The libraries are this project's sampler, the Flax pipeline of diffusers
0.39 and torch's diffusers, as it is, by `torch.compile` and with its UNet by OpenVINO, each in its
own processes and environment. Where there are several pictures, the faster of two ways counts: all
cores draw them together, or each core draws its own, in Flax by `pmap` and in torch by processes. A
full-size job is a few steps of one small picture. Writes results/<date>-cpu.json.
"""

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from threading import TIMEOUT_MAX

from benchmarks.apart import Record, Run
from pipeline import BUNDLED
from tools.published_configs import SDXL_BASE, write

_SMALL = ["--pixels", "256", "--images", "4", "--steps", "25", "--repeats", "9"]
JOBS = {
    "miniature": _SMALL,
    "mid-size": _SMALL,
    "sdxl 256x256": ["--pixels", "256", "--images", "1", "--steps", "3", "--repeats", "3"],
    "sdxl 512x512": ["--pixels", "512", "--images", "1", "--steps", "3", "--repeats", "3"],
}
LIBRARIES = (
    *("ours float32", "flax float32", "torch float32", "torch.compile float32"),
    "torch.openvino float32",
    *("ours bfloat16", "torch bfloat16", "torch.compile bfloat16"),
)
# The arguments with which each core draws pictures of its own; this project does so by itself.
ON_EACH_CORE = {
    "flax": "--devices",
    **dict.fromkeys(("torch", "torch.compile", "torch.openvino"), "--processes"),
}


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=LIBRARIES)
    options = parser.parse_args()
    kept = Record("cpu")
    with tempfile.TemporaryDirectory() as folder:
        published = write(Path(folder), SDXL_BASE)
        configs = {"miniature": BUNDLED, "mid-size": mid_size(Path(folder) / "mid-size")}
        for name in options.jobs:
            measure(kept, name, configs.get(name, published), options.libraries)
    print(json.dumps(kept.report, indent=2), kept.file, sep="\n")


def mid_size(folder: Path) -> Path:
    """Write the miniature's configs with a mid-size model's channels; return the folder."""
    shutil.copytree(BUNDLED, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    file = folder / "unet/config.json"
    changes = {"block_out_channels": [64, 128, 192], "attention_head_dim": [2, 4, 6]}
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


def measure(kept: Record, job: str, configs: Path, libraries: Sequence[str]) -> None:
    """Measure a job with each library; `times_ours` relates it to this project in float32."""
    for library in libraries:
        ways = {run.name: kept.follow(job, run, TIMEOUT_MAX) for run in runs(library, configs, job)}
        way = min(ways, key=lambda name: ways[name].get("request_seconds", TIMEOUT_MAX))
        result = kept.report[job][library] = {"way": way, **ways[way]}
        our_seconds = kept.report[job].get("ours float32", {}).get("request_seconds")
        if our_seconds and "request_seconds" in result:
            result["times_ours"] = round(result["request_seconds"] / our_seconds, 2)
        kept.save()


def runs(library: str, configs: Path, job: str) -> list[Run]:
    """Return the ways in which a library can draw a job's pictures."""
    name, dtype = library.split()
    program, *modes = name.split(".")
    job_arguments, cores = JOBS[job], os.cpu_count() or 1
    images = int(job_arguments[job_arguments.index("--images") + 1])
    arguments = (str(configs), *job_arguments, "--dtype", dtype, *(f"--{mode}" for mode in modes))
    ways: dict[str, tuple[str, ...]] = {
        "cores together" if name in ON_EACH_CORE else "as it chooses": ()
    }
    if name in ON_EACH_CORE and images % cores == 0:
        ways["each core by itself"] = (ON_EACH_CORE[name], str(cores))
    return [
        Run(
            f"{library}, {way}",
            f"benchmarks.draw_{program}",
            (*arguments, *more),
            program,
            {"JAX_PLATFORMS": "cpu"},
        )
        for way, more in ways.items()
    ]


if __name__ == "__main__":
    main()
