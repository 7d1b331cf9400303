"""Layers whose rows are spread over four devices, against the same layers on one."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from pipeline.kernels import rows
from pipeline.models.layers import GroupNorm, SelfAttention, Upsample, conv
from pipeline.models.quantized import QuantizedConv
from tests.checkpoints import random_module

DEVICES, CHANNELS = 4, 8
assert_close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)


def draw(*shape: int, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), dtype)


def made(make: Callable[..., nnx.Module], *sizes: int, **more: Any) -> Any:
    """Return a layer with random parameters."""
    return random_module(lambda: make(*sizes, **more, dtype=jnp.float32, rngs=nnx.Rngs(0)))


def spread(layer: Callable[[jax.Array], jax.Array], x: jax.Array) -> np.ndarray:
    """Return a layer's result of all rows, from devices that have a band each.

    The axes are those over which a picture's devices share its rows in the VAE.
    """
    axes = ("guidance", "rows")
    mesh = Mesh(np.array(jax.devices()[:DEVICES]).reshape(2, 2), axes)

    @rows.spread(*axes)
    def band(x: jax.Array) -> jax.Array:
        assert rows.own(x).shape[1] == x.shape[1] // DEVICES
        return rows.whole(layer(rows.own(x)))

    mapped = jax.shard_map(band, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    return np.asarray(jax.jit(mapped)(x), np.float32)


@pytest.mark.parametrize(
    "window",
    [
        {},
        {"stride": 2},
        {"stride": 2, "padding": (0, 1)},  # the VAE's encoder
        {"kernel": 1},
        {"kernel": 5},
    ],
)
def test_convolutions(window: dict[str, Any]) -> None:
    layer = made(conv, CHANNELS, CHANNELS, **window)
    x = draw(2, 16, 6, CHANNELS)
    assert_close(spread(layer, x), layer(x))


@pytest.mark.parametrize("window", [{}, {"stride": 2}])
def test_convolutions_of_8_bit_numbers(window: dict[str, Any]) -> None:
    layer = QuantizedConv(made(conv, CHANNELS, CHANNELS, **window))
    # The largest number, which decides the scale, is in one band.
    x = draw(1, 16, 6, CHANNELS).at[0, 5].mul(10)
    assert_close(spread(layer, x), layer(x))


def test_upsampling() -> None:
    layer, x = made(Upsample, CHANNELS), draw(1, 4, 6, CHANNELS)  # a row on each device
    assert_close(spread(layer, x), layer(x))


@pytest.mark.parametrize(("dtype", "atol"), [(jnp.float32, 1e-5), (jnp.bfloat16, 0.05)])
def test_group_norm(dtype: Any, atol: float) -> None:
    layer = random_module(partial(GroupNorm, CHANNELS, 2, 1e-6))
    # Every device's band has a mean of its own.
    x = draw(2, 8, 3, CHANNELS, dtype=dtype) + jnp.arange(8, dtype=dtype)[:, None, None]
    whole = np.asarray(layer(x), np.float32)
    np.testing.assert_allclose(spread(layer, x), whole, atol=atol)


def test_self_attention_to_all_bands() -> None:
    layer, x = made(SelfAttention, 16, 2, bias=True), draw(2, 32, 16)
    assert_close(spread(layer, x), layer(x))


def test_without_axes_nothing_is_spread() -> None:
    x = draw(1, 4, 2, 2)
    assert rows.own(x) is x
    assert rows.whole(x) is x
    assert rows.mean(x) == (x,)
    assert rows.largest(x) is x
    assert rows.with_neighbours(x, 3, 1, ((1, 1), (1, 1))) == (x, ((1, 1), (1, 1)))
