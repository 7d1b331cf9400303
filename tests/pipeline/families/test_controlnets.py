"""ControlNets in every layout, and files that are none or fit another model."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from pipeline.checkpoints.weights import match_weights, shape_rngs, to_checkpoint
from pipeline.errors import CheckpointError
from pipeline.families import read_config
from pipeline.families.controlnets import ControlFiles, _digest, find_control
from pipeline.families.single_files import CONFIGS
from pipeline.models.controlnet import ControlNet
from pipeline.models.controlnet_config import read_controlnet
from tests.checkpoints import GOLDEN, change_json
from tests.controlnets import (
    controlnet_json,
    save_controlnet,
    save_single_controlnet,
)

SDXL, SD_1, SD_2 = (GOLDEN / name / "checkpoint" for name in ("three_levels", "sd_1", "sd_2"))
WEIGHTS = "diffusion_pytorch_model.safetensors"


def found(source: Path, model: Path = SDXL, *, half: bool = False) -> ControlFiles:
    return find_control(str(source), read_config(model), half)


def tensors(control: ControlFiles) -> Mapping[str, np.ndarray]:
    """Return all parameters, matched and loaded as a pipeline does."""
    make = partial(ControlNet, control.config, dtype=jnp.float32, rngs=shape_rngs())
    return to_checkpoint(match_weights(nnx.eval_shape(make), control.open).load(jnp.asarray))


def same(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> bool:
    return ours.keys() == theirs.keys() and all(
        np.array_equal(ours[name], theirs[name]) for name in ours
    )


def alone(folder: Path) -> Path:
    return folder


def fp16(folder: Path) -> Path:
    (folder / WEIGHTS).rename(folder / "diffusion_pytorch_model.fp16.safetensors")
    return folder


def in_checkpoint(folder: Path) -> Path:
    shutil.copytree(folder, folder.parent / "whole/controlnet")
    return folder.parent / "whole"


@pytest.mark.parametrize("form", [alone, fp16, in_checkpoint])
@pytest.mark.parametrize("kind", ["full", "union"])
def test_folders(kind: str, form: Any, tmp_path: Path) -> None:
    source = form(save_controlnet(tmp_path / "canny", SDXL, kind))
    control = found(source)
    assert control.name == source.name
    [file] = source.rglob("*.safetensors")
    assert same(tensors(control), load_file(file))


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (SD_1, "full"),
        (SD_2, "full"),
        (SDXL, "full"),
        (SDXL, "mid"),
        (SDXL, "small"),
        (SDXL, "resnets"),
        (SDXL, "union"),
        (SDXL, "promax"),
    ],
)
def test_single_files(model: Path, kind: str, tmp_path: Path) -> None:
    """The configuration that the shapes give is that of the folder, in every layout."""
    folder = found(save_controlnet(tmp_path / "folder", model, kind), model)
    for prefix in ("control_model.", "", None):
        file = save_single_controlnet(tmp_path / "canny.safetensors", model, kind, prefix=prefix)
        control = found(file, model)
        assert control.name == "canny"
        assert control.config == folder.config
        assert same(tensors(control), tensors(folder))


def test_a_folder_with_a_single_file_is_that_file(tmp_path: Path) -> None:
    """A folder of the union network's larger weights has no `config.json`."""
    file = tmp_path / "diffusion_pytorch_model_promax.safetensors"
    save_single_controlnet(file, SDXL, "promax", prefix=None)
    (tmp_path / "config_promax.json").write_text("{}")
    assert found(tmp_path).config == found(file).config
    assert found(tmp_path).config.control_types == 8


def test_half_precision_is_preferred(tmp_path: Path) -> None:
    folder = save_controlnet(tmp_path / "canny", SD_1)
    half = folder / "diffusion_pytorch_model.fp16.safetensors"
    save_file({name: 2 * x for name, x in load_file(folder / WEIGHTS).items()}, half)
    assert same(tensors(found(folder, SD_1)), load_file(folder / WEIGHTS))
    assert same(tensors(found(folder, SD_1, half=True)), load_file(half))


@pytest.mark.parametrize(
    ("stem", "pools"),
    [
        ("control_v11e_sd15_shuffle", True),
        ("control_v11e_sd15_shuffle_fp16", True),
        ("control_v11p_sd15_canny_fp16", False),
        ("shuffled", False),
    ],
)
def test_the_name_of_a_file_tells_that_residuals_are_means(
    stem: str, pools: bool, tmp_path: Path
) -> None:
    file = save_single_controlnet(tmp_path / f"{stem}.safetensors", SD_1)
    assert found(file, SD_1).config.global_pool == pools


def test_the_weights_give_the_number_of_types(tmp_path: Path) -> None:
    """The union network's repository has weights for 8 types beside a configuration for 6."""
    folder = save_controlnet(tmp_path / "union", SDXL, "promax")
    change_json(folder / "config.json", num_control_type=6)
    assert same(tensors(found(folder)), load_file(folder / WEIGHTS))
    change_json(folder / "config.json", num_control_type=..., _class_name="ControlNetModel")
    change_json(folder / "config.json", num_trans_head=..., num_trans_channel=...)
    change_json(folder / "config.json", num_proj_channel=...)
    assert found(folder).config.control_types == 8


def test_the_digest_is_that_of_webuis_extension(tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(2**21)
    (tmp_path / "file").write_bytes(content)
    right = hashlib.sha256(content[0x100000:0x110000]).hexdigest()[:8]
    assert _digest([tmp_path / "file"]) == right


@pytest.mark.parametrize(
    ("kind", "model", "message"),
    [
        ("sd_1", SDXL, r"Stable Diffusion 1 \(its text width is 768\), .* XL \(56\)"),
        ("sd_2", SDXL, r"Stable Diffusion 2 \(its text width is 1024\), .* XL \(56\)"),
        ("sdxl", SD_1, r"Stable Diffusion XL \(its text width is 2048\), .* Diffusion \(16\)"),
    ],
)
def test_a_controlnet_for_another_model_is_named(
    kind: str, model: Path, message: str, tmp_path: Path
) -> None:
    message = f"this ControlNet is for {message}"
    (tmp_path / "config.json").write_text(json.dumps(controlnet_json(CONFIGS / kind, "full")))
    save_file({"conv_in.bias": np.zeros(1, np.float32)}, tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError, match=message):
        found(tmp_path, model)
    width = read_controlnet(tmp_path / "config.json").cross_attention_dim
    key = "control_model.input_blocks.4.1.transformer_blocks.0.attn2.to_k.weight"
    save_file({key: np.zeros((1, width), np.float32)}, tmp_path / "canny.safetensors")
    with pytest.raises(CheckpointError, match=rf"canny\.safetensors: {message}"):
        found(tmp_path / "canny.safetensors", model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_out_channels": [8, 24, 40]}, r"block_out_channels = .* expected \(8, 24, 32\)"),
        ({"layers_per_block": 2}, r"layers_per_block = \(2, 2, 2\) does not fit the UNet of"),
        ({"projection_class_embeddings_input_dim": 99}, "addition = .*99"),
        ({"addition_embed_type": None}, "addition_time_embed_dim = 16 is not supported"),
        ({"in_channels": 9}, "latent_channels = 9 does not fit the latents of"),
        (
            {"conditioning_embedding_out_channels": [4, 4]},
            "scale_factor = 2 does not fit the latents of Stable Diffusion XL; expected 4",
        ),
        ({"conditioning_channels": 1}, "conditioning_channels = 1 is not supported"),
    ],
)
def test_other_sizes_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    values = controlnet_json(SDXL, "full") | changes
    (tmp_path / "config.json").write_text(json.dumps(values))
    save_file({"conv_in.bias": np.zeros(1, np.float32)}, tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError, match=message):
        found(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lora_controlnet", "this is a Control-LoRA; expected a ControlNet"),
        ("lllite_unet_input_blocks_4_1_1.down.0.weight", "a ControlNet-LLLite; expected"),
        ("body.0.block1.weight", "this is a T2I-Adapter; expected"),
        ("adapter.body.0.resnets.0.block1.weight", "this is a T2I-Adapter; expected"),
        ("down_blocks.0.motion_modules.0.proj_in.weight", "SparseCtrl; expected"),
        ("image_proj.proj.weight", "an IP-Adapter or another adapter for image prompts; expected"),
        ("difference", "the differences of a ControlNet from a UNet; expected"),
        ("controlnet_blocks.0.weight", "this is a ControlNet for FLUX; expected a ControlNet"),
        ("lora_unet_a.lora_down.weight", "this is a LoRA; .*; copy it into LORA_DIR"),
        ("model.diffusion_model.input_blocks.0.0.weight", "this is a UNet without text encoders"),
    ],
)
def test_a_file_of_another_kind_is_named(name: str, message: str, tmp_path: Path) -> None:
    more = ["single_transformer_blocks.0.norm.weight"] if "FLUX" in message else []
    file = tmp_path / "other.safetensors"
    save_file({key: np.ones(4, np.float32) for key in (name, *more)}, file)
    with pytest.raises(CheckpointError, match=rf"other\.safetensors: .*{message}"):
        found(file)


def test_a_folder_of_another_kind_is_named(tmp_path: Path) -> None:
    save_controlnet(tmp_path, SDXL)
    change_json(tmp_path / "config.json", _class_name="T2IAdapter")
    with pytest.raises(CheckpointError, match="_class_name = 'T2IAdapter' is not supported"):
        found(tmp_path)


@pytest.mark.parametrize("prefix", ["control_model.", "", None])
@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("controlnet_mid_block.bias", None, "controlnet_mid_block.bias is missing"),
        ("controlnet_mid_block.bias", [1], r"has shape \[1\]; expected \[32\]"),
        ("another.weight", [1], "unknown tensor (control_model.)?another.weight"),
    ],
)
def test_tensors_are_matched_strictly(
    prefix: str | None, name: str, shape: list[int] | None, message: str, tmp_path: Path
) -> None:
    file = save_single_controlnet(tmp_path / "canny.safetensors", SDXL, prefix=prefix)
    names = {"controlnet_mid_block.bias": "middle_block_out.0.bias"} if prefix is not None else {}
    key = f"{prefix or ''}{names.get(name, name)}"
    held = load_file(file)
    held.pop(key, None)
    save_file(held | ({} if shape is None else {key: np.zeros(shape, np.float32)}), file)
    with pytest.raises(CheckpointError, match=rf"canny\.safetensors: .*{message}"):
        tensors(found(file))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("task_embedding", [9, 8], "tells 9 types of pictures apart; expected at most 8: openpose"),
        ("task_embedding", [], None),
        ("task_embedding", [0, 8], None),
        ("down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_k.weight", [], None),
        ("down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_k.weight", [2, 2, 2], None),
        ("conv_in.weight", [8], "this ControlNet is not built as those of Stable Diffusion 1, 2"),
        ("controlnet_cond_embedding.conv_in.weight", [], "this ControlNet is not built as those"),
        ("controlnet_cond_embedding.blocks.7.weight", [1], "this ControlNet is not built as those"),
        ("add_embedding.linear_1.weight", None, r"not built as .*\('add_embedding\.linear_1"),
        ("down_blocks.0.resnets.0.conv1.weight", [6, 1, 1, 1], r"6 channels cannot be divided by"),
    ],
)
def test_nonsense_gets_a_message(
    name: str, shape: list[int] | None, message: str | None, tmp_path: Path
) -> None:
    file = save_single_controlnet(tmp_path / "canny.safetensors", SDXL, "union", prefix=None)
    held = load_file(file)
    held.pop(name, None)
    save_file(held | ({} if shape is None else {name: np.zeros(shape, np.float32)}), file)
    with pytest.raises(CheckpointError, match=message):
        tensors(found(file))


def test_an_empty_folder_and_an_empty_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no controlnet; expected a config\.json"):
        found(tmp_path)
    save_controlnet(tmp_path, SDXL)
    save_file({}, tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"the tensor .* is missing"):
        tensors(found(tmp_path))
    with pytest.raises(CheckpointError, match=r"not built as those of .*controlnet_cond_embedding"):
        found(tmp_path / WEIGHTS)
