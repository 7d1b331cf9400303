"""Matrix products and convolutions in several forms; `pipeline.platforms` chooses one.

XLA's CPU backend widens the factors of a bfloat16 product to float32, unless the result is float32.
Only then does it use the processor's own bfloat16 products (AMX, AVX512_BF16). It always widens
bfloat16 convolutions. In all other cases XLA's own operations are the fastest; in float32 on a CPU,
those of the second of its two libraries (see `platforms.compiler_options`). On a TPU, convolutions
have another form than XLA's own. See benchmarks/experiments.md.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from pipeline.kernels import rows
from pipeline.platforms import PLAIN, by_platform, trained_as

A = TypeVar("A", Array, np.ndarray)

Numbers = Sequence[int]
Padding = Sequence[tuple[int, int]]

# With fewer channels, laying pixels side by side takes longer than widening them.
CHANNELS = 64
# Pixels per product: enough work for one product, few enough for its data to stay in the cache.
PIXELS = 1024
LAYOUT = ("NHWC", "HWIO", "NHWC")
# The most pixels of a picture whose convolutions go down its columns on a TPU.
PIXELS_DOWN_COLUMNS = 2**19


def dot_general(lhs: Array, rhs: Array, dimension_numbers: Any, **_: Any) -> Array:
    """Compute `jax.lax.dot_general` of factors of the same dtype, in that dtype."""
    product = partial(jax.lax.dot_general, dimension_numbers=dimension_numbers)
    if lhs.dtype != jnp.bfloat16:
        return product(lhs, rhs)
    wide = partial(product, preferred_element_type=jnp.float32)
    forms = {PLAIN: product, "accumulated in float32": lambda x, y: wide(x, y).astype(x.dtype)}
    return by_platform("product", forms, lhs, rhs)


def convolution(x: Array, kernel: Array, strides: Numbers, padding: Padding, **_: Any) -> Array:
    """Convolve x `[B, H, W, I]` with a kernel `[h, w, I, O]` of the same dtype.

    Returns:
        `[B, H', W', O]`, in that dtype.
    """
    x, padding = rows.with_neighbours(x, len(kernel), strides[0], padding)
    return _convolve((tuple(strides), tuple(padding)), x, kernel)


def _plain(window: tuple[Numbers, Padding], x: Array, kernel: Array) -> Array:
    return jax.lax.conv_general_dilated(x, kernel, *window, dimension_numbers=LAYOUT)


@trained_as(_plain)
def _convolve(window: tuple[Numbers, Padding], x: Array, kernel: Array) -> Array:
    plain = partial(_plain, window)
    if x.dtype != jnp.bfloat16 or min(kernel.shape[2:]) < CHANNELS:
        return plain(x, kernel)
    forms = {PLAIN: plain, "products": partial(_by_products, window)}
    strides, padding = window
    if goes_down_columns(x, kernel, strides):
        forms["down columns"] = partial(down_columns, padding)
    return by_platform("convolution", forms, x, kernel)


def goes_down_columns(x: Array, kernel: Array | np.ndarray, strides: Numbers) -> bool:
    """Return whether `down_columns` is the faster form on a TPU, and possible.

    Larger pictures do not fit into a TPU's VMEM, and moving them takes longer than it saves.
    """
    _, height, width, _ = x.shape
    small = height * width <= PIXELS_DOWN_COLUMNS
    return len(x) == 1 and small and kernel.shape[1] > 1 and max(strides) == 1


def down_columns(
    padding: Padding, x: Array, kernel: Array, preferred_element_type: DTypeLike | None = None
) -> Array:
    """Convolve one picture with stride 1 down its columns, which are the entries of a batch.

    Each pixel has the channels of all that a row of the kernel reads around it. XLA for TPUs cuts a
    convolution of one picture along both axes into strips, and copies the picture before and after.
    It does not cut a batch of columns.

    Args:
        padding: that of rows and columns.
        x: `[1, H, W, I]`.
        kernel: `[h, w, I, O]`.
        preferred_element_type: the dtype of the result, where it is not the factors' own.

    Returns:
        `[1, H', W', O]`.
    """
    rows, columns = padding
    # An axis of length 1 among those of the convolution would leave a TPU's registers nearly empty.
    framed = jnp.pad(x[0], ((0, 0), columns, (0, 0)))
    down = jax.lax.conv_general_dilated(
        _side_by_side(framed, kernel.shape[1], 1),
        kernel.reshape(len(kernel), -1, kernel.shape[-1]),
        window_strides=(1,),
        padding=(rows,),
        dimension_numbers=("HNC", "HIO", "HNC"),
        preferred_element_type=preferred_element_type,
    )
    return down[None]


def _side_by_side(framed: Array, count: int, stride: int) -> Array:
    """Give each pixel of `[..., W, I]` the channels of `count` pixels, itself and those after it.

    Returns:
        `[..., (W - count) // stride + 1, count * I]`.
    """
    width = framed.shape[-2] - count + 1
    return jnp.concatenate([framed[..., j : j + width : stride, :] for j in range(count)], -1)


def _by_products(window: tuple[Numbers, Padding], x: Array, kernel: Array) -> Array:
    """Convolve in bfloat16 by matrix products, each over rows of at most `PIXELS` pixels in all.

    Pixels are moved as uint16 bit words, because XLA would widen bfloat16 to move it.
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
    """Convolve bit words `[B, H, W, I]` with a kernel `[h, w, I, O]`, without padding.

    The pixels that one row of the kernel reads are laid side by side, so that each row of the
    kernel takes one product.

    Returns:
        `[B, H', W', O]`, in the kernel's dtype.
    """
    reach, across, *channels = kernel.shape
    height = framed.shape[1] - reach + 1
    beside = _side_by_side(framed, across, stride)
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


def interleave(places: Sequence[Sequence[Array]]) -> Array:
    """Put four pictures `[B, H, W, C]` together, each with one pixel of every 2x2 block.

    Padding and adding take one pass over the result on every platform. A TPU takes five for
    stacking and a reshape.

    Args:
        places: the pictures by row and column in the block.

    Returns:
        `[B, 2H, 2W, C]`.
    """
    paddings = ((0, 1, 1), (1, 0, 1))  # zeros before, after and between
    zero = jnp.zeros((), places[0][0].dtype)
    padded_places = [
        jax.lax.pad(place, zero, ((0, 0, 0), rows, columns, (0, 0, 0)))
        for row, rows in zip(places, paddings, strict=True)
        for place, columns in zip(row, paddings, strict=True)
    ]
    return sum(padded_places[1:], start=padded_places[0])


def merged_upsample_kernels(kernel: A) -> A:
    """Return the four 2x2 kernels that replace upsampling by 2 and a 3x3 kernel `[3, 3, I, O]`.

    The result is `[2, 2, 2, 2, I, O]`: row and column in the 2x2 block of output pixels, then rows
    and columns of the kernel for that position. The kernel may be a JAX or NumPy array; the sums
    are in float32.
    """
    stack = kernel.__array_namespace__().stack

    def along(taps: A) -> A:
        """Sum three taps `[3, ...]` to two for each of two positions, `[2, 2, ...]`."""
        a, b, c = taps
        return stack([stack([a, b + c]), stack([a + b, c])])

    rows = along(kernel.astype(np.float32))  # [2, 2, 3, I, O]
    kernels = along(rows.transpose(2, 0, 1, 3, 4))  # [2, 2, 2, 2, I, O]: columns, then rows
    return kernels.transpose(2, 0, 3, 1, 4, 5).astype(kernel.dtype)


def upsample_kernel(merged: np.ndarray) -> np.ndarray:
    """Return the kernel `[3, 3, I, O]` of which `merged_upsample_kernels` made the four kernels.

    It is exact but for the rounding of the sums.
    """

    def apart(taps: np.ndarray) -> np.ndarray:
        """Take two taps for each of two positions, `[2, 2, ...]`, apart to three, `[3, ...]`."""
        (a, pair_sum), (_, c) = taps
        return np.stack([a, pair_sum - c, c])

    columns = apart(merged.transpose(1, 3, 0, 2, 4, 5))  # [3, 2, 2, I, O]: columns, then rows
    return apart(columns.transpose(1, 2, 0, 3, 4))
