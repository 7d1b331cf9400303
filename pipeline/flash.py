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
# Of a score matrix in VMEM, for each head of a block. Measured in instructions, for a TPU v5e:
# benchmarks/results/.
BLOCK_ROWS = 512
BLOCK_COLUMNS = 1024


def head_size(heads: int, query: Array, key_value: Array | None = None) -> int:
    """Width of one head, given what `flash_attention` is given."""
    return query.shape[-1] // (heads if key_value is not None else 3 * heads)


def fits(heads: int, query: Array, key_value: Array | None = None) -> bool:
    """Whether the kernel can tell the heads apart, and share the sequences out in blocks."""
    size = head_size(heads, query, key_value)
    whole = size % LANES == 0 or (LANES % size == 0 and size * heads % LANES == 0)
    lengths = query.shape[1], (query if key_value is None else key_value).shape[1]
    return whole and None not in map(_block, lengths, (BLOCK_ROWS, BLOCK_COLUMNS))


def grid(heads: int, query: Array, key_value: Array | None = None) -> tuple[int, int, int, int]:
    """How often the kernel runs: pictures, groups of heads, blocks of queries and of keys."""
    lanes = max(LANES, head_size(heads, query, key_value))
    groups = heads * head_size(heads, query, key_value) // lanes
    rows, columns = query.shape[1], (query if key_value is None else key_value).shape[1]
    block_rows, block_columns = _block(rows, BLOCK_ROWS), _block(columns, BLOCK_COLUMNS)
    assert block_rows is not None
    assert block_columns is not None
    return len(query), groups, rows // block_rows, columns // block_columns


def flash_attention(
    heads: int, query: Array, key_value: Array | None = None, *, interpret: bool = False
) -> Array:
    """softmax(query key^T / sqrt(K)) value, the softmax in float32.

    Args:
        heads: N; each W / N wide. What `fits` says of all arguments must hold.
        query: `[B, L, W]`; without `key_value` `[B, L, 3 W]`, keys and values behind them.
        key_value: `[B, S, 2 W]`, keys before values.
        interpret: run the kernel on any platform, slowly; for tests.

    Returns `[B, L, W]`.
    """
    size = head_size(heads, query, key_value)
    width, lanes = size * heads, max(LANES, size)
    blocks = grid(heads, query, key_value)
    batch, groups, _, _ = blocks
    before = 0 if key_value is not None else groups  # groups of queries, where keys begin
    key_value = query if key_value is None else key_value
    rows, columns = query.shape[1], key_value.shape[1]
    block_rows, block_columns = rows // blocks[2], columns // blocks[3]

    def part(length: int, place: int, offset: int) -> pl.BlockSpec:
        """Block number `at[place]` of the sequence, group `offset + g` of the lanes."""
        return pl.BlockSpec((None, length, lanes), lambda b, g, *at: (b, at[place], offset + g))

    column = pltpu.VMEM((lanes // size, block_rows, 1), jnp.float32)
    return pl.pallas_call(
        partial(_kernel, scale=math.log2(math.e) / math.sqrt(size)),
        grid=blocks,
        in_specs=[
            part(block_rows, 0, 0),
            part(block_columns, 1, before),
            part(block_columns, 1, before + groups),
        ],
        out_specs=part(block_rows, 0, 0),
        out_shape=jax.ShapeDtypeStruct((batch, rows, width), query.dtype),
        scratch_shapes=[column, column, pltpu.VMEM((block_rows, lanes), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")
        ),
        # FLOPs as the matrix unit spends them: on all lanes, however narrow the head.
        cost_estimate=pl.CostEstimate(
            flops=4 * batch * heads * rows * columns * lanes,
            transcendentals=batch * heads * rows * columns,
            bytes_accessed=2 * batch * (rows + columns) * width * query.dtype.itemsize,
        ),
        interpret=interpret,
        name="flash_attention",
    )(query, key_value, key_value)


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
