"""The TPU's attention kernel, interpreted, against XLA's attention of the same projections."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.kernels import flash_tpu
from pipeline.kernels.flash_tpu import fits, flash_attention


def draw(*shape: int, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), dtype)


def plain(heads: int, joined: jax.Array) -> np.ndarray:
    """Return XLA's attention of the joined projections, in float32."""
    arrays = jnp.split(joined.astype(jnp.float32), 3, axis=-1)
    q, k, v = (x.reshape(*x.shape[:2], heads, -1) for x in arrays)
    return np.asarray(jax.nn.dot_product_attention(q, k, v)).reshape(*joined.shape[:2], -1)


@pytest.mark.parametrize("size", [32, 64, 128, 256])
@pytest.mark.parametrize("blocks", [1, 3])
def test_heads_side_by_side(size: int, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A register's lanes hold four heads of 32 or two of 64; a head of 256 takes two registers."""
    heads = 256 // size
    joined = draw(2, 48, 3 * 256)
    monkeypatch.setattr(flash_tpu, "BLOCK_COLUMNS", 48 // blocks)
    monkeypatch.setattr(flash_tpu, "WHOLE_BYTES", 0)
    assert fits(heads, joined)
    assert flash_tpu.grid(heads, joined)[-1] == blocks
    ours = flash_attention(heads, joined, interpret=True)
    np.testing.assert_allclose(ours, plain(heads, joined), atol=1e-5)


@pytest.mark.parametrize(("columns", "blocks"), [(96, 1), (16, 6)])
def test_softmax_over_several_blocks(
    columns: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flash_tpu, "BLOCK_ROWS", 32)
    monkeypatch.setattr(flash_tpu, "WHOLE_ROWS", 32)
    monkeypatch.setattr(flash_tpu, "BLOCK_COLUMNS", columns)
    monkeypatch.setattr(flash_tpu, "WHOLE_BYTES", columns * 128 * 4)
    joined = draw(1, 96, 3 * 128)
    # Rows have their largest scores in different blocks, some in an early and some in a late one.
    joined = joined.at[0, ::50, 128:256].multiply(8)
    assert flash_tpu.grid(2, joined) == (1, 1, 3, blocks)
    ours = flash_attention(2, joined, interpret=True)
    np.testing.assert_allclose(ours, plain(2, joined), atol=1e-5)


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("blocks", [1, 2])
def test_several_parts_of_a_sequence(
    size: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their order does not matter, except that queries are those of the first."""
    heads = 256 // size
    joined = draw(2, 96, 3 * 256)
    first, second, third = jnp.split(joined, 3, axis=1)
    monkeypatch.setattr(flash_tpu, "BLOCK_COLUMNS", 96 // blocks)
    monkeypatch.setattr(flash_tpu, "WHOLE_BYTES", 96 * 128 * 4 if blocks == 1 else 0)
    parts = second, third, first
    assert fits(heads, *parts)
    assert flash_tpu.grid(heads, *parts) == (2, 2, 1, blocks)
    ours = flash_attention(heads, *parts, interpret=True)
    np.testing.assert_allclose(ours, plain(heads, joined)[:, 32:64], atol=1e-5)


@pytest.mark.parametrize("columns", [512, 128])
def test_bfloat16_stays_close_to_float32(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_tpu, "BLOCK_COLUMNS", columns)
    monkeypatch.setattr(flash_tpu, "WHOLE_BYTES", columns * 128 * 2)
    joined = draw(1, 512, 3 * 128, dtype=jnp.bfloat16)
    assert flash_tpu.grid(2, joined)[-1] == 512 // columns
    ours = flash_attention(2, joined, interpret=True)
    assert ours.dtype == jnp.bfloat16
    right = plain(2, joined)
    assert np.abs(np.asarray(ours, np.float32) - right).max() <= 2e-2 * np.abs(right).max()


@pytest.mark.parametrize(
    ("heads", "width", "length", "dtype", "blocks"),
    [
        (10, 640, 4096, jnp.bfloat16, (2, 5, 8, 1)),
        (10, 640, 4096, jnp.float32, (2, 5, 8, 4)),
        (20, 1280, 1024, jnp.float32, (2, 10, 1, 1)),
        (10, 640, 9216, jnp.bfloat16, (2, 5, 18, 9)),  # at 1536x1536
        (1, 512, 4096, jnp.bfloat16, (2, 1, 8, 4)),  # one head, four times as wide as others
    ],
)
def test_grid(
    heads: int, width: int, length: int, dtype: Any, blocks: tuple[int, int, int, int]
) -> None:
    joined = jax.ShapeDtypeStruct((2, length, 3 * width), dtype)
    assert flash_tpu.grid(heads, joined) == blocks


@pytest.mark.parametrize(
    ("heads", "width", "length", "right"),
    [
        (10, 640, 4096, True),  # SDXL at 1024x1024
        (20, 1280, 1024, True),
        (1, 512, 16384, True),  # SDXL's VAE
        (20, 1280, 1008, True),  # SDXL at 1152x896
        (10, 640, 4032, True),
        (8, 320, 4096, False),  # Stable Diffusion 1: heads of 40
        (1, 64, 256, False),  # fills half of a register's lanes
        (10, 640, 4356, False),  # not divisible into blocks of whole registers
    ],
)
def test_kernel_fits_only_some_shapes(heads: int, width: int, length: int, right: bool) -> None:
    assert fits(heads, jax.ShapeDtypeStruct((2, length, 3 * width), jnp.bfloat16)) == right
