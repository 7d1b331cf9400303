"""Products and convolutions of 8-bit whole numbers, against NumPy's and against floats."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.kernels import int8
from pipeline.kernels.int8 import LARGEST, Quantized, quantize_kernel
from pipeline.platforms import PLATFORMS, Platform

Window = tuple[tuple[int, int], tuple[tuple[int, int], tuple[int, int]]]
# Strides and padding.
HALVING: Window = (2, 2), ((1, 0), (1, 1))
EQUAL: Window = (1, 1), ((1, 1), (1, 1))


@pytest.fixture(params=["float32", "plain", "products", "down columns"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let CPUs use each form."""
    monkeypatch.setitem(PLATFORMS, "cpu", Platform(int8=request.param))


def whole(*shape: int) -> np.ndarray:
    """Return whole numbers up to 127, with 127 in each row, column and picture: scales are 1."""
    drawn = np.random.default_rng(len(shape)).integers(-LARGEST, LARGEST, shape, endpoint=True)
    drawn[..., 0] = drawn[0] = LARGEST
    return drawn


def convolved(x: np.ndarray, kernel: np.ndarray, window: Window = HALVING) -> np.ndarray:
    """Convolve in NumPy, in the arrays' dtype."""
    (down, right), padding = window
    framed = np.pad(x, ((0, 0), *padding, (0, 0)))
    sizes = zip(framed.shape[1:3], kernel.shape[:2], (down, right), strict=True)
    height, width = ((size - taps) // stride + 1 for size, taps, stride in sizes)
    result = np.zeros((len(x), height, width, kernel.shape[-1]), x.dtype)
    for i, row in enumerate(kernel):
        for j, tap in enumerate(row):
            part = framed[:, i : i + down * height : down, j : j + right * width : right]
            result += part[:, :height, :width] @ tap
    return result


def product(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    def run(x: jax.Array, kernel: Quantized) -> jax.Array:  # a new one, which is traced anew
        return int8.product(x, kernel)

    return np.asarray(jax.jit(run)(x, quantize_kernel(kernel)))


def convolution(x: np.ndarray, kernel: np.ndarray, window: Window = HALVING) -> np.ndarray:
    def run(x: jax.Array, kernel: Quantized) -> jax.Array:
        return int8.convolution(x, kernel, *window)

    return np.asarray(jax.jit(run)(x, quantize_kernel(kernel)))


CASES: dict[str, tuple[Callable[..., np.ndarray], Callable[..., np.ndarray], tuple[Any, Any]]] = {
    "product": (product, np.matmul, ((2, 5, 40), (40, 7))),
    "convolution": (convolution, convolved, ((2, 6, 7, 40), (3, 3, 40, 5))),
    "convolution of one picture": (
        partial(convolution, window=EQUAL),
        partial(convolved, window=EQUAL),
        ((1, 6, 7, 40), (3, 3, 40, 5)),
    ),
}


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("case", CASES)
def test_whole_numbers_are_multiplied_exactly(case: str) -> None:
    run, right, shapes = CASES[case]
    x, kernel = (whole(*shape) for shape in shapes)
    drawn = run(x.astype(np.float32), kernel.astype(np.float32))
    assert drawn.dtype == np.float32
    np.testing.assert_array_equal(drawn, right(x, kernel))


@pytest.mark.parametrize("case", CASES)
def test_the_error_is_that_of_half_a_scale(case: str) -> None:
    run, right, shapes = CASES[case]
    rng = np.random.default_rng(0)
    x, kernel = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    axes = (-1,) if case == "product" else (1, 2, 3)
    half_x = np.broadcast_to(np.abs(x).max(axes, keepdims=True) / (2 * LARGEST), x.shape)
    half_kernel = np.broadcast_to(
        np.abs(kernel).max(tuple(range(kernel.ndim - 1))) / (2 * LARGEST), kernel.shape
    )
    bound = (
        right(np.abs(x), half_kernel) + right(half_x, np.abs(kernel)) + right(half_x, half_kernel)
    )
    error = np.abs(run(x, kernel) - right(x, kernel))
    assert (error <= 1.001 * bound).all()
    assert error.max() > 0.02 * bound.max()  # it was quantised at all


@pytest.mark.parametrize("case", ["product", "convolution"])
def test_rows_and_pictures_have_scales_of_their_own(case: str) -> None:
    run, _, shapes = CASES[case]
    x, kernel = (np.random.default_rng(0).normal(size=shape) for shape in shapes)
    x, kernel = x.astype(np.float32), kernel.astype(np.float32)
    alone, changed = run(x, kernel), x.copy()
    changed[1] *= 1000
    np.testing.assert_array_equal(run(changed, kernel)[0], alone[0])


def test_zeros_stay_zeros_and_what_is_not_finite_is_not_hidden() -> None:
    x = np.ones((4, 3), np.float32)
    kernel = np.array([[1, 0], [2, 0], [4, 0]], np.float32)
    x[1], x[2, 0], x[3, 0] = 0, np.nan, np.inf
    found = product(x, kernel)
    np.testing.assert_allclose(found[0], [7, 0], rtol=0.01)
    assert not found[1].any()
    assert not np.isfinite(found[2:, 0]).any()


def test_a_kernel_is_quantised_alike_on_the_host_and_on_a_device() -> None:
    kernel = np.random.default_rng(0).normal(size=(3, 3, 8, 4))
    own = quantize_kernel(kernel.astype(jnp.bfloat16))
    traced = quantize_kernel(jnp.asarray(kernel, jnp.bfloat16))
    assert (own.dtype, own.values.dtype, own.scale.dtype) == (jnp.bfloat16, np.int8, np.float32)
    assert own.shape == kernel.shape
    assert own.scale.shape == (4,)
    assert (np.abs(own.values).max((0, 1, 2)) == LARGEST).all()
    np.testing.assert_array_equal(own.values, traced.values)
    np.testing.assert_array_equal(own.scale, traced.scale)


@pytest.mark.parametrize(("platform", "factors"), [("tpu", "i8"), ("cuda", "i8"), ("cpu", "f32")])
def test_accelerators_multiply_whole_numbers(platform: str, factors: str) -> None:
    kernel = quantize_kernel(np.ones((8, 4), np.float32))
    traced = jax.jit(int8.product).trace(np.ones((2, 8), np.float32), kernel)
    lowered = traced.lower(lowering_platforms=(platform,)).as_text()
    [line] = (line for line in lowered.splitlines() if "dot_general" in line)
    result = "i32" if factors == "i8" else "f32"
    assert f"(tensor<2x8x{factors}>, tensor<8x4x{factors}>) -> tensor<2x4x{result}>" in line


@pytest.mark.parametrize(("platform", "products"), [("tpu", 0), ("cuda", 9), ("cpu", 0)])
def test_only_gpus_convolve_by_products(platform: str, products: int) -> None:
    kernel = quantize_kernel(np.ones((3, 3, 8, 4), np.float32))

    def run(x: jax.Array, kernel: Quantized) -> jax.Array:
        return int8.convolution(x, kernel, *EQUAL)

    traced = jax.jit(run).trace(np.ones((1, 4, 4, 8), np.float32), kernel)
    lowered = traced.lower(lowering_platforms=(platform,)).as_text()
    assert lowered.count("stablehlo.dot_general") == products
    assert ("stablehlo.convolution" in lowered) == (products == 0)
