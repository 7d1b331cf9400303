"""Single layers of SDXL's UNet on chips that share a picture's rows, without a TPU: minutes.

    .venv-tpu/bin/python -m benchmarks.tpu_rows --topology v5e:2x2

Compiles layers of `benchmarks.tpu_blocks`, by default those that take most of a step, for one chip
and for two neighbours, each of which has half of the rows. Prints the same estimates, and writes
them into results/<date>-tpu-<topology>-rows.json. `benchmarks.tpu_picture` compiles whole programs.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.tpu_topology import describe, versions  # first: it sets the environment

# isort: split

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import record
from benchmarks.roofline import CHIPS, estimate
from benchmarks.tpu import attention_kernels
from benchmarks.tpu_blocks import BLOCKS, Sizes
from pipeline.checkpoints.weights import shape_rngs
from pipeline.kernels import rows
from pipeline.platforms import compiler_options

LAYERS = ("transformer 1280, 32x32", "transformer 640, 64x64", "ResNet 640, 64x64")


def main() -> None:
    """Compile, print and record the estimates."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tpu_rows")
    parser.add_argument("--topology", default="v5e:2x2")
    parser.add_argument("layers", nargs="*", default=LAYERS, metavar="layer")
    options = parser.parse_args()
    topology = options.topology
    with tempfile.TemporaryDirectory() as folder:
        kernels = attention_kernels(topology, Path(folder))
    chips, chip = describe(topology), CHIPS[topology.partition(":")[0]]
    found: dict[str, dict[str, Any]] = {}
    for name in options.layers:
        found[name] = {
            str(count): estimate(spread(*BLOCKS[name], chips[:count]), chip, kernels).as_json()
            for count in (1, 2)
        }
        print(name, json.dumps(found[name]), flush=True)
    report = {
        **record.head("benchmarks.tpu_rows"),
        "versions": versions(),
        "options": compiler_options(chips[0], jnp.bfloat16),
        "microseconds": found,
    }
    print(record.save(f"tpu-{topology}-rows", report))


def spread(make: Callable[..., nnx.Module], sizes: Sizes, chips: list[jax.Device]) -> str:
    """Return a layer's HLO in bfloat16, where chips share the rows or tokens of its first input."""
    mesh = Mesh(np.array(chips), ("rows",))
    module = nnx.eval_shape(lambda: make(dtype=jnp.bfloat16, rngs=shape_rngs()))
    graphdef, state = nnx.split(module)

    def shape(size: tuple[int, ...], dtype: Any, spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(size, dtype, sharding=NamedSharding(mesh, spec))

    def run(weights: Any, *inputs: jax.Array) -> jax.Array:
        with rows.spread(*(mesh.axis_names if len(chips) > 1 else ())):
            return nnx.merge(graphdef, weights)(*inputs)

    weights = jax.tree.map(lambda leaf: shape(leaf.shape, leaf.dtype, P()), state)
    specs = [P(None, "rows"), *[P()] * (len(sizes) - 1)]
    inputs = [shape(size, jnp.bfloat16, spec) for size, spec in zip(sizes, specs, strict=True)]
    mapped = jax.shard_map(
        run, mesh=mesh, in_specs=(P(), *specs), out_specs=specs[0], check_vma=False
    )
    options = compiler_options(chips[0], jnp.bfloat16)
    return jax.jit(mapped).lower(weights, *inputs).compile(options).as_text() or ""


if __name__ == "__main__":
    main()
