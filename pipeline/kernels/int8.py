"""Matrix products and convolutions of 8-bit whole numbers, with kernels that are quantised once.

Quantisation is symmetric: a number is a whole one from -127 to 127 times a scale, by which the
largest number becomes 127. Each output channel of a kernel has its own scale. Inputs are quantised
in each call. The scale must be the same for all terms of a sum: a row of a matrix has one scale
(Dettmers et al. 2022, "LLM.int8()", section 2.1), and so has a picture of a convolution.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pipeline.kernels import rows
from pipeline.kernels.matmul_conv import LAYOUT, down_columns, goes_down_columns
from pipeline.platforms import PLAIN, by_platform

WIDENED = "float32"  # the form that holds the kernels in float32 too

LARGEST = 127
# Numbers below are taken for 0, so that rows and channels of zeros have a scale.
SMALLEST = 1e-30

# Computes sums of products of its two arguments, as 32-bit whole numbers or in float32.
Sums = Callable[..., Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Quantized:
    """A kernel in 8-bit whole numbers.

    Attributes:
        values: `[..., I, O]` int8.
        scale: `[O]` float32; the kernel is `values * scale`.
        dtype: the dtype of the kernel before it was quantised.
    """

    values: Any
    scale: Any
    dtype: Any = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the kernel, `[..., I, O]`."""
        return self.values.shape


def quantize_kernel(kernel: Array | np.ndarray) -> Quantized:
    """Quantise a kernel `[..., I, O]`, a JAX or a NumPy array, into arrays of the same kind."""
    xp = kernel.__array_namespace__()
    wide = kernel.astype(np.float32)
    axes = tuple(range(wide.ndim - 1))
    largest = xp.maximum(xp.max(wide, axis=axes), -xp.min(wide, axis=axes))
    scale = xp.maximum(largest, np.float32(SMALLEST)) / np.float32(LARGEST)
    return Quantized(xp.round(wide / scale).astype(np.int8), scale, kernel.dtype)


def product(x: Array, kernel: Quantized) -> Array:
    """Multiply `x` `[..., I]` by a kernel `[I, O]`.

    Returns:
        `[..., O]` float32.
    """
    values, scale = _quantized(x, (-1,))
    numbers = ((x.ndim - 1,), (0,)), ((), ())
    sums = partial(jax.lax.dot_general, dimension_numbers=numbers)
    return _sums(sums, values, kernel.values) * scale * kernel.scale


def convolution(
    x: Array, kernel: Quantized, strides: Sequence[int], padding: Sequence[tuple[int, int]]
) -> Array:
    """Convolve x `[B, H, W, I]` with a kernel `[h, w, I, O]`.

    Returns:
        `[B, H', W', O]` float32.
    """
    values, scale = _quantized(x, (1, 2, 3), rows.largest)
    values, padding = rows.with_neighbours(values, kernel.shape[0], strides[0], padding)
    sums = partial(
        jax.lax.conv_general_dilated,
        window_strides=strides,
        padding=padding,
        dimension_numbers=LAYOUT,
    )
    by_taps = partial(_by_taps, strides, padding)
    forms: dict[str, Sums] = {"products": by_taps, "down columns": by_taps}
    if goes_down_columns(values, kernel.values, strides):
        forms["down columns"] = partial(_in_int32, partial(down_columns, padding))
    return _sums(sums, values, kernel.values, **forms) * scale * kernel.scale


def _by_taps(
    strides: Sequence[int], padding: Sequence[tuple[int, int]], x: Array, kernel: Array
) -> Array:
    """Convolve by a product for each tap.

    XLA's convolutions of 8 bits take twice as long on a TPU, and cuDNN has only some of them. The
    pixels are moved along their columns once for each column of the kernel, since that moves them
    within registers; rows only move their place in memory.
    """
    down, right = strides
    framed = jnp.pad(x, ((0, 0), *padding, (0, 0)))
    height, width = (
        size - taps + 1 for size, taps in zip(framed.shape[1:3], kernel.shape[:2], strict=True)
    )
    total = jnp.zeros((), jnp.int32)
    for j in range(kernel.shape[1]):
        columns = framed[:, :, j : j + width : right]
        for i in range(kernel.shape[0]):
            total += jax.lax.dot_general(
                columns[:, i : i + height : down],
                kernel[i, j],
                (((3,), (0,)), ((), ())),
                preferred_element_type=jnp.int32,
            )
    return total.astype(jnp.float32)


def _quantized(
    x: Array, axes: tuple[int, ...], largest_of: Callable[[Array], Array] = lambda numbers: numbers
) -> tuple[Array, Array]:
    """Quantise `x` with a scale for each sum over `axes`; return whole numbers and scales.

    `largest_of` turns the largest numbers of this device's part of the axes into those of all.
    """
    wide = x.astype(jnp.float32)
    largest = jnp.maximum(largest_of(jnp.abs(wide).max(axes, keepdims=True)), SMALLEST)
    return jnp.round(wide * (LARGEST / largest)).astype(jnp.int8), largest / LARGEST


def _sums(sums: Sums, x: Array, kernel: Array, **further_forms: Sums) -> Array:
    """Compute sums of products in float32; `further_forms` are by name."""
    forms = {PLAIN: partial(_in_int32, sums), WIDENED: partial(_in_float32, sums)} | further_forms
    return by_platform("int8", forms, x, kernel)


def _in_int32(sums: Sums, x: Array, kernel: Array) -> Array:
    return sums(x, kernel, preferred_element_type=jnp.int32).astype(jnp.float32)


def _in_float32(sums: Sums, x: Array, kernel: Array) -> Array:
    """Multiply the whole numbers in float32, for which a CPU has fast products.

    Sums below 2^24 are exact, and larger ones have the rounding of float32.
    """
    return sums(x.astype(jnp.float32), kernel.astype(jnp.float32))
