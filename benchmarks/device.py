"""One process: what a device can do at most, and single operations and layers of a model on it.

    python3 -m benchmarks.device CONFIGS

The layers are those of the model's UNet, at its own size of pictures, with random weights in the
dtype that a server would choose. Their results are compared with those in float32 on the CPU.
Prints its measurements as JSON, each line with all so far.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks import draw_job
from benchmarks.draw_ours import matmul_tflops, read
from benchmarks.random_weights import fill
from pipeline.checkpoints.weights import shape_rngs
from pipeline.families.family import Config
from pipeline.kernels.attention import self_attention
from pipeline.models.layers import ResnetBlock
from pipeline.models.unet import TransformerBlock
from pipeline.platforms import network_dtype, platform_of
from pipeline.runtime.compiled import make_mesh

PACKAGES = ("flax", "jax", "jaxlib", "numpy", "pillow", "safetensors")
# By whether the device is an accelerator: the pictures of a measurement, where eight are four with
# both halves of guidance; and its repeats.
SIZES = {True: (8, 10), False: (1, 3)}
TOKENS, COPIED_BYTES = 77, 2**30
# Calls in a lowered program of kernels that are not XLA's own.
KERNELS = {"__cudnn$fmha": "cuDNN", "tpu_custom_call": "Pallas"}
# For a dtype, a function of arrays that are random; and the shapes of these without the batch.
Case = tuple[Callable[[np.dtype[Any]], Callable[..., jax.Array]], tuple[tuple[int, ...], ...]]


def main() -> None:
    """Measure, and print the results."""
    options = draw_job.read_arguments("device")
    device = jax.devices()[0]
    is_accelerator, dtype = platform_of(device).is_accelerator, network_dtype(None, [device])
    report = draw_job.Report(
        device=device.device_kind,
        devices=len(jax.devices()),
        is_accelerator=is_accelerator,
        dtype=dtype.name,
        versions=draw_job.versions(PACKAGES),
    )
    report.add(copy_gb_per_second=round(copy_rate(), 1))
    report.add(matmul_tflops=matmul_tflops(make_mesh([device], 1), dtype))
    for name, case in cases(read(options)[0]).items():
        report.add(**{name: measure(case, dtype, *SIZES[is_accelerator])})


def copy_rate() -> float:
    """Return the gigabytes a second that the device reads and writes in a large copy."""
    source = jnp.zeros(COPIED_BYTES // 4, jnp.float32)
    copy = jax.jit(lambda array: array + 1)
    times = draw_job.measure(lambda: copy(source).block_until_ready(), repeats=3)
    return 2 * COPIED_BYTES / times.median / 1e9


def cases(config: Config) -> dict[str, Case]:
    """Return attention where it has most pixels, and the layers where they are widest."""
    unet, architecture = config.networks["unet"], config.architecture
    side, *_ = architecture.latents_shape(*architecture.default_size)
    levels = [level for level, depths in enumerate(unet.down_depths) if any(depths)]
    first, last = levels[0], levels[-1]
    wide, narrow = (unet.block_out_channels[level] for level in (last, first))
    many, few = ((side >> level) ** 2 for level in (first, last))
    attend = partial(self_attention, heads=unet.num_attention_heads[first])
    heads = unet.num_attention_heads[last]
    block = partial(TransformerBlock, wide, unet.cross_attention_dim, heads)
    groups, eps, time_dim = unet.norm_num_groups, unet.norm_eps, unet.time_embed_dim
    resnet = partial(ResnetBlock, wide, wide, groups=groups, eps=eps, time_dim=time_dim)
    return {
        "self-attention": (lambda _: attend, ((many, 3 * narrow),)),
        "transformer block": (partial(layer, block), ((few, wide), (TOKENS, 2 * wide))),
        "ResNet block": (partial(layer, resnet), ((side >> last, side >> last, wide), (time_dim,))),
    }


def layer(make: Callable[..., nnx.Module], dtype: np.dtype[Any]) -> Callable[..., jax.Array]:
    """Return a layer with random weights, which are the same in any dtype."""
    module = nnx.eval_shape(lambda: make(dtype=dtype, rngs=shape_rngs()))
    graphdef, shapes = nnx.split(module)
    weights = fill(shapes, 0)
    return lambda *arrays: nnx.merge(graphdef, weights)(*arrays)  # type: ignore[operator]


def measure(case: Case, dtype: np.dtype[Any], batch: int, repeats: int) -> dict[str, Any]:
    """Measure a case, and compare the result for one picture with that in float32 on the CPU."""
    make, sizes = case
    rng = np.random.default_rng(0)
    values = [
        rng.standard_normal((batch, *size), np.float32).astype(jnp.bfloat16) for size in sizes
    ]
    arrays = [jnp.asarray(array, dtype) for array in values]
    compiled = jax.jit(make(dtype)).lower(*arrays)
    text, run = compiled.as_text(), compiled.compile()
    times = draw_job.measure(lambda: run(*arrays).block_until_ready(), repeats)
    result = np.asarray(run(*arrays)[:1].astype(jnp.float32))
    # A device may multiply float32 numbers in fewer bits.
    with jax.default_device(jax.devices("cpu")[0]), jax.default_matmul_precision("highest"):
        one_picture = [jnp.asarray(array[:1], jnp.float32) for array in values]
        expected = np.asarray(jax.jit(make(np.dtype("float32")))(*one_picture))
    return {
        "kernel": next((name for call, name in KERNELS.items() if call in text), "XLA"),
        "milliseconds": round(1e3 * times.median, 3),
        "relative_error": float(np.abs(result - expected).max() / np.abs(expected).max()),
    }


if __name__ == "__main__":
    main()
