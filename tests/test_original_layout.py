"""Tests of single files in the original layout."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from pipeline.checkpoints.tensors import open_tensors
from tests.checkpoints import GOLDEN, PLAIN
from tests.original_layout import EMA_FACTOR, export

SD_1, SD_2 = (GOLDEN / name / "checkpoint" for name in ("sd_1", "sd_2"))
VAE_NAMES = {
    "encoder.conv_in.weight",
    "encoder.down.0.block.0.norm1.weight",
    "encoder.down.0.downsample.conv.bias",
    "encoder.down.1.block.0.nin_shortcut.weight",
    "encoder.mid.attn_1.q.weight",
    "encoder.mid.attn_1.proj_out.bias",
    "encoder.mid.block_2.conv1.weight",
    "encoder.norm_out.weight",
    "decoder.mid.attn_1.norm.weight",
    "decoder.up.0.block.0.nin_shortcut.weight",
    "decoder.up.0.block.1.conv2.weight",
    "decoder.up.1.upsample.conv.weight",
    "quant_conv.weight",
    "post_quant_conv.bias",
}
RESBLOCK_NAMES = {
    "attn.in_proj_weight",
    "attn.in_proj_bias",
    "attn.out_proj.weight",
    "attn.out_proj.bias",
    "ln_1.weight",
    "ln_1.bias",
    "ln_2.weight",
    "ln_2.bias",
    "mlp.c_fc.weight",
    "mlp.c_fc.bias",
    "mlp.c_proj.weight",
    "mlp.c_proj.bias",
}


def read(file: Path) -> dict[str, np.ndarray]:
    with safe_open(file, framework="np") as tensors:
        return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118


def below(tensors: dict[str, np.ndarray], prefix: str) -> set[str]:
    return {name.removeprefix(prefix) for name in tensors if name.startswith(prefix)}


def test_names_of_stable_diffusion_1(tmp_path: Path) -> None:
    export(SD_1, tmp_path / "model.safetensors")
    tensors = read(tmp_path / "model.safetensors")
    assert {name.split(".")[0] for name in tensors} == {
        "model",
        "first_stage_model",
        "cond_stage_model",
    }
    assert below(tensors, "first_stage_model.") >= VAE_NAMES
    clip = below(tensors, "cond_stage_model.transformer.text_model.")
    assert "encoder.layers.0.self_attn.q_proj.weight" in clip
    assert "embeddings.position_ids" not in clip
    unet = below(tensors, "model.diffusion_model.")
    assert "input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight" in unet
    assert tensors["first_stage_model.decoder.mid.attn_1.q.weight"].shape[2:] == (1, 1)


@pytest.mark.parametrize(
    ("source", "component", "prefix"),
    [
        (SD_2, "text_encoder", "cond_stage_model.model."),
        (PLAIN, "text_encoder_2", "conditioner.embedders.1.model."),
    ],
)
def test_open_clip(source: Path, component: str, prefix: str, tmp_path: Path) -> None:
    export(source, tmp_path / "model.safetensors")
    tensors = read(tmp_path / "model.safetensors")
    names = below(tensors, prefix)
    assert {n.split(".", 3)[-1] for n in names if ".resblocks.0." in n} == RESBLOCK_NAMES
    with open_tensors(source / component) as theirs:
        values = {name.removeprefix("text_model."): t.read() for name, t in theirs.items()}
    attention = "encoder.layers.1.self_attn."
    np.testing.assert_array_equal(
        tensors[f"{prefix}transformer.resblocks.1.attn.in_proj_weight"],
        np.concatenate([values[f"{attention}{part}_proj.weight"] for part in "qkv"]),
    )
    if "text_projection" in names:
        np.testing.assert_array_equal(
            tensors[f"{prefix}text_projection"], values["text_projection.weight"].T
        )
    assert ("text_projection" in names) == (component == "text_encoder_2")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtypes(dtype: str, tmp_path: Path) -> None:
    export(SD_1, tmp_path / "model.safetensors", dtype=dtype)
    with safe_open(tmp_path / "model.safetensors", framework="np") as tensors:
        short = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[dtype]
        assert {tensors.get_slice(name).get_dtype() for name in tensors.keys()} == {short}  # noqa: SIM118


def test_float8(tmp_path: Path) -> None:
    export(SD_1, tmp_path / "model.safetensors", dtype="float8_e4m3fn")
    export(SD_1, tmp_path / "exact.safetensors")
    name = "first_stage_model.quant_conv.weight"
    with safe_open(tmp_path / "model.safetensors", framework="np") as tensors:
        assert tensors.get_slice(name).get_dtype() == "F8_E4M3"
    content = (tmp_path / "model.safetensors").read_bytes()
    exact = read(tmp_path / "exact.safetensors")[name]
    assert exact.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).tobytes() in content


def test_extras(tmp_path: Path) -> None:
    export(
        PLAIN,
        tmp_path / "model.safetensors",
        ema=True,
        extra_keys=["v_pred", "ztsnr", "position_ids", "alphas_cumprod", "logit_scale"],
    )
    tensors = read(tmp_path / "model.safetensors")
    assert tensors["v_pred"].size == tensors["ztsnr"].size == 0
    assert tensors["alphas_cumprod"][-1] == pytest.approx(0.0047, rel=0.01)
    position_ids = "conditioner.embedders.0.transformer.text_model.embeddings.position_ids"
    np.testing.assert_array_equal(tensors[position_ids], [np.arange(77)])
    np.testing.assert_array_equal(
        tensors["model_ema.diffusion_modelinput_blocks00weight"],
        tensors["model.diffusion_model.input_blocks.0.0.weight"] * np.float16(EMA_FACTOR),
    )
