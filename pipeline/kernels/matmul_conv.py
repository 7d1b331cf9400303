"""Products of matrices and convolutions, the one place that chooses their form by platform.

XLA's CPU backend widens the factors of a bfloat16 product first, unless the result is float32: only
then it has the processor's own products of them (AMX, AVX512_BF16). Convolutions in bfloat16 it
always widens. Everywhere else XLA's own operations are the best there is, in float32 on a CPU with
the second of its libraries (`compiler_options`): benchmarks/README.md.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

Numbers = Sequence[int]
Padding = Sequence[tuple[int, int]]
CompilerOptions = dict[str, str | bool]

# With fewer channels it takes longer to lay pixels side by side than to widen them.
CHANNELS = 64
# So many pixels have enough work for one product, and what it reads and writes stays in the cache.
PIXELS = 1024
LAYOUT = ("NHWC", "HWIO", "NHWC")


def compiler_options(device: jax.Device, dtype: DTypeLike) -> CompilerOptions:
    """What XLA is told of a program whose time goes to products and wide convolutions in `dtype`.

    For a CPU it has two libraries. YNNPACK, its first choice, is the only one with bfloat16 and
    sums over many pixels faster, but in float32 Eigen's convolutions and most of its products are.
    """
    if device.platform != "cpu" or dtype == jnp.bfloat16:
        return {}
    return {"xla_disable_hlo_passes": "dot-library-rewriter"}  # which chooses YNNPACK


def dot_general(lhs: Array, rhs: Array, dimension_numbers: Any, **_: Any) -> Array:
    """`jax.lax.dot_general` for factors of the same dtype, which is the result's too."""
    product = partial(jax.lax.dot_general, dimension_numbers=dimension_numbers)
    if lhs.dtype != jnp.bfloat16:
        return product(lhs, rhs)
    wide = partial(product, preferred_element_type=jnp.float32)
    return jax.lax.platform_dependent(
        lhs, rhs, cpu=lambda x, y: wide(x, y).astype(x.dtype), default=product
    )


def convolution(x: Array, kernel: Array, strides: Numbers, padding: Padding, **_: Any) -> Array:
    """`[B, H, W, I]` by `[h, w, I, O]` -> `[B, H', W', O]`, in the dtype that both have."""
    return _convolve((tuple(strides), tuple(padding)), x, kernel)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _by_platform(window: tuple[Numbers, Padding], x: Array, kernel: Array) -> Array:
    plain = partial(_plain, window)
    if x.dtype != jnp.bfloat16 or min(kernel.shape[2:]) < CHANNELS:
        return plain(x, kernel)
    return jax.lax.platform_dependent(x, kernel, cpu=partial(_on_cpu, window), default=plain)


def _forward(window: tuple[Numbers, Padding], *factors: Array) -> tuple[Array, Any]:
    """Words of bits have no derivative; training takes the plain form."""
    return jax.vjp(partial(_plain, window), *factors)


def _backward(window: tuple[Numbers, Padding], pull: Any, gradient: Array) -> tuple[Array, ...]:
    return pull(gradient)


_by_platform.defvjp(_forward, _backward)
_convolve = jax.jit(_by_platform, static_argnums=0)  # layers of the same shape share one trace


def _plain(window: tuple[Numbers, Padding], x: Array, kernel: Array) -> Array:
    return jax.lax.conv_general_dilated(x, kernel, *window, dimension_numbers=LAYOUT)


def _on_cpu(window: tuple[Numbers, Padding], x: Array, kernel: Array) -> Array:
    """As products, of as many rows of pixels at a time as make `PIXELS`, in bfloat16.

    Pixels are moved as words of bits, for XLA would widen bfloat16 to move it.
    """
    (stride, _), padding = window
    framed = jnp.pad(x.view(jnp.uint16), ((0, 0), *padding, (0, 0)))
    height, width = (
        (size - reach) // stride + 1
        for size, reach in zip(framed.shape[1:3], kernel.shape[:2], strict=True)
    )
    if len(x) * height * width <= PIXELS:
        return _product(framed, kernel, stride)
    fit = (n for n in range(1, height + 1) if height % n == 0 and n * width <= PIXELS)
    rows = max(fit, default=1)
    turns = height // rows

    def turn(i: Array) -> Array:
        begin = (i // turns, i % turns * rows * stride, 0, 0)
        size = (1, (rows - 1) * stride + len(kernel), *framed.shape[2:])
        part = jax.lax.dynamic_slice(framed, begin, size)
        return _product(part, kernel, stride).view(jnp.uint16)

    done = jax.lax.map(turn, jnp.arange(len(x) * turns))
    return done.view(x.dtype).reshape(len(x), height, width, -1)


def _product(framed: Array, kernel: Array, stride: int) -> Array:
    """Of words `[B, H, W, I]` and a kernel `[h, w, I, O]`, without padding, `[B, H', W', O]`.

    Pixels that a row of the kernel meets at once lie side by side: a product for every such row.
    """
    reach, across, *channels = kernel.shape
    height, width = framed.shape[1] - reach + 1, framed.shape[2] - across + 1
    beside = jnp.concatenate([framed[:, :, j : j + width : stride] for j in range(across)], -1)
    done = (
        jax.lax.dot_general(
            beside[:, i : i + height : stride].view(kernel.dtype),
            kernel[i].reshape(-1, channels[-1]),
            (((3,), (0,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        for i in range(reach)
    )
    return sum(done, start=jnp.float32(0)).astype(kernel.dtype)
