"""Scaled dot-product attention, the one place that chooses a kernel for it."""

import jax
from jax import Array


def attention(query: Array, key: Array, value: Array, *, causal: bool = False) -> Array:
    """softmax(query key^T / sqrt(K)) value, the softmax in float32.

    Args:
        query: `[B, L, N, K]`.
        key: `[B, S, N, K]`, of the query's dtype.
        value: `[B, S, N, K]`, of the query's dtype.
        causal: position l sees only positions up to l.

    Returns `[B, L, N, K]` in the query's dtype.
    """
    return jax.nn.dot_product_attention(query, key, value, is_causal=causal)
