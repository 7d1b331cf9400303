"""Attention against its definition, written out in NumPy."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.kernels.attention import attention, cross_attention, self_attention


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
    """Allow mixed dtypes: JAX's own attention mixes bfloat16 and float32 on purpose."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_agrees_with_the_definition(causal: bool) -> None:
    q, k, v = draw(6, 6, 6)
    ours = attention(jnp.array(q), jnp.array(k), jnp.array(v), causal=causal)
    np.testing.assert_allclose(ours, by_definition(q, k, v, causal), atol=1e-5)


def test_cross_attention_agrees_with_the_definition() -> None:
    q, k, v = draw(6, 9, 9)
    ours = attention(jnp.array(q), jnp.array(k), jnp.array(v))
    np.testing.assert_allclose(ours, by_definition(q, k, v, False), atol=1e-5)


@pytest.mark.parametrize("counts", [(1, 1), (1, 3), (2, 2), (3, 1)])
def test_only_the_first_chunks_count(counts: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    query = rng.normal(size=(2, 6, 24)).astype(np.float32)
    chunks = rng.normal(size=(2, 3, 5, 48)).astype(np.float32)
    for row, count in enumerate(counts):
        chunks[row, count:] = np.nan
    run = jax.jit(lambda *given: cross_attention(given[0], given[1], 3, given[2]))
    found = run(query, chunks, jnp.array(counts, jnp.int32))
    alone = jax.jit(lambda q, kv: cross_attention(q, kv, 3))
    for row, count in enumerate(counts):
        own = chunks[row, :count].reshape(1, -1, 48)
        right = alone(query[row : row + 1], own)[0]
        np.testing.assert_allclose(found[row], right, atol=1e-6)
    if counts == (1, 1):
        np.testing.assert_array_equal(found, alone(query, chunks[:, 0]))


@pytest.mark.usefixtures("mixed_dtypes")
def test_softmax_is_float32_where_the_network_is_bfloat16() -> None:
    """The softmax is in float32; with a thousand equal weights, bfloat16 errors would add up."""
    q, k, v = (jnp.asarray(x, jnp.bfloat16) for x in draw(1, 1000, 1000))
    ours = attention(0 * q, k, v)
    assert ours.dtype == jnp.bfloat16
    mean = np.asarray(v, np.float32).mean(1, keepdims=True)
    np.testing.assert_allclose(np.asarray(ours, np.float32), mean, atol=2e-3)


def parts(*widths: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(2, 6, width)).astype(np.float32) for width in widths]


def heads_apart(x: np.ndarray) -> list[np.ndarray]:
    """Split queries, keys and values that are side by side; return each as `[2, 6, 3, 8]`."""
    return [part.reshape(2, 6, 3, 8) for part in np.split(x, x.shape[-1] // 24, axis=-1)]


HEAD_BYTES = 4 * 6 * 6
CUDNN = "jax._src.cudnn.fused_attention_stablehlo"


@pytest.mark.parametrize(
    ("score_bytes", "cached_bytes"),
    [(2**28, 2**24), (2**28, 2 * HEAD_BYTES), (HEAD_BYTES // 3, 2 * HEAD_BYTES)],
)
def test_attention_of_projections(
    score_bytes: int, cached_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention is the same for all heads at once, two heads at a time, or one query at a time."""
    monkeypatch.setattr("pipeline.kernels.attention.SCORE_BYTES", score_bytes)
    monkeypatch.setattr("pipeline.kernels.attention.CACHED_BYTES", cached_bytes)
    jax.clear_caches()  # the limits are not part of the trace's key
    joined, query, key_value = parts(72, 24, 48)
    right = by_definition(*heads_apart(joined), causal=False).reshape(2, 6, 24)
    run = jax.jit(lambda x: self_attention(x, 3))
    np.testing.assert_allclose(run(joined), right, atol=1e-5)
    right = by_definition(*heads_apart(query), *heads_apart(key_value), causal=False)
    run = jax.jit(lambda q, kv: cross_attention(q, kv, 3))
    np.testing.assert_allclose(run(query, key_value), right.reshape(2, 6, 24), atol=1e-5)


@pytest.mark.usefixtures("mixed_dtypes")
def test_attention_of_projections_in_bfloat16() -> None:
    [joined] = (jnp.asarray(x, jnp.bfloat16) for x in parts(72))
    ours = self_attention(joined, 3)
    assert ours.dtype == jnp.bfloat16
    right = by_definition(*heads_apart(np.asarray(joined, np.float32)), causal=False)
    np.testing.assert_allclose(np.asarray(ours, np.float32), right.reshape(2, 6, 24), atol=2e-2)


def test_scores_are_never_in_memory_whole() -> None:
    """The VAE's scores at 1024x1024, a gigabyte a picture, are never in memory at once."""
    shape = jax.ShapeDtypeStruct((1, 16384, 3 * 512), jnp.float32)
    compiled = jax.jit(lambda x: self_attention(x, 1)).lower(shape).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 2**30


def test_derivative() -> None:
    [joined] = parts(72)

    def plain(x: jax.Array) -> jax.Array:
        q, k, v = (part.reshape(2, 6, 3, 8) for part in jnp.split(x, 3, axis=-1))
        return (attention(q, k, v) ** 2).sum()

    ours = jax.jit(jax.grad(lambda x: (self_attention(x, 3) ** 2).sum()))(joined)
    np.testing.assert_allclose(ours, jax.jit(jax.grad(plain))(joined), atol=1e-5)


def test_a_tpu_gets_the_kernel_and_a_cpu_does_not() -> None:
    traced = jax.jit(lambda x: self_attention(x, 2)).trace(np.zeros((1, 256, 384), np.float32))
    assert "tpu_custom_call" in traced.lower(lowering_platforms=("tpu",)).as_text()
    assert "custom_call" not in traced.lower(lowering_platforms=("cpu",)).as_text()


def test_a_tpu_gets_no_kernel_for_few_keys() -> None:
    query, key_value = np.zeros((1, 256, 128), np.float32), np.zeros((1, 77, 256), np.float32)
    traced = jax.jit(lambda q, kv: cross_attention(q, kv, 2)).trace(query, key_value)
    assert "custom_call" not in traced.lower(lowering_platforms=("tpu",)).as_text()


@pytest.mark.usefixtures("mixed_dtypes")
def test_a_gpu_gets_cudnns_kernel_where_heads_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN's kernel is used where heads fit; lowered without a GPU, its checks are replaced."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for question in ("check_cudnn_version", "check_compute_capability"):
        monkeypatch.setattr(f"{CUDNN}.{question}", lambda *_: 91000)

    def kernels(attend: Callable[..., jax.Array], *widths: int) -> int:
        arrays = [jax.ShapeDtypeStruct((1, 77, width), jnp.bfloat16) for width in widths]
        lowered = jax.jit(attend).trace(*arrays).lower(lowering_platforms=("cuda",))
        return lowered.as_text().count("__cudnn$fmhaSoftmax")

    assert kernels(lambda x: self_attention(x, 2), 384) == 1
    assert kernels(lambda q, kv: cross_attention(q, kv, 2), 128, 256) == 1
    assert kernels(lambda x: self_attention(x, 1), 3 * 512) == 0  # the VAE's head is too wide
    old = SimpleNamespace(platform="gpu", compute_capability="7.5")
    monkeypatch.setattr(jax, "devices", lambda: [old])
    assert kernels(lambda x: self_attention(x, 4), 768) == 0  # and an old GPU has no such kernel


def test_float16_needs_no_algorithm_that_only_some_gpus_have() -> None:
    arrays = [jax.ShapeDtypeStruct((2, 77, width), jnp.float16) for width in (64, 128)]
    chunks = jax.ShapeDtypeStruct((2,), jnp.int32)
    chunked = jax.ShapeDtypeStruct((2, 3, 77, 128), jnp.float16)
    for run, inputs in (
        (lambda q, kv: cross_attention(q, kv, 1), arrays),
        (lambda q, kv, n: cross_attention(q, kv, 1, n), [arrays[0], chunked, chunks]),
        (lambda x: attention(*[x.reshape(2, 77, 1, 64)] * 3, causal=True), arrays[:1]),
    ):
        text = jax.jit(run).trace(*inputs).lower(lowering_platforms=("cuda",)).as_text()
        assert "dot_general" in text
        assert "algorithm" not in text
