"""One process: the cycles that the attention kernels are scheduled for on a TPU.

    LIBTPU_INIT_ARGS="--xla_jf_dump_to=FOLDER --xla_jf_dump_llo_text=true" \
        .venv-tpu/bin/python -m benchmarks.tpu_kernels --topology v5e:2x2 --dump FOLDER

The HLO has no estimate of a kernel's time. The compiler's dump has its schedule: one bundle of
instructions a cycle, and the whole kernel is repeated for every block of its grid. The schedule
leaves out waits for memory and for the matrix unit. The dump also says which units a bundle uses.
"""

import argparse
import json
import math
import shutil
from functools import partial
from pathlib import Path

from benchmarks.tpu_topology import describe  # first: it sets the environment

# isort: split

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from benchmarks.hlo import Program
from benchmarks.hlo_costs import costs
from pipeline.kernels import flash_tpu

# Heads, width, tokens and parts of them: SDXL's UNet at 1024x1024 with one half of one picture's
# guidance, and its VAE; then the same where four chips share the picture.
SHAPES = (
    *((10, 640, 4096, 1), (20, 1280, 1024, 1), (1, 512, 16384, 1)),
    *((10, 640, 4096, 2), (20, 1280, 1024, 2), (1, 512, 16384, 4)),
)


def main() -> None:
    """Compile every kernel alone and print `[[FLOPs, cycles, idle cycles], ...]`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tpu_kernels")
    parser.add_argument("--topology", required=True)
    parser.add_argument("--dump", type=Path, required=True, help="as in LIBTPU_INIT_ARGS")
    options = parser.parse_args()
    place = SingleDeviceSharding(describe(options.topology)[0])
    print(json.dumps([_kernel(*shape, place, options.dump) for shape in SHAPES]))


def _kernel(
    heads: int, width: int, tokens: int, parts: int, place: SingleDeviceSharding, dump: Path
) -> tuple[float, int, int]:
    shutil.rmtree(dump, ignore_errors=True)
    size = 1, tokens // parts, 3 * width
    shapes = [jax.ShapeDtypeStruct(size, jnp.bfloat16, sharding=place)] * parts
    lowered = jax.jit(partial(flash_tpu.flash_attention, heads)).lower(*shapes)
    operation_costs = costs(Program(lowered.compile().as_text() or ""))
    [flops] = [
        cost.flops for cost, _ in operation_costs if cost.instruction.opcode == "custom-call"
    ]
    blocks = math.prod(flash_tpu.grid(heads, *shapes))
    return flops, _bundles(dump) * blocks, _idle(dump) * blocks


def _bundles(dump: Path) -> int:
    """Return the number of bundles that the dump counts for one block."""
    [file] = dump.glob("*flash_attention*-schedule-analysis_final_bundles.txt")
    line = next(line for line in file.read_text().splitlines() if "total scheduled" in line)
    return int(line.split()[-1])


def _idle(dump: Path) -> int:
    """Return how many bundles of one block give the matrix unit nothing to do."""
    [file] = dump.glob("*flash_attention*-final_hlo-static-per-bundle-utilization.txt")
    _, units, _, _, *bundles = file.read_text().splitlines()
    place = units.split(", ").index("MXU")
    return sum(bundle.split()[place] == "0" for bundle in bundles)


if __name__ == "__main__":
    main()
