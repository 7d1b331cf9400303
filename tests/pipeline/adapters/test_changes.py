"""Each kind of change is what its formula says, written out again here."""

import ml_dtypes
import numpy as np
import pytest

from pipeline.adapters.adapter import Change, Shape
from pipeline.adapters.reader import read_adapter
from tools.adapter_files import KINDS, Draw, Parts, write_adapter

SHAPES: dict[str, Shape] = {
    "linear": (12, 8),
    "wide": (6, 30),
    "pointwise": (9, 6, 1, 1),
    "kernel": (8, 12, 3, 3),
}
CASES = [(kind, name) for kind in KINDS for name in SHAPES]


def double(parts: Parts) -> dict[str, np.ndarray]:
    return {name: value.astype(np.float64) for name, value in parts.items()}


def product(parts: Parts, shape: Shape) -> np.ndarray:
    """Return the change at strength 1 without norms, element by element where that is clearer."""
    p = double(parts)
    kernel = shape[2:] or (1,)
    if "diff" in p:
        return p["diff"]
    if "lora_mid.weight" in p:
        up, down = p["lora_up.weight"][..., 0, 0], p["lora_down.weight"][..., 0, 0]
        scale = p["alpha"] / len(down)
        return scale * np.einsum("mn...,im,nj->ij...", p["lora_mid.weight"], up, down)
    if "lora_up.weight" in p:
        down = p["lora_down.weight"].reshape(-1, shape[1], *kernel)
        up = p["lora_up.weight"].reshape(shape[0], -1)
        return (p["alpha"] / len(down) * np.einsum("or,ri...->oi...", up, down)).reshape(shape)
    if "hada_t1" in p:
        halves = [
            np.einsum("ij...,ip,jr->pr...", p[f"hada_t{n}"], p[f"hada_w{n}_a"], p[f"hada_w{n}_b"])
            for n in (1, 2)
        ]
        return p["alpha"] / len(p["hada_w1_b"]) * halves[0] * halves[1]
    if "hada_w1_a" in p:
        halves = [p[f"hada_w{n}_a"] @ p[f"hada_w{n}_b"] for n in (1, 2)]
        return (p["alpha"] / len(p["hada_w1_b"]) * halves[0] * halves[1]).reshape(shape)
    return lokr(p, shape)


def lokr(p: Parts, shape: Shape) -> np.ndarray:
    left = p["lokr_w1"] if "lokr_w1" in p else p["lokr_w1_a"] @ p["lokr_w1_b"]
    low = [p[name] for name in ("lokr_w2_b", "lokr_w1_b") if name in p]
    scale = p["alpha"] / len(low[0]) if low else 1.0
    if "lokr_t2" in p:
        right = np.einsum("ij...,ip,jr->pr...", p["lokr_t2"], p["lokr_w2_a"], p["lokr_w2_b"])
    else:
        right = p["lokr_w2"] if "lokr_w2" in p else p["lokr_w2_a"] @ p["lokr_w2_b"]
    inner = (shape[0] // left.shape[0], shape[1] // left.shape[1], *shape[2:])
    right = right.reshape(inner)
    return scale * np.kron(left.reshape(*left.shape, *(1,) * len(shape[2:])), right)


def expected(parts: Parts, weight: np.ndarray, strength: float) -> np.ndarray:
    change = product(parts, weight.shape)
    if "dora_scale" in parts:
        changed = weight + change
        rows = parts["dora_scale"].shape[0] == weight.shape[0]
        axes = tuple(axis for axis in range(weight.ndim) if axis != (0 if rows else 1))
        norm = np.sqrt((changed**2).sum(axes, keepdims=True))
        change = changed * parts["dora_scale"] / norm - weight
    return strength * change


def read(tmp_path, parts: Parts, shape: Shape, dtype=np.float32) -> Change:
    inventory = {"unet": {"conv_in.weight": shape}}
    file = write_adapter(
        tmp_path / "a.safetensors", {("unet", "conv_in"): parts}, "kohya sd", inventory, dtype
    )
    return read_adapter(file, "a", inventory).changes["unet"]["conv_in.weight"]


@pytest.mark.parametrize(("kind", "layer"), CASES)
def test_kinds(tmp_path, kind: str, layer: str) -> None:
    shape = SHAPES[layer]
    parts = KINDS[kind](Draw(seed=3), shape)
    weight = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    kept = weight.copy()
    change = read(tmp_path, parts, shape)
    for strength in (1.0, -0.6):
        delta = change.delta(weight, strength)
        assert delta.dtype == np.float32
        right = expected(parts, weight, strength)
        assert np.abs(right).max() > 0.01
        np.testing.assert_allclose(delta, right, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(weight, kept)
    assert not change.delta(weight, 0.0).any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_can_be_asked_for_again(tmp_path, kind: str) -> None:
    """The file's values are not changed by their use."""
    shape = SHAPES["kernel"]
    change = read(tmp_path, KINDS[kind](Draw(seed=5), shape), shape)
    weight = np.ones(shape, np.float32)
    first = change.delta(weight, 0.5)
    np.testing.assert_array_equal(change.delta(weight, 0.5), first)


@pytest.mark.parametrize(
    "dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
)
@pytest.mark.parametrize("kind", ["lora", "tucker", "dora", "loha", "lokr", "full"])
def test_small_dtypes_are_read_exactly(tmp_path, kind: str, dtype: type) -> None:
    shape = SHAPES["kernel"]
    parts = {
        name: value.astype(dtype).astype(np.float32)
        for name, value in KINDS[kind](Draw(seed=4), shape).items()
    }
    weight = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    delta = read(tmp_path, parts, shape, dtype).delta(weight, 0.7)
    np.testing.assert_allclose(delta, expected(parts, weight, 0.7), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "layer"), CASES)
def test_factors_may_have_the_axes_of_a_kernel_or_not(tmp_path, kind: str, layer: str) -> None:
    """Files differ in the axes of length 1, and in whether a kernel is one axis or two."""
    shape = SHAPES[layer]
    parts = KINDS[kind](Draw(seed=6), shape)
    weight = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    right = read(tmp_path, parts, shape).delta(weight, 0.5)
    for name in parts.keys() - {"alpha", "dora_scale"}:
        value = parts[name]
        for other in (value.reshape(len(value), -1), value[..., None], value[..., None, None]):
            delta = read(tmp_path, {**parts, name: other}, shape).delta(weight, 0.5)
            np.testing.assert_allclose(delta, right, rtol=1e-5, atol=1e-6, err_msg=name)


def test_new_values_replace_the_old_ones(tmp_path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    change = read(tmp_path, {"set_weight": values}, (2, 3))
    weight = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(weight + change.delta(weight, 1.0), values)
    np.testing.assert_array_equal(change.delta(weight, 0.5), (values - weight) / 2)


def test_a_weight_without_length_gets_no_norm(tmp_path) -> None:
    """Nothing divides by zero where the norm of a row is zero."""
    parts = {
        "lora_down.weight": np.zeros((1, 3), np.float32),
        "lora_up.weight": np.zeros((2, 1), np.float32),
        "dora_scale": np.ones((2, 1), np.float32),
    }
    delta = read(tmp_path, parts, (2, 3)).delta(np.zeros((2, 3), np.float32), 1.0)
    np.testing.assert_array_equal(delta, np.zeros((2, 3)))
