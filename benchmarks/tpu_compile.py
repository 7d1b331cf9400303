"""One process: SDXL base compiled for a TPU that is not there, one topology.

    .venv-tpu/bin/python -m benchmarks.tpu_compile --topology v5e:2x2 --out folder

Writes every program's HLO into the folder and prints times and sizes as JSON.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.tpu_topology import describe, megabytes, versions  # first: it sets the environment

# isort: split

import jax.numpy as jnp
from flax import nnx

from pipeline.compiled import CompiledSampler, Networks, Shapes, make_mesh
from pipeline.config import Config, read_config
from pipeline.loading import blueprints
from tests.published import SDXL_BASE, write

SHAPES = Shapes(images=4, height=1024, width=1024, tokens=77)


def main() -> None:
    """Compiles and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tpu_compile")
    parser.add_argument("--topology", required=True, help="such as v5e:2x2")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    devices = describe(options.topology)
    config = sdxl_base()
    mesh = make_mesh(devices, SHAPES.images)
    compiled = CompiledSampler(config, empty_networks(config), mesh, SHAPES, None)
    options.out.mkdir(parents=True, exist_ok=True)
    programs = {}
    for name, executable in compiled.executables.items():
        (options.out / f"{name}.hlo").write_text(executable.as_text() or "")
        programs[name] = {
            "compile_seconds": round(compiled.seconds[name], 1),
            **megabytes(executable),
        }
    report = {
        "topology": options.topology,
        "layout": dict(mesh.shape),
        "versions": versions(),
        "programs": programs,
    }
    print(json.dumps(report))


def sdxl_base() -> Config:
    """Of the published checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        return read_config(write(Path(folder), SDXL_BASE))


def empty_networks(config: Config) -> Networks:
    """The networks in bfloat16, shapes in place of their parameters."""

    def empty(make: Callable[[Any], nnx.Module]) -> nnx.Module:
        return nnx.eval_shape(lambda: make(jnp.bfloat16))

    return Networks.named({name: empty(make) for name, make in blueprints(config).items()})


if __name__ == "__main__":
    main()
