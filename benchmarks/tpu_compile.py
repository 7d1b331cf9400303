"""One process: SDXL base compiled for one TPU topology, without a TPU.

    .venv-tpu/bin/python -m benchmarks.tpu_compile --topology v5e:2x2 --out folder

Writes every program's HLO into the folder, with those of steps in modes that are not exact, and
prints times and sizes as JSON. `--exact` leaves these steps out.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.tpu_topology import describe, megabytes, versions  # first: it sets the environment

# isort: split

import jax.numpy as jnp

from benchmarks.full_size import read_published
from pipeline.runtime.compiled import make_mesh
from pipeline.runtime.executables import compile_missing
from pipeline.runtime.loading import trace_networks
from pipeline.runtime.program import Shapes, Target
from pipeline.runtime.programs import Programs

SHAPES = Shapes(images=4, height=1024, width=1024)
# The settings of targets for modes that are not exact, by the name of their step.
MODES: dict[str, dict[str, Any]] = {
    "step_cached": {"step_cache": True},
    "step_int8": {"quantization": "int8"},
}


def main() -> None:
    """Compile the programs, and print their times and sizes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tpu_compile")
    parser.add_argument("--topology", required=True, help="such as v5e:2x2")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--exact", action="store_true", help="leave out the steps of modes")
    options = parser.parse_args()
    devices = describe(options.topology)
    config = read_published()
    mesh = make_mesh(devices, SHAPES.images)
    target = Target(config, jnp.dtype(jnp.bfloat16), mesh, SHAPES)
    compiled = compile_missing(target, trace_networks(config, target.dtype))
    executables, seconds = {**compiled.by_name}, {**compiled.seconds}
    for name in () if options.exact else MODES:
        began = time.perf_counter()
        mode_target = replace(target, **MODES[name])
        networks = trace_networks(config, mode_target.dtype, quantization=mode_target.quantization)
        executables[name] = Programs(mode_target, networks)["step"].compile()
        seconds[name] = time.perf_counter() - began
    options.out.mkdir(parents=True, exist_ok=True)
    programs = {}
    for name, executable in executables.items():
        (options.out / f"{name}.hlo").write_text(executable.as_text() or "")
        programs[name] = {"compile_seconds": round(seconds[name], 1), **megabytes(executable)}
    report = {
        "topology": options.topology,
        "layout": dict(mesh.shape),
        "versions": versions(),
        "programs": programs,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
