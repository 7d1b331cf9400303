"""The classes of a GPU's kernels."""

import pytest

from benchmarks.gpu_profile import kind


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "attention"),
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32", "convolution"),
        ("cudnn::ops::nchwToNhwcKernel<__nv_bfloat16>", "copy and layout"),
        ("sm80_xmma_fprop_implicit_gemm_bf16_nhwckrsc_nhwc_tilesize128x128", "convolution"),
        ("nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_NNT", "matrix product"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int>", "matrix product"),
        ("gemm_fusion_dot_12", "matrix product"),
        ("input_reduce_fusion_12", "reduction"),
        ("input_convert_reduce_fusion_3", "reduction"),
        ("triton_softmax_7", "reduction"),
        ("loop_convert_fusion_5", "element by element"),
        ("wrapped_convert", "element by element"),
        ("loop_add_fusion", "element by element"),
        ("random_normal_fusion", "element by element"),
        ("loop_transpose_fusion", "copy and layout"),
        ("MemcpyD2D", "copy and layout"),
        ("something_else", "other"),
    ],
)
def test_kernels_are_classed_by_their_names(kernel: str, expected: str) -> None:
    assert kind(kernel) == expected
