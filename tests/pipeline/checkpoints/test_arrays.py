"""Arrays in blocks of memory, and copies of tensors into them that keep every bit of a cast."""

import ml_dtypes
import numpy as np
import pytest

from pipeline.checkpoints import arrays

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def test_arrays_of_a_block_are_aligned_and_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 2**10)
    specs = [np.empty(3, np.float32), np.empty((5, 7), np.float16), np.empty(300), np.empty(2)]
    made = [*arrays.empty_arrays(specs)]
    for spec, array in zip(specs, made, strict=True):
        assert (array.shape, array.dtype) == (spec.shape, spec.dtype)
        assert array.ctypes.data % arrays.ALIGNMENT == 0
    for number, array in enumerate(made):
        array.fill(number)
    assert [set(np.unique(array)) for array in made] == [{0}, {1}, {2}, {3}]


@pytest.mark.parametrize("wanted", [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16, ml_dtypes.float8_e4m3fn])
def test_a_copy_has_the_bits_of_a_cast(dtype: np.dtype, wanted: np.dtype) -> None:
    size = np.dtype(dtype).itemsize
    step = 2**16 - 1 if size == 4 else 1
    numbers = np.arange(0, 2 ** (8 * size), step)[: 2**16].astype(f"u{size}").view(dtype)
    for shape, axes in (((-1,), (0,)), ((32, -1), (1, 0)), ((4, 64, -1), (2, 0, 1))):
        tensor = numbers[: len(numbers) // 256 * 256].reshape(shape)
        with np.errstate(all="ignore"):
            right = tensor.astype(wanted)
        result = np.empty(right.transpose(axes).shape, wanted)
        with np.errstate(all="ignore"):
            arrays.copy(tensor, result.transpose(np.argsort(axes)))
        bits = f"u{wanted.itemsize}"
        np.testing.assert_array_equal(result.view(bits), right.transpose(axes).view(bits))


def test_large_tensors_are_copied_whole() -> None:
    rng = np.random.default_rng(0)
    for shape in ((arrays.ROWS + 1, arrays.NUMBERS // arrays.ROWS + 3), (130, 70, 3, 3), (2, 0)):
        tensor = rng.standard_normal(shape).astype(np.float16)
        result = np.empty(shape[::-1], np.float32)
        arrays.copy(tensor, result.T)
        np.testing.assert_array_equal(result.T, tensor)
