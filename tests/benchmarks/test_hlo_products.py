"""Products of a TPU's matrix unit: their FLOPs, and what the unit spends on padding."""

import pytest

from benchmarks.hlo import ArrayType, Instruction
from benchmarks.hlo_products import Product, product


def array(*shape: int) -> ArrayType:
    return ArrayType("bf16", shape, "")


def convolution(image: ArrayType, kernel: ArrayType, output: ArrayType, how: str) -> Product:
    instruction = Instruction("c", "convolution", (output,), ("a", "b"), f", {how}")
    return product(instruction, image, kernel)


def test_a_product_of_a_linear_layer() -> None:
    found = convolution(array(1024, 640), array(640, 320), array(1024, 320), "dim_labels=bf_io->bf")
    assert found.flops == 2 * 1024 * 640 * 320
    assert (found.contraction, found.rows, found.columns) == (640, 1024, 320)


def test_a_dot_with_a_batch() -> None:
    left, right = "lhs_batch_dims={0}, lhs_contracting_dims={2}", "rhs_batch_dims={0}"
    how = f", {left}, {right}, rhs_contracting_dims={{1}}"
    instruction = Instruction("d", "dot", (array(20, 1024, 77),), ("a", "b"), how)
    found = product(instruction, array(20, 1024, 64), array(20, 64, 77))
    assert found.flops == 2 * 20 * 1024 * 77 * 64
    assert (found.contraction, found.rows, found.columns) == (64, 1024, 77)


def test_a_convolution_sums_over_its_taps() -> None:
    how = "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f"
    found = convolution(array(1, 8, 8, 320), array(3, 3, 320, 64), array(1, 8, 8, 64), how)
    # Along each axis, 8 outputs meet 3 taps, less 2 at the edges.
    assert found.flops == 2 * 320 * 64 * 22 * 22
    assert (found.contraction, found.rows, found.columns) == (9 * 320, 64, 64)


def test_a_batched_product_written_as_a_convolution() -> None:
    """With the batch of 8 x 3 written as dilated axes, each output meets only one tap."""
    how = "window={size=8x3 stride=7x2 lhs_dilate=8x3}, dim_labels=0b1f_0o1i->01bf"
    found = convolution(array(8, 64, 3, 32), array(8, 64, 3, 32), array(8, 3, 64, 64), how)
    assert found.flops == 2 * 8 * 3 * 64 * 64 * 32
    assert (found.contraction, found.rows, found.columns) == (32, 64, 64)


@pytest.mark.parametrize(
    ("sides", "width", "factor"),
    [
        ((640, 1024, 1280), 128, 1),
        ((640, 1024, 1280), 256, 768 / 640),  # half of the last tile is idle
        ((64, 1024, 77), 128, 2),
        ((64, 1024, 77), 256, 4),
        ((1280, 100, 77), 128, 1.28),  # the keys would fill the unit less
    ],
)
def test_padding_to_the_units_width(sides: tuple[int, int, int], width: int, factor: float) -> None:
    contraction, rows, columns = sides
    made = Product(1000.0, contraction, rows, columns)
    assert made.padded(width) == pytest.approx(1000 * factor)


def test_a_kernel_states_what_it_spends() -> None:
    assert Product(1000.0).padded(256) == 1000
