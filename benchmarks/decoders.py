"""SDXL's VAE and the tiny VAE at their full widths on this machine's CPU.

    .venv/bin/python -m benchmarks.decoders

Decodes one picture of each size with random weights, by both decoders in turns, and takes the
shorter of two runs. Prints seconds and megabytes of temporaries, and writes
results/<date>-decoders.json. `benchmarks.tpu` analyses both decoders for a TPU.
"""

import argparse
import os
import time
from collections.abc import Iterator
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

# isort: split

import jax
import numpy as np

from benchmarks import record
from benchmarks.full_size import read_with_tiny_vae
from pipeline.families.family import Config
from pipeline.runtime.compiled import make_mesh
from pipeline.runtime.loading import trace_networks
from pipeline.runtime.programs import Programs, Shapes, Target

DECODERS = ("decode", "tiny_decode")
REPEATS = 2


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decoders", description=__doc__)
    parser.add_argument("--sides", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    options = parser.parse_args()
    config, figures = read_with_tiny_vae(), {}
    for side in options.sides:
        for dtype in options.dtypes:
            name = f"{side}x{side}, {dtype}"
            figures[name] = measure(config, side, np.dtype(dtype))
            print(name, figures[name], flush=True)
    record.write("decoders", {"sizes": figures})


def measure(config: Config, side: int, dtype: np.dtype[Any]) -> dict[str, dict[str, float]]:
    """Return the seconds and the megabytes of temporaries of each decoder."""
    target = Target(config, dtype, make_mesh(jax.devices()[:1], 1), Shapes(1, side, side))
    programs = Programs(target, trace_networks(config, dtype))
    executables, figures = {}, {}
    for name in DECODERS:
        began = time.perf_counter()
        executables[name] = programs[name].compile()
        memory = executables[name].memory_analysis()
        assert memory is not None
        figures[name] = {
            "temporaries_mb": round(memory.temp_size_in_bytes / 1e6, 1),
            "compile_seconds": round(time.perf_counter() - began, 1),
            "seconds": float("inf"),
        }
    for _ in range(REPEATS):
        for name, executable in executables.items():
            arguments = list(random_arguments(programs[name].args))
            began = time.perf_counter()
            jax.block_until_ready(executable(*arguments))
            seconds = round(time.perf_counter() - began, 3)
            figures[name]["seconds"] = min(figures[name]["seconds"], seconds)
    return figures


def random_arguments(specs: tuple[Any, ...]) -> Iterator[Any]:
    """Yield random arguments for a program."""
    rng = np.random.default_rng(0)
    for spec in specs:
        yield jax.tree.map(
            lambda leaf: jax.device_put(
                (0.1 * rng.standard_normal(leaf.shape, np.float32)).astype(leaf.dtype),
                leaf.sharding,
            ),
            spec,
        )


if __name__ == "__main__":
    main()
