"""Evaluation of GPU measurements; only the measurements themselves need a GPU."""

import pytest

from benchmarks.gpu import compared
from benchmarks.gpu_profile import kind


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "attention"),
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32", "convolution"),
        ("nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_NNT", "matrix product"),
        ("input_reduce_fusion_12", "reduction"),
        ("loop_add_fusion", "element by element"),
        ("MemcpyD2D", "copy and layout"),
        ("something_else", "other"),
    ],
)
def test_kernels_are_classed_by_their_names(kernel: str, expected: str) -> None:
    assert kind(kernel) == expected


def test_rates_and_ratios() -> None:
    ours = {"request_seconds": 2.0, "matmul_tflops": 788.0}
    assert compared(2.0, ours, 1024) == {
        "tflops": 697.0,
        "share_of_matmul_rate": 0.885,
        "times_ours": 1.0,
    }
    assert compared(3.0, ours, 512) == {"times_ours": 1.5}
    assert compared(3.0, {"failed": "out of memory"}, 1024) == {}
