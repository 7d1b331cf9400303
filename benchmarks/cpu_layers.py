"""Single layers of SDXL on this machine's CPU: XLA's operation against this project's kernel.

    .venv/bin/python -m benchmarks.cpu_layers

Runs both in turns and takes the shortest of several runs. Prints milliseconds and writes
results/<date>-cpu-layers.json.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from benchmarks import record
from pipeline.kernels.attention import attention, cross_attention, self_attention
from pipeline.kernels.matmul_conv import LAYOUT, convolution, dot_general
from pipeline.platforms import compiler_options

REPEATS = 6
HEAD = 64
# Rows, input features, output features.
PRODUCTS = [(2048, 2048, 2048), (512, 1280, 10240), (512, 5120, 1280)]
# Pictures, side, channels: the UNet's at 512x512 and 256x256, then the VAE's.
CONVOLUTIONS = [(2, 64, 320), (2, 32, 640), (2, 16, 1280), (2, 8, 1280)]
CONVOLUTIONS += [(1, 64, 512), (1, 128, 512), (1, 256, 256), (1, 512, 128)]
# Pictures, queries, keys, heads.
ATTENTION = [(2, 1024, 1024, 10), (2, 256, 256, 20), (2, 1024, 77, 10), (2, 256, 77, 20)]
Forms = dict[str, Callable[..., Array]]
Sizes = list[tuple[int, ...]]


def main() -> None:
    """Measure, and record the results."""
    found = {}
    for dtype in ("float32", "bfloat16"):
        for name, forms, sizes in layers():
            found[f"{name}, {dtype}"] = measure(forms, sizes, dtype)
            print(f"{name}, {dtype}", found[f"{name}, {dtype}"], flush=True)
    report = {**record.head("benchmarks.cpu_layers"), "jax": jax.__version__, "milliseconds": found}
    print(record.save("cpu-layers", report))


def layers() -> Iterator[tuple[str, Forms, Sizes]]:
    """Yield each layer's name, its forms, and the shapes of its arguments."""
    contracted = (((1,), (0,)), ((), ()))
    forms: Forms = {
        "xla": partial(jax.lax.dot_general, dimension_numbers=contracted),
        "here": partial(dot_general, dimension_numbers=contracted),
    }
    for rows, wide, out in PRODUCTS:
        yield f"product {rows}x{wide} by {wide}x{out}", forms, [(rows, wide), (wide, out)]
    padding = ((1, 1), (1, 1))
    forms = {
        "xla": lambda x, kernel: jax.lax.conv_general_dilated(
            x, kernel, (1, 1), padding, dimension_numbers=LAYOUT
        ),
        "here": partial(convolution, strides=(1, 1), padding=padding),
    }
    for count, side, width in CONVOLUTIONS:
        sizes = [(count, side, side, width), (3, 3, width, width)]
        yield f"convolution {count}, {side}x{side}, {width}", forms, sizes
    for count, queries, keys, heads in ATTENTION:
        width = HEAD * heads
        to_itself, to_keys = [(count, queries, 3 * width)], [(count, queries, width)]
        to_keys.append((count, keys, 2 * width))
        ours = self_attention if keys == queries else cross_attention
        forms = {"xla": partial(plain_attention, heads), "here": partial(ours, heads=heads)}
        name = f"attention {count}, {queries} to {keys}, {heads} heads"
        yield name, forms, to_itself if keys == queries else to_keys


def plain_attention(heads: int, *projections: Array) -> Array:
    """Compute attention with `jax.nn`; the projections hold query, key and value side by side."""
    query, key, value = (
        part.reshape(*part.shape[:2], heads, HEAD)
        for x in projections
        for part in jnp.split(x, x.shape[-1] // (HEAD * heads), axis=-1)
    )
    return attention(query, key, value)


def measure(forms: Forms, sizes: Sizes, dtype: DTypeLike) -> dict[str, float]:
    """Return the shortest run of each form, in milliseconds."""
    arrays = [jax.random.normal(jax.random.key(i), size, dtype) for i, size in enumerate(sizes)]
    options = {"xla": None, "here": compiler_options(jax.devices()[0], arrays[0].dtype)}
    made = {
        name: jax.jit(form).lower(*arrays).compile(options[name]) for name, form in forms.items()
    }
    taken = {name: [] for name in made}
    for _ in range(REPEATS):
        for name, form in made.items():
            begin = time.perf_counter()
            form(*arrays).block_until_ready()
            taken[name].append(1000 * (time.perf_counter() - begin))
    return {name: round(min(times), 1) for name, times in taken.items()}


if __name__ == "__main__":
    main()
