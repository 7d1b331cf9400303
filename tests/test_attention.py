"""Attention against its definition, written out in NumPy."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.attention import attention


def by_definition(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> np.ndarray:
    scores = np.einsum("blnk,bsnk->bnls", q, k) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(*scores.shape[2:], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bnls,bsnk->blnk", weights, v)


def draw(*lengths: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(2, length, 3, 8)).astype(np.float32) for length in lengths]


@pytest.fixture
def mixed_dtypes() -> Iterator[None]:
    """JAX's own attention mixes bfloat16 and float32, on purpose."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("causal", [False, True])
def test_to_itself(causal: bool) -> None:
    q, k, v = draw(6, 6, 6)
    ours = attention(jnp.array(q), jnp.array(k), jnp.array(v), causal=causal)
    np.testing.assert_allclose(ours, by_definition(q, k, v, causal), atol=1e-5)


def test_to_a_context_of_another_length() -> None:
    q, k, v = draw(6, 9, 9)
    ours = attention(jnp.array(q), jnp.array(k), jnp.array(v))
    np.testing.assert_allclose(ours, by_definition(q, k, v, False), atol=1e-5)


@pytest.mark.usefixtures("mixed_dtypes")
def test_softmax_is_float32_where_the_network_is_bfloat16() -> None:
    """A thousand equal keys: each weight's rounding would add up."""
    q, k, v = (jnp.asarray(x, jnp.bfloat16) for x in draw(1, 1000, 1000))
    ours = attention(0 * q, k, v)
    assert ours.dtype == jnp.bfloat16
    mean = np.asarray(v, np.float32).mean(1, keepdims=True)
    np.testing.assert_allclose(np.asarray(ours, np.float32), mean, atol=2e-3)
