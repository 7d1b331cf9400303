"""Attention as one TPU kernel: scores live in VMEM, a block at a time (Dao et al. 2022).

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

LANES = 128
SUBLANES = 16  # of a register of bfloat16
# Of a score matrix in VMEM, for each head of a block. Chosen by the compiler's schedule for a TPU
# v5e: benchmarks/README.md.
BLOCK_ROWS = 512
BLOCK_COLUMNS = 1024


def fits(heads: int, query_key_value: jax.ShapeDtypeStruct | Array) -> bool:
    """Whether the kernel can tell the heads apart, and share the sequence out in blocks."""
    _, length, size = _sizes(heads, query_key_value)
    whole = size % LANES == 0 or (LANES % size == 0 and size * heads % LANES == 0)
    return whole and None not in (_block(length, BLOCK_ROWS), _block(length, BLOCK_COLUMNS))


def grid(heads: int, query_key_value: jax.ShapeDtypeStruct | Array) -> tuple[int, int, int, int]:
    """How often the kernel runs: pictures, groups of heads, blocks of queries and of keys."""
    batch, length, size = _sizes(heads, query_key_value)
    block_rows, block_columns = _block(length, BLOCK_ROWS), _block(length, BLOCK_COLUMNS)
    assert block_rows is not None
    assert block_columns is not None
    groups = size * heads // max(LANES, size)
    return batch, groups, length // block_rows, length // block_columns


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

    column = pltpu.VMEM((lanes // size, rows, 1), jnp.float32)
    return pl.pallas_call(
        partial(_kernel, scale=math.log2(math.e) / math.sqrt(size)),
        grid=blocks,
        in_specs=[part(rows, 0, 0), part(columns, 1, groups), part(columns, 1, 2 * groups)],
        out_specs=part(rows, 0, 0),
        out_shape=jax.ShapeDtypeStruct((batch, length, width), query_key_value.dtype),
        scratch_shapes=[column, column, pltpu.VMEM((rows, lanes), jnp.float32)],
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


def _block(length: int, most: int) -> int | None:
    """The sequence in equal blocks of at most so many rows, each filling whole registers."""
    if length <= most:
        return length
    return next((size for size in range(most, 0, -SUBLANES) if length % size == 0), None)


def _kernel(q_ref, k_ref, v_ref, out_ref, max_ref, sum_ref, acc_ref, *, scale: float):
    """One block of queries against one of keys, for all heads that share its lanes."""
    step = pl.program_id(3)

    @pl.when(step == 0)
    def _start():
        max_ref[...] = jnp.full_like(max_ref, -jnp.inf)
        sum_ref[...] = jnp.zeros_like(sum_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    q, k, v = q_ref[...], k_ref[...], v_ref[...]
    shared = max_ref.shape[0]
    lane = jax.lax.broadcasted_iota(jnp.int32, q.shape, 1)
    head = jax.lax.div(lane, q.shape[1] // shared)
    for i in range(shared):
        mine = head == i
        own = jnp.where(mine, q, jnp.zeros_like(q))
        scores = jax.lax.dot_general(
            own, k, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )
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
