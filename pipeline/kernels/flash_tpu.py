"""Attention as one TPU kernel: scores live in VMEM, a block at a time (Dao et al. 2022).

A block of queries meets all keys at once where VMEM has the room, and its softmax is then simply
that of its rows. Of longer sequences it meets them a block after the other, and what was found so
far is scaled down whenever a larger score turns up.

Heads lie side by side in the last axis, as projections leave them, and are read from there: no
transposition, and no padding of a 64-wide head to the 128 lanes of a register. Heads that share
128 lanes are told apart by masks, which costs the matrix unit nothing: a 64-wide product takes it
as long as a 128-wide one.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

LANES = 128
SUBLANES = 16  # of a register of bfloat16
# Of a score matrix in VMEM, for each head of a block. Chosen by the compiler's schedule for a TPU
# v5e: benchmarks/README.md.
BLOCK_ROWS = 512
BLOCK_COLUMNS = 1024
# Up to this size a sequence's keys are taken whole: they, the values and their scores have room.
WHOLE_BYTES = 2**20
WHOLE_ROWS = 1024  # and up to this length all queries at once too


def fits(heads: int, query_key_value: jax.ShapeDtypeStruct | Array) -> bool:
    """Whether the kernel can tell the heads apart, and share the sequence out in blocks."""
    _, length, size = _sizes(heads, query_key_value)
    fills_lanes = size % LANES == 0 or (LANES % size == 0 and size * heads % LANES == 0)
    return fills_lanes and None not in _blocks(length, max(LANES, size), query_key_value.dtype)


def grid(heads: int, query_key_value: jax.ShapeDtypeStruct | Array) -> tuple[int, int, int, int]:
    """How often the kernel runs: pictures, groups of heads, blocks of queries and of keys."""
    batch, length, size = _sizes(heads, query_key_value)
    lanes = max(LANES, size)
    rows, columns = _blocks(length, lanes, query_key_value.dtype)
    assert rows is not None
    assert columns is not None
    return batch, size * heads // lanes, length // rows, length // columns


def _sizes(heads: int, query_key_value: jax.ShapeDtypeStruct | Array) -> tuple[int, int, int]:
    """Batch, length of the sequence, width of a head."""
    batch, length, width = query_key_value.shape
    return batch, length, width // (3 * heads)


def flash_attention(heads: int, query_key_value: Array, *, interpret: bool = False) -> Array:
    """softmax(query key^T / sqrt(K)) value of a sequence with itself, the softmax in float32.

    Args:
        heads: N; each K = W / N wide. `fits` must hold.
        query_key_value: `[B, L, 3 W]`, side by side.
        interpret: run the kernel on any platform, slowly; for tests.

    Returns `[B, L, W]`.
    """
    batch, length, size = _sizes(heads, query_key_value)
    width, lanes = size * heads, max(LANES, size)
    blocks = grid(heads, query_key_value)
    groups = blocks[1]  # of heads that share lanes
    rows, columns = length // blocks[2], length // blocks[3]

    def part(rows: int, place: int, offset: int) -> pl.BlockSpec:
        """Block number `at[place]` of the sequence, group `offset + g` of the lanes."""
        return pl.BlockSpec((None, rows, lanes), lambda b, g, *at: (b, at[place], offset + g))

    shared = lanes // size
    scale = math.log2(math.e) / math.sqrt(size)
    column = pltpu.VMEM((shared, rows, 1), jnp.float32)
    accumulator = pltpu.VMEM((rows, lanes), jnp.float32)
    at_once = columns == length
    return pl.pallas_call(
        partial(_at_once if at_once else _in_turn, shared=shared, scale=scale),
        grid=blocks,
        in_specs=[part(rows, 0, 0), part(columns, 1, groups), part(columns, 1, 2 * groups)],
        out_specs=part(rows, 0, 0),
        out_shape=jax.ShapeDtypeStruct((batch, length, width), query_key_value.dtype),
        scratch_shapes=[] if at_once else [column, column, accumulator],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")
        ),
        # FLOPs as the matrix unit spends them: on all lanes, however narrow the head.
        cost_estimate=pl.CostEstimate(
            flops=4 * batch * heads * length**2 * lanes,
            transcendentals=batch * heads * length**2,
            bytes_accessed=4 * batch * length * width * query_key_value.dtype.itemsize,
        ),
        interpret=interpret,
        name="flash_attention",
    )(query_key_value, query_key_value, query_key_value)


def _blocks(length: int, lanes: int, dtype: DTypeLike) -> tuple[int | None, int | None]:
    """How many queries and keys are taken at once; None where no number is right."""
    if length * lanes * jnp.dtype(dtype).itemsize > WHOLE_BYTES:
        return _share(length, BLOCK_ROWS), _share(length, BLOCK_COLUMNS)
    return length if length <= WHOLE_ROWS else _share(length, BLOCK_ROWS), length


def _share(length: int, most: int) -> int | None:
    """The sequence in equal blocks of at most so many rows, each filling whole registers."""
    if length <= most:
        return length
    return next((size for size in range(most, 0, -SUBLANES) if length % size == 0), None)


def _at_once(q_ref, k_ref, v_ref, out_ref, *, shared: int, scale: float):
    """One block of queries against all keys, for all heads that share its lanes."""
    q, k, v = q_ref[...], k_ref[...], v_ref[...]
    head = _head_of_lane(q.shape[1], shared)
    out = jnp.zeros(q.shape, jnp.float32)
    for i in range(shared):
        mine = head == i
        scores = _scores(q, k, mine)
        weights = jnp.exp2((scores - scores.max(axis=1, keepdims=True)) * scale)
        # In the lanes of other heads the matrix unit sums up the weights meanwhile.
        values_or_ones = jnp.where(mine, v, jnp.ones_like(v))
        values = jnp.dot(
            weights.astype(v.dtype), values_or_ones, preferred_element_type=jnp.float32
        )
        if shared == 1:
            total = weights.sum(axis=1, keepdims=True)
        else:
            total = pltpu.roll(values, q.shape[1] // shared, axis=1)
        out = jnp.where(mine, values / total, out)
    out_ref[...] = out.astype(out_ref.dtype)


def _in_turn(q_ref, k_ref, v_ref, out_ref, max_ref, sum_ref, acc_ref, *, shared: int, scale: float):
    """One block of queries against one of keys, for all heads that share its lanes."""
    step = pl.program_id(3)

    @pl.when(step == 0)
    def _start():
        max_ref[...] = jnp.full_like(max_ref, -jnp.inf)
        sum_ref[...] = jnp.zeros_like(sum_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    q, k, v = q_ref[...], k_ref[...], v_ref[...]
    head = _head_of_lane(q.shape[1], shared)
    for i in range(shared):
        mine = head == i
        scores = _scores(q, k, mine)
        before = max_ref[i]
        after = jnp.maximum(before, scores.max(axis=1, keepdims=True))
        weights = jnp.exp2((scores - after) * scale)
        shrunk = jnp.exp2((before - after) * scale)
        sum_ref[i] = shrunk * sum_ref[i] + weights.sum(axis=1, keepdims=True)
        max_ref[i] = after
        values = jnp.dot(weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
        acc_ref[...] = jnp.where(mine, shrunk * acc_ref[...] + values, acc_ref[...])

    @pl.when(step == pl.num_programs(3) - 1)
    def _finish():
        total = sum_ref[0]
        for i in range(1, shared):
            total = jnp.where(head == i, sum_ref[i], total)
        out_ref[...] = (acc_ref[...] / total).astype(out_ref.dtype)


def _head_of_lane(lanes: int, shared: int) -> Array:
    return jax.lax.div(jax.lax.broadcasted_iota(jnp.int32, (1, lanes), 1), lanes // shared)


def _scores(q: Array, k: Array, mine: Array) -> Array:
    """Of one head, whose lanes are `mine`."""
    own = jnp.where(mine, q, jnp.zeros_like(q))
    return jax.lax.dot_general(own, k, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
