"""One picture that all chips draw together, compiled for a TPU, without a TPU: ten minutes.

    .venv-tpu/bin/python -m benchmarks.tpu_picture --topology v5e:2x2 --chips 4

Compiles `step` and `decode` of SDXL base for one 1024x1024 picture on four chips, two for each half
of guidance. Prints the same sizes and estimates as `make bench-tpu`, which has the same picture on
one chip, and writes them into results/<date>-tpu-<topology>-one-picture.json. A chip sends 50 GB/s
to a neighbour: the 1600 Gbit/s that Google states for a v5e, over its four links.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.tpu_topology import describe, megabytes, versions  # first: it sets the environment

# isort: split

import jax.numpy as jnp

from benchmarks import record
from benchmarks.full_size import read_published
from benchmarks.roofline import CHIPS, estimate
from benchmarks.tpu import attention_kernels
from pipeline.runtime.compiled import make_mesh
from pipeline.runtime.loading import trace_networks
from pipeline.runtime.program import Program, Shapes, Target
from pipeline.runtime.programs import Programs

SHAPES = Shapes(images=1, height=1024, width=1024)


def main() -> None:
    """Compile, print and record the sizes and estimates."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tpu_picture")
    parser.add_argument("--topology", default="v5e:2x2")
    parser.add_argument("--chips", type=int, default=4, help="chips that draw the picture")
    parser.add_argument("--programs", type=Path, help="a folder that keeps the compiled programs")
    options = parser.parse_args()
    topology = options.topology
    with tempfile.TemporaryDirectory() as folder:
        kernels = attention_kernels(topology, Path(folder))
        programs_folder = Path(folder) if options.programs is None else options.programs
        programs_folder.mkdir(parents=True, exist_ok=True)
        mesh = make_mesh(describe(topology), SHAPES.images, options.chips)
        config, dtype = read_published(), jnp.dtype(jnp.bfloat16)
        programs = Programs(Target(config, dtype, mesh, SHAPES), trace_networks(config, dtype))
        figures: dict[str, dict[str, Any]] = {"programs": {}, "microseconds": {}}
        for name in ("decode", "step"):
            text, figures["programs"][name] = compiled(
                programs[name], programs_folder / f"{name}.hlo"
            )
            program_estimate = estimate(text, CHIPS[topology.partition(":")[0]], kernels, (1,))
            figures["microseconds"][name] = program_estimate.as_json()
            print(
                name,
                json.dumps({kind: values[name] for kind, values in figures.items()}),
                flush=True,
            )
    head = record.head("benchmarks.tpu_picture")
    layout = {"topology": topology, "layout": dict(mesh.shape), "versions": versions()}
    print(record.save(f"tpu-{topology}-one-picture", {**head, **layout, **figures}))


def compiled(program: Program, file: Path) -> tuple[str, dict[str, float]]:
    """Return a program's HLO and its sizes; a program that is in the file is not compiled again."""
    sizes = file.with_suffix(".json")
    if not sizes.exists():
        began = time.perf_counter()
        executable = program.compile()
        seconds = round(time.perf_counter() - began, 1)
        file.write_text(executable.as_text() or "")
        sizes.write_text(json.dumps({"compile_seconds": seconds, **megabytes(executable)}))
    return file.read_text(), json.loads(sizes.read_text())


if __name__ == "__main__":
    main()
