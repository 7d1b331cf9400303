"""Scaled dot-product attention in several forms, of which `pipeline.platforms` chooses one.

The forms are a Pallas kernel for TPUs, cuDNN's kernel for NVIDIA GPUs, and XLA's own operations in
two arrangements. No form ever holds more than `SCORE_BYTES` of scores.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from pipeline.platforms import PLAIN, PLATFORMS, by_platform, platform_of, trained_as

# Limit on the scores in memory at once. If all scores would take more, queries are processed in
# parts. The VAE's scores at 1024x1024, for example, would take a gigabyte for every picture.
SCORE_BYTES = 2**28
# Limit on the scores of the heads that a CPU processes at once, so that they stay in its cache.
CACHED_BYTES = 2**24
CUDNN_MAX_HEAD_SIZE = 128


def attention(
    query: Array, key: Array, value: Array, *, causal: bool = False, mask: Array | None = None
) -> Array:
    """Return softmax(query key^T / sqrt(K)) value, with the softmax in float32.

    All of it is in float32 for float16: JAX would ask for an algorithm that not every device has.

    Args:
        query: `[B, L, N, K]`.
        key: `[B, S, N, K]`, of the query's dtype.
        value: `[B, S, N, K]`, of the query's dtype.
        causal: position l attends only to positions up to l.
        mask: the keys to attend to, bool, of a shape that can be broadcast to `[B, N, L, S]`.

    Returns:
        `[B, L, N, K]` in the query's dtype.
    """
    dtype = jnp.float32 if query.dtype == jnp.float16 else query.dtype
    arrays = (x.astype(dtype) for x in (query, key, value))
    return jax.nn.dot_product_attention(*arrays, is_causal=causal, mask=mask).astype(query.dtype)


def self_attention(query_key_value: Array, heads: int, other_parts: Sequence[Array] = ()) -> Array:
    """Compute `attention` of a sequence to itself, without a mask, `[B, L, 3 W] -> [B, L, W]`.

    Queries, keys and values lie side by side in the last axis; each head is W / heads wide.
    `other_parts` are the projections of other parts of the sequence, to which it attends too. Each
    part is as long as the first.
    """
    return _of_projections(heads, query_key_value, *other_parts)


def cross_attention(
    query: Array, key_value: Array, heads: int, chunks: Array | None = None
) -> Array:
    """Compute `attention` of one sequence to another; return `[B, L, W]`.

    Args:
        query: `[B, L, W]`; each head is W / heads wide.
        key_value: `[B, S, 2 W]`, the other sequence's keys and values side by side; or with
            `chunks` `[B, C, S, 2 W]`, those of C chunks of it.
        heads: the number of heads.
        chunks: `[B]` int32, from 1 to C: the first chunks, to which alone it attends. The work
            grows with the largest of them, and if that is 1, the result is the same to the bit as
            without the others.
    """
    if chunks is None:
        return _of_projections(heads, query, key_value)

    def attend(count: int) -> Array:
        if count == 1:
            return _of_projections(heads, query, key_value[:, 0])
        batch, _, length, width = key_value.shape
        first = key_value[:, :count].reshape(batch, count * length, width)
        return _masked(heads, query, first, chunks * length)

    counts = range(1, key_value.shape[1] + 1)
    return jax.lax.switch(jnp.max(chunks) - 1, [partial(attend, count) for count in counts])


def _masked(heads: int, query: Array, key_value: Array, lengths: Array) -> Array:
    """Compute `cross_attention` to the first `lengths` `[B]` keys."""
    counts = jnp.arange(key_value.shape[1]) < lengths[:, None]  # [B, S]
    # Other keys may be anything, even NaN.
    query, key, value = _split(heads, query, jnp.where(counts[..., None], key_value, 0))
    mask = counts[:, None, None]
    outputs = _in_turns(
        lambda part: attention(part, key, value, mask=mask),
        query,
        key.shape[1],
    )
    return outputs.reshape(*outputs.shape[:2], -1)


def _plain(heads: int, *projections: Array) -> Array:
    query, key, value = _split(heads, *projections)
    outputs = _in_turns(lambda part: attention(part, key, value), query, key.shape[1])
    return outputs.reshape(*outputs.shape[:2], -1)


@trained_as(_plain)
def _of_projections(heads: int, *projections: Array) -> Array:
    """Compute `self_attention` of arrays of one shape, or `cross_attention` of two others."""
    # Importing Pallas takes time, and a process that only loads cached programs does not need it.
    from pipeline.kernels import flash_tpu

    forms: dict[str, Callable[..., Array]] = {
        PLAIN: partial(_by_heads, heads, SCORE_BYTES)
        if projections[0].dtype == jnp.float16
        else partial(_plain, heads),
        "cached": partial(_by_heads, heads, CACHED_BYTES),
    }
    # A prompt has few keys, and XLA's own operations beat the kernel: benchmarks/experiments.md.
    if _attend_to_themselves(*projections) and flash_tpu.fits(heads, *projections):
        forms["flash"] = partial(flash_tpu.flash_attention, heads)
    if _cudnn_fits(heads, *projections):
        forms["cudnn"] = partial(_cudnn, heads)
    return by_platform("attention", forms, *projections)


def _attend_to_themselves(*projections: Array) -> bool:
    """Return whether these are arguments of `self_attention`, not of `cross_attention`."""
    return all(part.shape == projections[0].shape for part in projections)


def _split(heads: int, *projections: Array) -> tuple[Array, Array, Array]:
    """Split projections into queries `[B, L, N, K]`, keys and values `[B, S, N, K]`."""
    if _attend_to_themselves(*projections):
        parts = [jnp.split(part, 3, axis=-1) for part in projections]
        query = parts[0][0]
        key, value = (jnp.concatenate([part[i] for part in parts], axis=1) for i in (1, 2))
    else:
        query, (key, value) = projections[0], jnp.split(projections[1], 2, axis=-1)
    query, key, value = (x.reshape(*x.shape[:2], heads, -1) for x in (query, key, value))
    return query, key, value


def _by_heads(heads: int, limit: int, *projections: Array) -> Array:
    """Attend for some heads of some pictures at a time, whose scores have at most `limit` bytes.

    On a CPU, XLA compiles each part to one kernel.
    """
    arrays = [
        x.swapaxes(1, 2).reshape(-1, x.shape[1], x.shape[3]) for x in _split(heads, *projections)
    ]  # [B * N, L, K] and [B * N, S, K]
    parts = _parts(len(arrays[0]), _score_bytes(arrays[0], arrays[1].shape[1]), limit)

    def turn(part_arrays: list[Array]) -> Array:
        query, key, value = part_arrays
        return _in_turns(lambda part: _unscaled(part, key, value), query, key.shape[1])

    outputs = jax.lax.map(turn, [x.reshape(parts, -1, *x.shape[1:]) for x in arrays])
    batch, length = projections[0].shape[:2]
    return outputs.reshape(batch, heads, length, -1).swapaxes(1, 2).reshape(batch, length, -1)


def _unscaled(query: Array, key: Array, value: Array) -> Array:
    """Compute `attention` of queries `[G, L, K]` to keys and values `[G, S, K]`.

    The product with the values comes first, the division by the sum of the weights last.
    """
    scores = jnp.einsum("glk,gsk->gls", query, key, preferred_element_type=jnp.float32)
    scores *= query.shape[-1] ** -0.5
    weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
    narrow_weights = weights.astype(value.dtype)
    sums = jnp.einsum("gls,gsk->glk", narrow_weights, value, preferred_element_type=jnp.float32)
    return (sums / weights.sum(axis=-1, keepdims=True)).astype(query.dtype)


def _in_turns(attend: Callable[[Array], Array], query: Array, keys: int) -> Array:
    """Apply `attend` to parts of the queries `[B, L, ..., K]` whose scores fit `SCORE_BYTES`."""
    parts = _parts(query.shape[1], _score_bytes(query, keys), SCORE_BYTES)
    if parts == 1:
        return attend(query)
    turns = query.reshape(len(query), parts, -1, *query.shape[2:])
    outputs = jax.lax.map(attend, jnp.moveaxis(turns, 1, 0))
    return jnp.moveaxis(outputs, 0, 1).reshape(query.shape)


def _score_bytes(query: Array, keys: int) -> int:
    """Return the bytes of float32 scores of queries `[..., K]` to `keys` keys each."""
    return 4 * math.prod(query.shape[:-1]) * keys


def _parts(length: int, size: int, limit: int) -> int:
    """Return the least divisor of `length` that is at least `size / limit`, or else `length`."""
    lower_bound = min(-(-size // limit), length)
    return next(n for n in range(lower_bound, length + 1) if length % n == 0)


def _cudnn_fits(heads: int, *projections: Array) -> bool:
    """Return whether cuDNN's kernel can be used.

    JAX looks for cuDNN while it traces, so the default backend must be a GPU.
    """
    size = projections[0].shape[-1] // heads // (3 if _attend_to_themselves(*projections) else 1)
    return (
        jax.default_backend() == "gpu"
        and platform_of(jax.devices()[0]) is not PLATFORMS["cuda before 8.0"]
        and projections[0].dtype in (jnp.bfloat16, jnp.float16)
        and size % 8 == 0
        and size <= CUDNN_MAX_HEAD_SIZE
    )


def _cudnn(heads: int, *projections: Array) -> Array:
    query, key, value = _split(heads, *projections)
    outputs = jax.nn.dot_product_attention(query, key, value, implementation="cudnn")
    return outputs.reshape(*outputs.shape[:2], -1)
