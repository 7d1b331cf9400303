"""Attention as one TPU kernel that keeps the scores in VMEM, a block at a time (Dao et al. 2022).

A block of queries attends to all keys at once if VMEM has room for them; its softmax is then over
complete rows. In longer sequences it attends to one block of keys after another, and the partial
result is scaled down whenever a larger score turns up.

Heads lie side by side in the last axis, as the projections write them, and the kernel reads them
from there. This saves a transposition, and the padding of a 64-wide head to the 128 lanes of a
register. Masks separate heads that share 128 lanes. They cost the matrix unit nothing, because a
64-wide product takes as long as a 128-wide one.
"""

import math
from collections.abc import Sequence
from functools import partial, reduce
from itertools import product
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

LANES = 128
SUBLANES = 16  # rows of a bfloat16 register
# Shape of a block of scores in VMEM, for each head. It was chosen by the compiler's schedule for a
# TPU v5e: benchmarks/experiments.md.
BLOCK_ROWS = 512
BLOCK_COLUMNS = 1024
# Keys up to this size are not split: VMEM has room for them, the values and their scores.
WHOLE_BYTES = 2**20
WHOLE_ROWS = 1024  # up to this length, queries of such sequences are not split either


def fits(heads: int, *parts: jax.ShapeDtypeStruct | Array) -> bool:
    """Return whether the kernel can separate the heads and split the sequence into blocks."""
    _, length, size = _sizes(heads, parts[0])
    fills_lanes = size % LANES == 0 or (LANES % size == 0 and size * heads % LANES == 0)
    blocks = _blocks(length, len(parts), max(LANES, size), parts[0].dtype)
    return fills_lanes and None not in blocks


def grid(heads: int, *parts: jax.ShapeDtypeStruct | Array) -> tuple[int, int, int, int]:
    """Return the kernel's grid: number of pictures, head groups, query blocks and key blocks.

    A step of the grid takes a block of keys of every part.
    """
    batch, length, size = _sizes(heads, parts[0])
    lanes = max(LANES, size)
    rows, columns = _blocks(length, len(parts), lanes, parts[0].dtype)
    assert rows is not None
    assert columns is not None
    return batch, size * heads // lanes, length // rows, length // columns


def _sizes(heads: int, query_key_value: jax.ShapeDtypeStruct | Array) -> tuple[int, int, int]:
    """Return the batch size, the length of the sequence and the width of a head."""
    batch, length, width = query_key_value.shape
    return batch, length, width // (3 * heads)


def flash_attention(heads: int, *parts: Array, interpret: bool = False) -> Array:
    """Return softmax(query key^T / sqrt(K)) value of a sequence's first part with all its parts.

    The softmax is in float32. `fits` must hold for the arguments.

    Args:
        heads: the number N of heads; each is K = W / N wide.
        parts: `[B, L, 3 W]` each, queries, keys and values side by side; usually the whole sequence
            is one part.
        interpret: run the kernel on any platform, slowly; for tests.

    Returns:
        `[B, L, W]`.
    """
    batch, length, size = _sizes(heads, parts[0])
    width, lanes = size * heads, max(LANES, size)
    blocks = grid(heads, *parts)
    groups = blocks[1]  # of heads that share lanes
    rows, columns = length // blocks[2], length // blocks[3]

    def block(rows: int, place: int, offset: int) -> pl.BlockSpec:
        """Select block `at[place]` of the sequence and group `offset + g` of the lanes."""
        return pl.BlockSpec((None, rows, lanes), lambda b, g, *at: (b, at[place], offset + g))

    shared, keys, dtype = lanes // size, len(parts) * length, parts[0].dtype
    scale = math.log2(math.e) / math.sqrt(size)
    column = pltpu.VMEM((shared, rows, 1), jnp.float32)
    accumulator = pltpu.VMEM((rows, lanes), jnp.float32)
    at_once = columns == length
    return pl.pallas_call(
        partial(_at_once if at_once else _in_turn, shared=shared, scale=scale),
        grid=blocks,
        in_specs=[
            block(rows, 0, 0),
            *[block(columns, 1, groups), block(columns, 1, 2 * groups)] * len(parts),
        ],
        out_specs=block(rows, 0, 0),
        out_shape=jax.ShapeDtypeStruct((batch, length, width), dtype),
        scratch_shapes=[] if at_once else [column, column, accumulator],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")
        ),
        # The matrix unit spends FLOPs on all lanes, however narrow the head is.
        cost_estimate=pl.CostEstimate(
            flops=4 * batch * heads * length * keys * lanes,
            transcendentals=batch * heads * length * keys,
            bytes_accessed=2 * batch * (length + keys) * width * dtype.itemsize,
        ),
        interpret=interpret,
        name="flash_attention",
    )(parts[0], *(part for part in parts for _ in ("keys", "values")))


def _blocks(length: int, parts: int, lanes: int, dtype: DTypeLike) -> tuple[int | None, int | None]:
    """Return the rows of a block of queries and of a block of keys; None if no size divides.

    `length` is that of each part.
    """
    if parts * length * lanes * jnp.dtype(dtype).itemsize > WHOLE_BYTES:
        columns = max(1, BLOCK_COLUMNS // parts // SUBLANES) * SUBLANES
        return _share(length, BLOCK_ROWS), _share(length, columns)
    return length if length <= WHOLE_ROWS else _share(length, BLOCK_ROWS), length


def _share(length: int, limit: int) -> int | None:
    """Return the rows of a block, at most `limit`, when `length` is split into equal blocks.

    Blocks of a split sequence must fill whole registers; the result is None if that is impossible.
    """
    if length <= limit:
        return length
    return next((size for size in range(limit, 0, -SUBLANES) if length % size == 0), None)


def _at_once(q_ref, *refs, shared: int, scale: float):
    """Attend from one block of queries to all keys, for all heads that share its lanes."""
    *refs, out_ref = refs
    q, parts = q_ref[...], _keys_and_values(refs)
    head = _head_of_lane(q.shape[1], shared)
    out = jnp.zeros(q.shape, jnp.float32)
    for i in range(shared):
        lane_mask = head == i
        scores = [_scores(q, k, lane_mask) for k, _ in parts]
        largest = reduce(jnp.maximum, (part.max(axis=1, keepdims=True) for part in scores))
        weights = [jnp.exp2((part - largest) * scale) for part in scores]
        values = reduce(add, map(partial(_summed, lane_mask), weights, parts))
        if shared == 1:
            total = reduce(add, (part.sum(axis=1, keepdims=True) for part in weights))
        else:
            total = pltpu.roll(values, q.shape[1] // shared, axis=1)
        out = jnp.where(lane_mask, values / total, out)
    out_ref[...] = out.astype(out_ref.dtype)


def _keys_and_values(refs: Sequence[Any]) -> list[tuple[Array, Array]]:
    """Return the block of keys and that of values of each part."""
    return [(k[...], v[...]) for k, v in zip(refs[::2], refs[1::2], strict=True)]


def _summed(lane_mask: Array, weights: Array, part: tuple[Array, Array]) -> Array:
    """Return the weighted sums of one head's values, and in other heads' lanes of the weights."""
    _, v = part
    # Ones in the lanes of other heads let the matrix unit sum the weights at no extra cost.
    values_or_ones = jnp.where(lane_mask, v, jnp.ones_like(v))
    return jnp.dot(weights.astype(v.dtype), values_or_ones, preferred_element_type=jnp.float32)


def _in_turn(q_ref, *refs, shared: int, scale: float):
    """Attend from a block of queries to one of each part's keys, for all heads of its lanes."""
    *refs, out_ref, max_ref, sum_ref, acc_ref = refs
    step = pl.program_id(3)

    @pl.when(step == 0)
    def _start():
        max_ref[...] = jnp.full_like(max_ref, -jnp.inf)
        sum_ref[...] = jnp.zeros_like(sum_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    q = q_ref[...]
    head = _head_of_lane(q.shape[1], shared)
    for (k, v), i in product(_keys_and_values(refs), range(shared)):
        lane_mask = head == i
        scores = _scores(q, k, lane_mask)
        before = max_ref[i]
        after = jnp.maximum(before, scores.max(axis=1, keepdims=True))
        weights = jnp.exp2((scores - after) * scale)
        shrunk = jnp.exp2((before - after) * scale)
        sum_ref[i] = shrunk * sum_ref[i] + weights.sum(axis=1, keepdims=True)
        max_ref[i] = after
        values = jnp.dot(weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
        acc_ref[...] = jnp.where(lane_mask, shrunk * acc_ref[...] + values, acc_ref[...])

    @pl.when(step == pl.num_programs(3) - 1)
    def _finish():
        total = sum_ref[0]
        for i in range(1, shared):
            total = jnp.where(head == i, sum_ref[i], total)
        out_ref[...] = (acc_ref[...] / total).astype(out_ref.dtype)


def _head_of_lane(lanes: int, shared: int) -> Array:
    return jax.lax.div(jax.lax.broadcasted_iota(jnp.int32, (1, lanes), 1), lanes // shared)


def _scores(q: Array, k: Array, lane_mask: Array) -> Array:
    """Return the scores of one head; `lane_mask` is True in the head's lanes."""
    head_queries = jnp.where(lane_mask, q, jnp.zeros_like(q))
    return jax.lax.dot_general(
        head_queries, k, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )
