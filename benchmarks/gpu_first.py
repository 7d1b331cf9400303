"""One process: what a GPU can do at most, and single operations and layers of SDXL on it.

    python3 -m benchmarks.gpu_first

Prints its measurements as JSON, each line with all so far. On a CPU the arrays are small, and the
figures mean nothing.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks import draw_job
from benchmarks.draw_ours import matmul_tflops
from benchmarks.random_weights import fill
from pipeline.checkpoints.weights import shape_rngs
from pipeline.kernels.attention import attention, cross_attention, self_attention
from pipeline.models.layers import ResnetBlock
from pipeline.models.unet import TransformerBlock
from pipeline.platforms import platform_of
from pipeline.runtime.compiled import make_mesh

PACKAGES = ("flax", "jax", "jaxlib", "numpy", "pillow", "safetensors")
REPEATS = 10
BATCH = 8  # four pictures with both halves of guidance
PROMPT, TOKENS, TIME = 2048, 77, 1280
# The shapes of attention: pictures, queries, keys (None: the queries' own), heads; each is 64 wide.
ATTENTION = ((BATCH, 4096, None, 10), (BATCH, 1024, TOKENS, 20))
SMALL_ATTENTION = ((2, 64, None, 2), (2, 64, 7, 2))
HEAD = 64
WIDTH, SIDE = (
    1280,
    32,
)  # of the transformer block; the ResNet block has half the width, twice the side
COPIED = 2**30  # bytes


def main() -> None:
    """Measure, and print the results."""
    device = jax.devices()[0]
    is_accelerated = platform_of(device).is_accelerator
    report = draw_job.Report(
        device=device.device_kind,
        versions=draw_job.versions(PACKAGES),
    )
    report.add(copy_gb_per_second=round(copy_rate(COPIED if is_accelerated else 2**20), 1))
    mesh = make_mesh([device], 1)
    report.add(matmul_tflops=round(matmul_tflops(mesh, jnp.dtype(jnp.bfloat16)), 2))
    for shape in ATTENTION if is_accelerated else SMALL_ATTENTION:
        report.add(**{f"attention {shape}": measure_attention(*shape)})
    shrink = 1 if is_accelerated else 20
    for name, (make, sizes) in layers(WIDTH // shrink, SIDE // min(shrink, 8)).items():
        report.add(**{name: measure_layer(make, sizes)})


def timed(run: Callable[[], Any]) -> float:
    """Return the milliseconds of a call, the median of several."""
    return round(draw_job.seconds(lambda: jax.block_until_ready(run()), REPEATS) * 1e3, 3)


def copy_rate(size: int) -> float:
    """Return the gigabytes a second that the device reads and writes in a copy of `size` bytes."""
    source = jnp.zeros(size // 4, jnp.float32)
    copy = jax.jit(lambda array: array + 1)
    seconds = draw_job.seconds(lambda: copy(source).block_until_ready(), REPEATS)
    return 2 * size / seconds / 1e9


def measure_attention(pictures: int, queries: int, keys: int | None, heads: int) -> dict[str, Any]:
    """Measure attention in the platform's form and in XLA's, and their error against float32."""
    width = heads * HEAD
    lengths = (queries, 3 * width), (keys or 0, 2 * width)
    sizes = [(queries, width), lengths[1]] if keys else [lengths[0]]
    arrays = [
        jax.random.normal(jax.random.key(i), (pictures, *size), jnp.bfloat16)
        for i, size in enumerate(sizes)
    ]
    attend = cross_attention if keys else self_attention
    compiled = jax.jit(partial(attend, heads=heads))
    reference = jax.jit(partial(_plain, heads))
    with jax.default_matmul_precision("highest"):  # else a GPU multiplies in TF32
        expected = np.asarray(reference(*(array[:1].astype(jnp.float32) for array in arrays)))
    result = np.asarray(compiled(*(array[:1] for array in arrays)).astype(jnp.float32))
    text = compiled.lower(*arrays).as_text()
    return {
        "cudnn": "__cudnn$fmha" in text,
        "milliseconds": timed(lambda: compiled(*arrays)),
        "milliseconds_of_xla": timed(lambda: reference(*arrays)),
        "relative_error": float(np.abs(result - expected).max() / np.abs(expected).max()),
    }


def _plain(heads: int, *projections: jax.Array) -> jax.Array:
    query, *key_values = projections
    if key_values:
        key, value = jnp.split(key_values[0], 2, axis=-1)
    else:
        query, key, value = jnp.split(query, 3, axis=-1)
    query, key, value = (x.reshape(*x.shape[:2], heads, -1) for x in (query, key, value))
    return attention(query, key, value).reshape(*query.shape[:2], -1)


def layers(width: int, side: int) -> dict[str, tuple[Callable[..., nnx.Module], Any]]:
    """Return a transformer block and a ResNet block: constructors and shapes of inputs."""
    half_width, pixels = width // 2, 2 * side
    block = partial(TransformerBlock, width, PROMPT, width // HEAD)
    resnet = partial(ResnetBlock, half_width, half_width, groups=32, eps=1e-5, time_dim=TIME)
    return {
        f"transformer {width}": (block, ((BATCH, side**2, width), (BATCH, TOKENS, 2 * width))),
        f"ResNet {half_width}": (resnet, ((BATCH, pixels, pixels, half_width), (BATCH, TIME))),
    }


def measure_layer(make: Callable[..., nnx.Module], sizes: Any) -> dict[str, Any]:
    """Measure a layer in bfloat16 with random weights."""
    module = nnx.eval_shape(lambda: make(dtype=jnp.bfloat16, rngs=shape_rngs()))
    graphdef, shapes = nnx.split(module)
    weights = fill(shapes, jax.random.key(0))
    inputs = [jax.random.normal(jax.random.key(1), size, jnp.bfloat16) for size in sizes]
    run = jax.jit(lambda weights, *inputs: nnx.merge(graphdef, weights)(*inputs))
    return {"milliseconds": timed(lambda: run(weights, *inputs))}


if __name__ == "__main__":
    main()
