"""Products and convolutions in bfloat16 on a CPU, against XLA's own in float32."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from pipeline.kernels.matmul_conv import (
    LAYOUT,
    convolution,
    dot_general,
    down_columns,
    interleave,
    merged_upsample_kernels,
    upsample_kernel,
)
from pipeline.platforms import compiler_options

LAST_BIT = 2**-8  # relative size of bfloat16's last bit
CHANNELS = 64


def draw(*shape: int) -> Array:
    return jnp.asarray(np.random.default_rng(len(shape)).normal(size=shape), jnp.bfloat16)


def agree(ours: Array, right: Array) -> None:
    """Assert equality up to the last bit of bfloat16, or up to 1e-4 for sums near zero."""
    assert ours.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        np.asarray(ours, np.float32), np.asarray(right), rtol=LAST_BIT, atol=1e-4
    )


def product(x: Array, y: Array) -> Array:
    return dot_general(x, y, (((1,), (0,)), ((), ())))


def test_product() -> None:
    x, y = draw(9, 700), draw(700, 5)
    agree(product(x, y), x.astype(jnp.float32) @ y.astype(jnp.float32))


def plain(x: Array, kernel: Array, *window: Sequence[Any]) -> Array:
    return jax.lax.conv_general_dilated(x, kernel, *window, dimension_numbers=LAYOUT)


WINDOWS = {
    "3x3": (3, (1, 1), ((1, 1), (1, 1))),
    "1x1": (1, (1, 1), ((0, 0), (0, 0))),
    "2x2, above and to the right": (2, (1, 1), ((1, 0), (0, 1))),
    "to half the size": (3, (2, 2), ((1, 1), (1, 1))),
    "to half the size, as the VAE": (3, (2, 2), ((0, 1), (0, 1))),
}


@pytest.mark.parametrize("pixels", [1024, 40, 5])
@pytest.mark.parametrize("window", WINDOWS)
def test_convolution(window: str, pixels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolution is right for all pixels at once, for some rows at a time, and for long rows."""
    monkeypatch.setattr("pipeline.kernels.matmul_conv.PIXELS", pixels)
    size, strides, padding = WINDOWS[window]
    x, kernel = draw(2, 12, 10, CHANNELS), draw(size, size, CHANNELS, 70)
    right = plain(x.astype(jnp.float32), kernel.astype(jnp.float32), strides, padding)
    jax.clear_caches()  # PIXELS is not part of the trace's key
    agree(convolution(x, kernel, strides, padding), right)


@pytest.mark.parametrize("window", ["3x3", "2x2, above and to the right"])
def test_convolution_down_columns(window: str) -> None:
    """A TPU's form of convolutions is right for all windows that it has."""
    size, strides, padding = WINDOWS[window]
    x, kernel = draw(1, 12, 10, CHANNELS), draw(size, size, CHANNELS, 70)
    wide = x.astype(jnp.float32), kernel.astype(jnp.float32)
    found = down_columns(padding, *wide)
    np.testing.assert_allclose(found, plain(*wide, strides, padding), rtol=1e-5, atol=1e-4)


DOWN_COLUMNS = "dim_numbers = [0, b, f]"  # of a convolution along one axis, after the batch's


@pytest.mark.parametrize("platform", ["tpu", "cuda", "cpu"])
def test_only_a_tpu_convolves_down_columns(platform: str) -> None:
    x, kernel = draw(1, 8, 8, CHANNELS), draw(3, 3, CHANNELS, CHANNELS)
    assert (DOWN_COLUMNS in lowered(convolve, platform, x, kernel)) == (platform == "tpu")


@pytest.mark.parametrize(
    ("window", "shape"),
    [
        ("to half the size", (1, 8, 8)),
        ("1x1", (1, 8, 8)),
        ("3x3", (2, 8, 8)),
        ("3x3", (1, 1024, 1024)),
    ],
)
def test_other_convolutions_are_xlas_own_on_a_tpu(window: str, shape: tuple[int, ...]) -> None:
    """Batches, other strides, 1x1 kernels and large pictures have XLA's own form."""
    size, strides, padding = WINDOWS[window]

    def run(x: Array, kernel: Array) -> Array:
        return convolution(x, kernel, strides, padding)

    x = jnp.zeros((*shape, CHANNELS), jnp.bfloat16)
    text = lowered(run, "tpu", x, draw(size, size, CHANNELS, CHANNELS))
    assert "stablehlo.convolution" in text
    assert DOWN_COLUMNS not in text


def test_pixels_are_interleaved() -> None:
    """Each picture's pixels are at its own row and column of all 2x2 blocks."""
    places = [[draw(2, 3, 5, 4) * (1 + 2 * i + j) for j in range(2)] for i in range(2)]
    found = interleave(places)
    assert found.shape == (2, 6, 10, 4)
    for i, row in enumerate(places):
        for j, place in enumerate(row):
            np.testing.assert_array_equal(found[:, i::2, j::2], place)


def test_derivative() -> None:
    """Gradients are right, although pixels are moved as integers, which have no derivative."""
    x, kernel = draw(1, 8, 8, CHANNELS), draw(3, 3, CHANNELS, CHANNELS)
    window = (1, 1), ((1, 1), (1, 1))

    def gradients(form: Callable[..., Array]) -> tuple[Array, ...]:
        def squares(*factors: Array) -> Array:
            return (form(*factors, *window).astype(jnp.float32) ** 2).sum()

        return jax.grad(squares, (0, 1))(x, kernel)

    for mine, right in zip(gradients(convolution), gradients(plain), strict=True):
        scale = float(jnp.abs(right.astype(jnp.float32)).max())
        np.testing.assert_allclose(
            mine.astype(jnp.float32), right.astype(jnp.float32), atol=4 * LAST_BIT * scale
        )


def convolve(x: Array, kernel: Array) -> Array:
    return convolution(x, kernel, (1, 1), ((1, 1), (1, 1)))


def lowered(make: Callable[..., Array], platform: str, *factors: Array) -> str:
    return jax.jit(make).trace(*factors).lower(lowering_platforms=(platform,)).as_text()


def test_only_a_cpu_has_products_with_a_result_in_float32() -> None:
    """Only on CPUs do products of bfloat16 return float32, as XLA widens all others there."""
    x, y = draw(8, 64), draw(64, 8)
    wide = "(tensor<8x64xbf16>, tensor<64x8xbf16>) -> tensor<8x8xf32>"
    assert wide in lowered(product, "cpu", x, y)
    assert wide not in lowered(product, "tpu", x, y)


def test_only_a_cpu_convolves_by_products_and_only_in_bfloat16() -> None:
    x, kernel = draw(1, 8, 8, CHANNELS), draw(3, 3, CHANNELS, CHANNELS)
    assert "stablehlo.convolution" not in lowered(convolve, "cpu", x, kernel)
    assert "stablehlo.convolution" in lowered(convolve, "tpu", x, kernel)
    exact = (x.astype(jnp.float32), kernel.astype(jnp.float32))
    assert "stablehlo.convolution" in lowered(convolve, "cpu", *exact)


def test_a_cpu_has_eigen_convolve_in_float32() -> None:
    device, library = jax.devices("cpu")[0], "ynn_fusion"
    program = jax.jit(convolve).lower(
        jnp.ones((1, 8, 8, CHANNELS)), jnp.ones((3, 3, CHANNELS, CHANNELS))
    )
    assert library in (program.compile().as_text() or "")
    assert library not in (program.compile(compiler_options(device, jnp.float32)).as_text() or "")
    assert compiler_options(device, jnp.bfloat16) == {}


def test_merged_kernels_are_taken_apart() -> None:
    kernel = np.random.default_rng(0).normal(size=(3, 3, 5, 7)).astype(np.float32)
    apart = upsample_kernel(merged_upsample_kernels(kernel))
    np.testing.assert_allclose(apart, kernel, atol=1e-5)
