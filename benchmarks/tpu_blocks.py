"""Single layers of SDXL's UNet compiled for a TPU, without a TPU: minutes, not an hour.

    .venv-tpu/bin/python -m benchmarks.tpu_blocks --topology v5e:2x2

Shows the effect of a change of one layer before `make bench-tpu` does. Prints the same estimates as
that command, for one chip, which processes one half of one picture's guidance, and writes them into
results/<date>-tpu-<topology>-layers.json. Attention kernels have their bound in both counts,
because the HLO says nothing about their time. `--int8` quantises the layers, and `--option` sets an
option of the compiler; the file's name then ends in -int8 or -with-options.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.tpu_topology import describe, versions  # first: it sets the environment

# isort: split

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import SingleDeviceSharding

from benchmarks import record
from benchmarks.roofline import CHIPS, estimate
from pipeline.checkpoints.weights import shape_rngs
from pipeline.models.layers import ResnetBlock, Upsample, merge_kernels
from pipeline.models.quantized import quantize
from pipeline.models.unet import INT8_LAYERS, TransformerBlock
from pipeline.platforms import CompilerOptions

BATCH = 1  # one half of guidance
TOKENS, PROMPT, TIME = 77, 2048, 1280
Sizes = tuple[tuple[int, ...], ...]


def transformer(width: int, side: int) -> tuple[Callable[..., nnx.Module], Sizes]:
    """Return the constructor of a transformer block over side x side pixels, and input shapes."""
    make = partial(TransformerBlock, width, PROMPT, width // 64)
    return make, ((BATCH, side**2, width), (BATCH, TOKENS, 2 * width))


def resnet(width: int, side: int) -> tuple[Callable[..., nnx.Module], Sizes]:
    """Return the constructor of a ResNet block over side x side pixels, and input shapes."""
    make = partial(ResnetBlock, width, width, groups=32, eps=1e-5, time_dim=TIME)
    return make, ((BATCH, side, side, width), (BATCH, TIME))


def upsample(width: int, side: int) -> tuple[Callable[..., nnx.Module], Sizes]:
    """Return the constructor of an upsampling layer from side x side, and input shapes."""
    return lambda **options: merge_kernels(Upsample(width, **options)), (
        (BATCH, side, side, width),
    )


BLOCKS = {
    "transformer 1280, 32x32": transformer(1280, 32),
    "transformer 640, 64x64": transformer(640, 64),
    "ResNet 320, 128x128": resnet(320, 128),
    "ResNet 640, 64x64": resnet(640, 64),
    "upsampling 1280, 32x32": upsample(1280, 32),
}


def main() -> None:
    """Compile, print and record the estimates."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tpu_blocks")
    parser.add_argument("--topology", default="v5e:2x2")
    parser.add_argument("--int8", action="store_true", help="quantise the layers")
    parser.add_argument("blocks", nargs="*", default=list(BLOCKS), metavar="block")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    chosen = dict(option.split("=") for option in options.option)
    place = SingleDeviceSharding(describe(options.topology)[0])
    chip = CHIPS[options.topology.partition(":")[0]]
    layers = {}
    for name in options.blocks:
        make, sizes = BLOCKS[name]
        made = _int8(make) if options.int8 else make
        began = time.process_time()
        found = estimate(program(made, sizes, place, chosen), chip, {})
        compiled = round(time.process_time() - began)
        layers[name] = {**found.as_json(), "compile_cpu_seconds": compiled}
        print(name, json.dumps(layers[name], indent=2), flush=True)
    report = {
        **record.head("benchmarks.tpu_blocks"),
        "versions": versions(),
        "options": chosen,
        "microseconds": layers,
    }
    suffix = ("-int8" if options.int8 else "") + ("-with-options" if chosen else "")
    print(record.save(f"tpu-{options.topology}-layers{suffix}", report))


def _int8(make: Callable[..., nnx.Module]) -> Callable[..., nnx.Module]:
    """Return the constructor of the same block, quantised as in the UNet."""
    return lambda **options: quantize(make(**options), rf"(.*\.)?({INT8_LAYERS})")


def program(
    make: Callable[..., nnx.Module],
    sizes: Sizes,
    place: SingleDeviceSharding,
    options: CompilerOptions | None = None,
) -> str:
    """Return the compiled layer's HLO, in bfloat16; `options` are the compiler's.

    Raises:
        JaxRuntimeError: if an option does not exist, or the layer does not compile with it.
    """

    def shape(size: tuple[int, ...], dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(size, dtype, sharding=place)

    module = nnx.eval_shape(lambda: make(dtype=jnp.bfloat16, rngs=shape_rngs()))
    graphdef, state = nnx.split(module)
    weights = jax.tree.map(lambda leaf: shape(leaf.shape, leaf.dtype), state)
    run = jax.jit(lambda weights, *inputs: nnx.merge(graphdef, weights)(*inputs))
    return run.lower(weights, *map(shape, sizes)).compile(options).as_text() or ""


if __name__ == "__main__":
    main()
