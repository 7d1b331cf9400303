"""One process: diffusers 0.39's whole program for one picture, compiled for one chip of a TPU.

    TPU_LIBRARY_PATH=.../libtpu.so .venv-incumbent/bin/python -m benchmarks.tpu_incumbent \
        --topology v5e:2x2 --out folder

One picture for each chip is how google/sdxl ran it. Writes the program's HLO into the folder and
prints times and sizes as JSON.
"""

import argparse
import importlib.metadata
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.tpu_topology import describe, megabytes  # first: it sets the environment

# isort: split

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from benchmarks.incumbent_model import build
from tools.published_configs import SDXL_BASE, write

PACKAGES = ("diffusers", "flax", "jax", "jaxlib", "transformers")
STEPS, SIZE, GUIDANCE_SCALE, TOKENS = 25, 1024, 5.0, 77


def main() -> None:
    """Compile the program, and print its time and size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tpu_incumbent")
    parser.add_argument("--topology", required=True, help="such as v5e:2x2")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    place = SingleDeviceSharding(describe(options.topology)[0])
    options.out.mkdir(parents=True, exist_ok=True)
    pipeline, params = build(write(options.out, SDXL_BASE))
    params["scheduler"] = jax.eval_shape(pipeline.scheduler.create_state)

    def spec(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)

    def generate(ids: Any, params: Any, key: Any) -> jax.Array:
        return pipeline._generate(ids, params, key, STEPS, SIZE, SIZE, GUIDANCE_SCALE, None, ids)

    ids = jax.ShapeDtypeStruct((1, 2, TOKENS), jnp.int32)
    key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    begin = time.perf_counter()
    arguments = jax.tree.map(spec, (ids, params, key))
    executable = jax.jit(generate).lower(*arguments).compile()
    (options.out / "generate.hlo").write_text(executable.as_text() or "")
    report = {
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "compile_seconds": round(time.perf_counter() - begin, 1),
        **megabytes(executable),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
