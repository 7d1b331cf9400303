"""Layers whose kernels are 8-bit whole numbers, and the networks that have them.

Parameters keep the paths that they have without quantisation.
"""

import re
from collections.abc import Sequence
from typing import TypeVar, cast

import jax.numpy as jnp
from flax import nnx
from jax import Array

from pipeline.kernels import int8
from pipeline.kernels.int8 import Quantized, quantize_kernel

M = TypeVar("M", bound=nnx.Module)

# The values of `quantization`, beside None.
QUANTIZATIONS = ("int8",)


class _Quantized(nnx.Module):
    """A layer with an int8 kernel that takes the place of one with a kernel in floating point."""

    def __init__(self, layer: nnx.Linear | nnx.Conv):
        assert layer.kernel is not None
        self.kernel = nnx.Param(quantize_kernel(layer.kernel[...]))
        self.bias = layer.bias

    def _finish(self, sums: Array, x: Array) -> Array:
        """Add the bias to sums in float32, and return them in the dtype of the input."""
        if self.bias is not None:
            sums = sums + self.bias[...].astype(jnp.float32)
        return sums.astype(x.dtype)

    @property
    def _kernel(self) -> Quantized:
        return self.kernel.get_value()


class QuantizedLinear(_Quantized):
    """A linear layer, `[..., d_in] -> [..., d_out]`."""

    def __call__(self, x: Array) -> Array:
        """Apply the layer."""
        return self._finish(int8.product(x, self._kernel), x)


class QuantizedConv(_Quantized):
    """A square convolution, `[B, H, W, c_in] -> [B, H', W', c_out]`."""

    def __init__(self, layer: nnx.Conv):
        super().__init__(layer)
        # `layers.conv` gives both for each of the two axes.
        self.strides = cast(tuple[int, int], layer.strides)
        self.padding = cast(Sequence[tuple[int, int]], layer.padding)

    def __call__(self, x: Array) -> Array:
        """Apply the layer."""
        return self._finish(int8.convolution(x, self._kernel, self.strides, self.padding), x)


# Layers of other classes, such as `Upsample`, stay as they are.
QUANTIZED = {nnx.Linear: QuantizedLinear, nnx.Conv: QuantizedConv}


def quantize(network: M, layers: str) -> M:
    """Quantise linear layers and convolutions of a network in place, and return the network.

    Args:
        network: the network.
        layers: the layers to quantise: a regular expression that matches their whole paths, such
            as "down_blocks.0.resnets.0.conv1".
    """
    for path, part in [*nnx.iter_modules(network)]:
        for name, layer in [*vars(part).items()]:
            make = QUANTIZED.get(type(layer))
            if make is not None and re.fullmatch(layers, ".".join(map(str, (*path, name)))):
                setattr(part, name, make(layer))
    return network
