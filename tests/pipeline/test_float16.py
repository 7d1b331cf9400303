"""Networks in float16 with the VAE in float32, as on GPUs without bfloat16; here on a CPU."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pipeline import BUNDLED, SDXLPipeline
from pipeline.families import read_config
from pipeline.kernels.attention import cross_attention, self_attention
from pipeline.models.layers import GroupNorm, LayerNorm, gelu
from pipeline.platforms import PLATFORMS
from pipeline.runtime.loading import trace_networks
from tests.checkpoints import EXECUTABLES, SMALLEST
from tools.agreement import relative_error

FLOAT16 = np.dtype(np.float16)
LARGE = 3e4  # its square and the sum of a few of them are beyond float16's 65504


@pytest.fixture(autouse=True)
def mixed_dtypes() -> Iterator[None]:
    """Allow mixed dtypes: JAX's attention mixes them on purpose."""
    jax.config.update("jax_numpy_dtype_promotion", "standard")  # also in the threads that compile
    yield
    jax.config.update("jax_numpy_dtype_promotion", "strict")


def test_the_vae_stays_in_float32() -> None:
    networks = trace_networks(read_config(SMALLEST), FLOAT16)
    dtypes = {
        name: {leaf.dtype.name for leaf in jax.tree.leaves(nnx.state(network))}
        for name, network in networks.items()
    }
    assert dtypes.pop("vae") == {"float32"}
    assert dtypes.keys() == {"text_encoder", "text_encoder_2", "unet"}
    # Norms have their scales and biases in float32.
    assert set(map(frozenset, dtypes.values())) == {frozenset({"float16", "float32"})}


@pytest.mark.parametrize(
    ("layer", "shapes", "scale"),
    [
        (LayerNorm(64, 1e-5), [(1, 8, 64)], LARGE),
        (GroupNorm(64, 8, 1e-5), [(1, 4, 4, 64)], LARGE),
        (gelu, [(1, 64)], LARGE / 8),
        # Products of queries and keys of up to 64 * 300^2.
        (lambda x: self_attention(x, 1), [(1, 16, 192)], 300),
        (lambda query, both: cross_attention(query, both, 1), [(1, 16, 64), (1, 7, 128)], 300),
    ],
    ids=["LayerNorm", "GroupNorm", "GELU", "self-attention", "cross-attention"],
)
def test_large_activations_do_not_overflow(
    layer: Callable[..., jax.Array], shapes: list[tuple[int, ...]], scale: float
) -> None:
    rng = np.random.default_rng(0)
    arrays = [(scale * rng.uniform(-1, 1, shape)).astype(np.float16) for shape in shapes]
    exact = np.asarray(layer(*(jnp.asarray(array, jnp.float32) for array in arrays)))
    result = layer(*map(jnp.asarray, arrays))
    assert result.dtype == jnp.float16
    assert relative_error(np.asarray(result, np.float32), exact) < 2e-3


@pytest.mark.parametrize(
    ("model", "steps", "difference"),
    [(SMALLEST, 3, 1.0), pytest.param(BUNDLED, 4, 1.0, marks=pytest.mark.rare)],
    ids=["smallest", "miniature"],
)
def test_pictures_agree_with_float32(
    model: Path, steps: int, difference: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean difference of pixels is less than a shade."""
    pictures = {}
    for dtype in ("float32", "float16"):
        monkeypatch.setitem(PLATFORMS, "cpu", replace(PLATFORMS["cpu"], dtype=dtype))
        pipe = SDXLPipeline.from_pretrained(
            model, images_per_request=1, devices=jax.devices()[:1], cache_dir=EXECUTABLES
        )
        result = pipe.generate("a red star", seed=3, num_inference_steps=steps)
        pictures[dtype] = np.asarray(result.images[0], np.float32)
        assert pipe._compiled.target.dtype.name == dtype
        assert pipe._compiled.target.state_spec.latents.dtype == jnp.float32
    exact = pictures["float32"]
    assert exact.std() > 1
    assert 0 < np.abs(pictures["float16"] - exact).mean() < difference
