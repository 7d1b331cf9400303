"""Building blocks of the networks; test_golden checks whole networks."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pipeline.checkpoints.weights import shape_rngs
from pipeline.models.layers import (
    CrossAttention,
    GroupNorm,
    LayerNorm,
    ResnetBlock,
    SelfAttention,
    Upsample,
    conv,
    gelu,
    merge_kernels,
    sinusoid,
)
from tests.checkpoints import random_module


def options() -> dict[str, Any]:
    return {"dtype": jnp.float32, "rngs": shape_rngs()}


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("flip", [True, False])
def test_sinusoid(flip: bool) -> None:
    values = jnp.array([0.0, 1.0, 961.0])
    ours = np.asarray(sinusoid(values, 8, flip_sin_to_cos=flip, freq_shift=1.0))
    angles = [[value * 10000 ** (-i / 3) for i in range(4)] for value in (0, 1, 961)]
    cos = np.array([[math.cos(angle) for angle in row] for row in angles])
    sin = np.array([[math.sin(angle) for angle in row] for row in angles])
    right = np.concatenate([cos, sin] if flip else [sin, cos], axis=1)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, right, atol=2e-4)


def test_sinusoid_of_late_timesteps_is_the_same_when_compiled() -> None:
    """The compiler must not round the frequencies anew; timestep 999 magnifies such errors."""
    embed = partial(sinusoid, dim=320, flip_sin_to_cos=True, freq_shift=1.0)
    ours = np.asarray(jax.jit(embed)(jnp.array([999.0])))
    exponents = np.arange(160, dtype=np.float32) * np.float32(-math.log(10000)) / np.float32(159)
    angles = np.float32(999) * np.exp(exponents.astype(float)).astype(np.float32)
    np.testing.assert_allclose(ours[0, :160], np.cos(angles.astype(float)), atol=5e-7)


@pytest.mark.parametrize("fold", [False, True])
def test_upsample_is_a_convolution_of_repeated_pixels(fold: bool) -> None:
    upsample = random_module(lambda: Upsample(4, **options()))
    x = normal(2, 3, 5, 4)
    repeated = jnp.asarray(x.repeat(2, axis=1).repeat(2, axis=2))
    assert upsample.bias is not None
    assert upsample.kernel is not None
    axes = ("NHWC", "HWIO", "NHWC")
    kernel = upsample.kernel[...]
    right = jax.lax.conv_general_dilated(repeated, kernel, (1, 1), "SAME", dimension_numbers=axes)
    right = right + upsample.bias[...]
    if fold:
        merge_kernels(upsample)
        assert upsample.kernel is None
    np.testing.assert_allclose(jax.jit(lambda x: upsample(x))(x), right, atol=1e-5)


def test_convolutions_keep_or_halve_the_size() -> None:
    def size(**changes: Any) -> tuple[int, ...]:
        return jax.eval_shape(lambda x: conv(4, 6, **changes, **options())(x), x).shape

    x = normal(1, 8, 6, 4)
    assert size() == size(kernel=1) == (1, 8, 6, 6)
    assert size(stride=2) == size(stride=2, padding=(0, 1)) == (1, 4, 3, 6)


def test_group_norm_of_a_large_mean() -> None:
    """Group norm is accurate at a large mean, where one-pass statistics would cancel."""
    x = 1000 + normal(1, 16, 16, 4)
    ours = np.asarray(jax.jit(lambda x: GroupNorm(4, 2, 1e-6)(x))(x))
    groups = ours.reshape(256, 2, 2)
    np.testing.assert_allclose(groups.mean((0, 2)), 0, atol=1e-3)
    np.testing.assert_allclose(groups.std((0, 2)), 1, atol=1e-3)


def test_resnet_block_without_time() -> None:
    def make() -> ResnetBlock:
        return ResnetBlock(8, 8, groups=4, eps=1e-5, **options())

    block = nnx.eval_shape(make)
    assert block.conv_shortcut is None
    assert block.time_emb_proj is None
    assert jax.eval_shape(lambda x: make()(x), normal(2, 4, 4, 8)).shape == (2, 4, 4, 8)


def test_resnet_block_with_time_and_shortcut() -> None:
    block = random_module(lambda: ResnetBlock(8, 12, groups=4, eps=1e-5, time_dim=6, **options()))
    run = partial(nnx.jit(lambda block, x, time: block(x, time)), block)
    x, time = normal(2, 4, 4, 8), normal(2, 6)
    assert run(x, time).shape == (2, 4, 4, 12)
    assert np.abs(run(x, time) - run(x, 2 * time)).max() > 1e-3


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_group_norm_by_definition(dtype: Any) -> None:
    norm = random_module(lambda: GroupNorm(6, 3, 1e-5))
    x = np.asarray(jnp.asarray(3 * normal(2, 4, 8, 6) + 5 * np.arange(6), dtype), np.float32)
    grouped = x.reshape(2, 32, 3, 2)
    mean, variance = (f(grouped, axis=(1, 3), keepdims=True) for f in (np.mean, np.var))
    right = ((grouped - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape)
    right = right * np.asarray(norm.scale[...]) + np.asarray(norm.bias[...])
    ours = jax.jit(lambda x: norm(x))(jnp.asarray(x, dtype))
    assert ours.dtype == dtype
    tolerance = 1e-5 if dtype == jnp.float32 else 2e-2
    np.testing.assert_allclose(np.asarray(ours, np.float32), right, atol=tolerance)


@pytest.mark.parametrize("mean", [0, 100])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_layer_norm_by_definition(dtype: Any, mean: float) -> None:
    """Layer norm follows its definition, even at a large mean, where bfloat16 loses the detail."""
    norm = random_module(lambda: LayerNorm(512, 1e-5))
    given = jnp.asarray(3 * normal(2, 4, 512) + mean, dtype)
    x = np.asarray(given, np.float64)
    right = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    right = right * np.asarray(norm.scale[...]) + np.asarray(norm.bias[...])
    ours = jax.jit(lambda x: norm(x))(given)
    assert ours.dtype == dtype
    tolerance = 2e-5 if dtype == jnp.float32 else 2e-2
    np.testing.assert_allclose(np.asarray(ours, np.float32), right, atol=tolerance)


def test_cross_attention_reads_its_context() -> None:
    attend = random_module(lambda: CrossAttention(8, 12, 2, **options()))
    run = jax.jit(lambda x, context: attend(x, attend.to_kv(context)))
    x, context = normal(2, 5, 8), normal(2, 3, 12)
    assert run(x, context).shape == (2, 5, 8)
    assert np.abs(run(x, context) - run(x, -context)).max() > 1e-3
    # The order of the context's tokens does not matter.
    np.testing.assert_allclose(run(x, context[:, ::-1]), run(x, context), atol=1e-6)


@pytest.mark.parametrize("bias", [False, True])
def test_the_output_projection_always_has_a_bias(bias: bool) -> None:
    attend = nnx.eval_shape(lambda: SelfAttention(8, 2, bias=bias, **options()))
    assert (attend.to_qkv.bias is not None) == bias
    assert attend.to_out.bias is not None


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_gelu_by_definition(dtype: Any) -> None:
    given = jnp.linspace(-9, 9, 2001).astype(dtype)
    right = [x / 2 * math.erfc(-x * math.sqrt(0.5)) for x in np.asarray(given, np.float64)]
    ours = jax.jit(gelu)(given)
    assert ours.dtype == dtype
    last_bit = 0 if dtype == jnp.float32 else 2**-8
    np.testing.assert_allclose(np.asarray(ours, np.float64), right, rtol=last_bit, atol=1.5e-6)
