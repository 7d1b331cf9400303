"""`make bench-cpu`: small models and full-size SDXL on this machine's CPU, with three libraries.

All have random weights. The mid-size model is the miniature with other channels. The libraries are
this project's sampler, the Flax pipeline of diffusers 0.39 and torch's diffusers, each in its own
process and environment, in float32; this project and torch in bfloat16 too. A full-size job is a
few steps of one small picture. Writes results/<date>-cpu.json.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import Any

from benchmarks import record
from benchmarks.gpu import ENVIRONMENTS, Run, followed
from pipeline import BUNDLED
from tools.published_configs import SDXL_BASE, write

_SMALL = ["--pixels", "256", "--images", "4", "--steps", "25", "--repeats", "5"]
JOBS = {
    "miniature": _SMALL,
    "mid-size": _SMALL,
    "sdxl 256x256": ["--pixels", "256", "--images", "1", "--steps", "3", "--repeats", "2"],
    "sdxl 512x512": ["--pixels", "512", "--images", "1", "--steps", "3", "--repeats", "1"],
}
LIBRARIES = ("ours float32", "flax float32", "torch float32", "ours bfloat16", "torch bfloat16")


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=LIBRARIES)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        published_configs = write(Path(folder), SDXL_BASE)
        configs = {"miniature": BUNDLED, "mid-size": mid_size(Path(folder) / "mid-size")}
        results = {}
        for name in options.jobs:
            results[name] = measure(
                configs.get(name, published_configs), JOBS[name], options.libraries
            )
            record.write("cpu", results)  # after each job, because a job takes long


def mid_size(folder: Path) -> Path:
    """Write the miniature's configs with a mid-size model's channels; return the folder."""
    shutil.copytree(BUNDLED, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    file = folder / "unet/config.json"
    config = json.loads(file.read_text())
    config |= {"block_out_channels": [64, 128, 192], "attention_head_dim": [2, 4, 6]}
    file.write_text(json.dumps(config))
    return folder


def measure(configs: Path, job: list[str], libraries: Sequence[str]) -> dict[str, Any]:
    """Measure a job with each library; `times_ours` relates it to this project in float32."""
    results: dict[str, dict[str, Any]] = {}
    for library in libraries:
        name, dtype = library.split()
        run = Run(
            library,
            f"benchmarks.draw_{name}",
            (str(configs), *job, "--dtype", dtype),
            environment={"JAX_PLATFORMS": "cpu"},
        )
        *_, results[library] = followed(run, ENVIRONMENTS[name], TIMEOUT_MAX)
    our_seconds = results.get("ours float32", {}).get("request_seconds")
    for result in results.values():
        if our_seconds and "request_seconds" in result:
            result["times_ours"] = round(result["request_seconds"] / our_seconds, 2)
    return results


if __name__ == "__main__":
    main()
