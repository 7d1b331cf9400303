"""The tiny VAE compiled for a TPU, without a TPU: minutes, not an hour.

    .venv-tpu/bin/python -m benchmarks.tpu_decoders --topology v5e:2x2

Compiles the program that decodes four 1024x1024 pictures, one on each chip. Prints the same sizes
and estimates as `make bench-tpu`, which has SDXL's own VAE, and writes them into
results/<date>-tpu-<topology>-decoders.json. `decode` as an argument compiles that one again.
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
from benchmarks.full_size import read_with_tiny_vae
from benchmarks.roofline import CHIPS, estimate
from benchmarks.tpu import attention_kernels
from benchmarks.tpu_compile import SHAPES
from pipeline.runtime.compiled import make_mesh
from pipeline.runtime.loading import trace_networks
from pipeline.runtime.program import Target
from pipeline.runtime.programs import Programs


def main() -> None:
    """Compile, print and record the sizes and estimates."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tpu_decoders")
    parser.add_argument("--topology", default="v5e:2x2")
    parser.add_argument("programs", nargs="*", default=["tiny_decode"], metavar="program")
    options = parser.parse_args()
    topology = options.topology
    with tempfile.TemporaryDirectory() as folder:
        kernels = attention_kernels(topology, Path(folder))
    mesh = make_mesh(describe(topology), SHAPES.images)
    config, dtype = read_with_tiny_vae(), jnp.dtype(jnp.bfloat16)
    programs = Programs(Target(config, dtype, mesh, SHAPES), trace_networks(config, dtype))
    chip = CHIPS[topology.partition(":")[0]]
    figures: dict[str, dict[str, Any]] = {"programs": {}, "microseconds": {}}
    for name in options.programs:
        began = time.perf_counter()
        executable = programs[name].compile()
        seconds = round(time.perf_counter() - began, 1)
        figures["programs"][name] = {"compile_seconds": seconds, **megabytes(executable)}
        # Each chip decodes one picture.
        program_estimate = estimate(executable.as_text() or "", chip, kernels, (1,))
        figures["microseconds"][name] = program_estimate.as_json()
        print(
            name, json.dumps({kind: values[name] for kind, values in figures.items()}), flush=True
        )
    head = record.head("benchmarks.tpu_decoders")
    layout = {"topology": topology, "layout": dict(mesh.shape), "versions": versions()}
    print(record.save(f"tpu-{topology}-decoders", {**head, **layout, **figures}))


if __name__ == "__main__":
    main()
