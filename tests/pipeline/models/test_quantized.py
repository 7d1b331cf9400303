"""Layers with int8 kernels, in place of those that the networks are made of."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pipeline.checkpoints.weights import shape_rngs
from pipeline.models.layers import ResnetBlock, conv, linear
from pipeline.models.quantized import QuantizedConv, QuantizedLinear, quantize
from tests.checkpoints import random_module


class Three(nnx.Module):
    """A linear layer, a convolution to half the size, and a ResNet block."""

    def __init__(self, dtype: Any):
        given: dict[str, Any] = {"dtype": dtype, "rngs": shape_rngs()}
        self.linear = linear(8, 6, **given)
        self.down = conv(6, 4, stride=2, bias=False, **given)
        self.block = ResnetBlock(4, 8, groups=2, eps=1e-5, **given)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply the layers, `[B, H, W, 8] -> [B, H/2, W/2, 8]`."""
        return self.block(self.down(self.linear(x)))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_layers_compute_nearly_the_same(dtype: Any) -> None:
    network = random_module(lambda: Three(dtype))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 6, 8)), dtype)
    exact = np.asarray(network(x), np.float32)
    paths = [path for path, _ in nnx.to_flat_state(nnx.state(network))]
    ours = quantize(network, r"linear|down|block\.conv1")(x)
    assert ours.dtype == dtype
    error = np.abs(np.asarray(ours, np.float32) - exact)
    assert 0 < error.mean() < 0.02 * np.abs(exact).mean()
    assert isinstance(network.linear, QuantizedLinear)
    assert isinstance(network.down, QuantizedConv)
    assert isinstance(network.block.conv1, QuantizedConv)
    assert type(network.block.conv2) is type(network.block.conv_shortcut) is nnx.Conv
    assert [path for path, _ in nnx.to_flat_state(nnx.state(network))] == paths
