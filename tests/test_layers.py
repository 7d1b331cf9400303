"""Building blocks; what whole networks compute is in test_golden."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pipeline.layers import Attention, ResnetBlock, conv, group_norm, sinusoid, upsample_nearest
from tests.checkpoints import random_module


def options() -> dict[str, Any]:
    return {"dtype": jnp.float32, "rngs": nnx.Rngs(0)}


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
    """The compiler must not round the frequencies anew: at 999 that shows a thousandfold."""
    embed = partial(sinusoid, dim=320, flip_sin_to_cos=True, freq_shift=1.0)
    ours = np.asarray(jax.jit(embed)(jnp.array([999.0])))
    exponents = np.arange(160, dtype=np.float32) * np.float32(-math.log(10000)) / np.float32(159)
    angles = np.float32(999) * np.exp(exponents.astype(float)).astype(np.float32)
    np.testing.assert_allclose(ours[0, :160], np.cos(angles.astype(float)), atol=5e-7)


def test_upsample_repeats_every_pixel() -> None:
    x = normal(2, 3, 5, 4)
    right = x.repeat(2, axis=1).repeat(2, axis=2)
    np.testing.assert_array_equal(upsample_nearest(jnp.array(x)), right)


def test_convolutions_keep_or_halve_the_size() -> None:
    def size(**changes: Any) -> tuple[int, ...]:
        return jax.eval_shape(lambda x: conv(4, 6, **changes, **options())(x), x).shape

    x = normal(1, 8, 6, 4)
    assert size() == size(kernel=1) == (1, 8, 6, 6)
    assert size(stride=2) == size(stride=2, padding=(0, 1)) == (1, 4, 3, 6)


def test_group_norm_of_a_large_mean() -> None:
    """Statistics in one pass would cancel here."""
    x = 1000 + normal(1, 16, 16, 4)
    ours = np.asarray(jax.jit(lambda x: group_norm(4, 2, 1e-6, **options())(x))(x))
    groups = ours.reshape(256, 2, 2)
    np.testing.assert_allclose(groups.mean((0, 2)), 0, atol=1e-3)
    np.testing.assert_allclose(groups.std((0, 2)), 1, atol=1e-3)


def test_resnet_block_without_time() -> None:
    def make() -> ResnetBlock:
        return ResnetBlock(8, 8, groups=4, eps=1e-5, **options())

    block = nnx.eval_shape(make)
    assert not hasattr(block, "conv_shortcut")
    assert not hasattr(block, "time_emb_proj")
    assert jax.eval_shape(lambda x: make()(x), normal(2, 4, 4, 8)).shape == (2, 4, 4, 8)


def test_resnet_block_with_time_and_shortcut() -> None:
    block = random_module(lambda: ResnetBlock(8, 12, groups=4, eps=1e-5, time_dim=6, **options()))
    run = partial(nnx.jit(lambda block, x, time: block(x, time)), block)
    x, time = normal(2, 4, 4, 8), normal(2, 6)
    assert run(x, time).shape == (2, 4, 4, 12)
    assert np.abs(run(x, time) - run(x, 2 * time)).max() > 1e-3


def test_attention_reads_its_context() -> None:
    make = partial(Attention, 8, 12, 2, bias=False)
    attend = jax.jit(lambda x, context: make(**options())(x, context))
    x, context = normal(2, 5, 8), normal(2, 3, 12)
    assert attend(x, context).shape == (2, 5, 8)
    assert np.abs(attend(x, context) - attend(x, -context)).max() > 1e-3
    # The order of the context's tokens does not matter.
    np.testing.assert_allclose(attend(x, context[:, ::-1]), attend(x, context), atol=1e-6)


def test_only_the_output_projection_always_has_a_bias() -> None:
    attend = nnx.eval_shape(lambda: Attention(8, 12, 2, bias=False, **options()))
    assert attend.to_q.bias is attend.to_k.bias is attend.to_v.bias is None
    assert attend.to_out.bias is not None
