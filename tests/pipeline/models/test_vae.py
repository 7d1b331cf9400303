"""Both halves of the VAE; test_golden checks their values."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pipeline.checkpoints.weights import shape_rngs
from pipeline.models.vae import VAE
from tests.networks import VAE_CONFIG, vae


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_shapes(levels: int) -> None:
    config = replace(VAE_CONFIG, block_out_channels=(4,) * levels)
    module = nnx.eval_shape(lambda: VAE(config, dtype=jnp.float32, rngs=shape_rngs()))
    images = jax.ShapeDtypeStruct((2, 8, 12, 3), jnp.float32)
    factor = 2 ** (levels - 1)
    assert config.scale_factor == factor
    mean, logvar = nnx.eval_shape(lambda m, x: m.encode(x), module, images)
    assert mean.shape == logvar.shape == (2, 8 // factor, 12 // factor, 2)
    decoded = nnx.eval_shape(lambda m, z: m.decode(z), module, mean)
    assert decoded.shape == images.shape
    assert decoded.dtype == jnp.float32


def test_parts_that_the_config_leaves_out() -> None:
    config = replace(
        VAE_CONFIG, use_quant_conv=False, use_post_quant_conv=False, mid_block_add_attention=False
    )
    module = nnx.eval_shape(lambda: VAE(config, dtype=jnp.float32, rngs=shape_rngs()))
    names = {".".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(module))}
    assert not any("quant_conv" in name or "attention" in name for name in names)


def test_log_variance_is_bounded() -> None:
    mean, logvar = nnx.jit(lambda m, x: m.encode(x))(vae(VAE_CONFIG), 1e4 * jnp.ones((1, 8, 8, 3)))
    assert np.isfinite(mean).all()
    assert logvar.min() >= -30
    assert logvar.max() <= 20


def test_each_picture_is_decoded_alone() -> None:
    decode = nnx.jit(lambda m, z: m.decode(z))
    z = jnp.array(np.random.default_rng(0).normal(size=(2, 4, 4, 2)), jnp.float32)
    before, after = decode(vae(VAE_CONFIG), z), decode(vae(VAE_CONFIG), z.at[1].add(1))
    np.testing.assert_allclose(after[0], before[0], atol=1e-6)
    assert np.abs(after[1] - before[1]).max() > 1e-3
