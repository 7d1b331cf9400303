"""Which kind of model a single file holds, and what it draws."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipeline import SDXLPipeline
from pipeline.checkpoints.checkpoint import Section
from pipeline.checkpoints.single_file import open_section
from pipeline.checkpoints.source import fetch
from pipeline.checkpoints.tensors import open_file
from pipeline.errors import CheckpointError
from pipeline.families import FamilyReader, read_config
from pipeline.families.single_files import (
    CONFIGS,
    KINDS,
    predicts_noise,
    recognise_file,
    scheduler_settings,
)
from pipeline.models.shapes import text_encoder_of, unet_of, vae_of
from pipeline.runtime.loading import trace_networks
from tests.checkpoints import EXECUTABLES, GOLDEN, change_json
from tests.single_files import tensor_shapes, thin_file, thin_folder
from tools.published_configs import SD_1, SD_2, SDXL_BASE, SDXL_REFINER, Files, write

UNET = "model.diffusion_model."
FIRST = f"{UNET}input_blocks.0.0.weight"
CONTEXT = f"{UNET}input_blocks.2.1.transformer_blocks.0.attn2.to_k.weight"
LAST_NORM = f"{UNET}output_blocks.11.1.transformer_blocks.0.norm1.bias"
OPEN_CLIP = "model.transformer.resblocks.9.mlp.c_proj.bias"
SD_1_TEXT = {"cond_stage_model.transformer.text_model.embeddings.token_embedding.weight": (9, 4)}
SD_2_TEXT = {f"cond_stage_model.{OPEN_CLIP}": (4,)}
SDXL_TEXT = {f"conditioner.embedders.1.{OPEN_CLIP}": (4,)}
REFINER_TEXT = {f"conditioner.embedders.0.{OPEN_CLIP}": (4,)}


# All tensors of a file, by the usual names.
WHOLE_FILE = Section(("",))


def arrays(tensors: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return tensors, each given by its values or its shape."""
    return {
        name: np.zeros(x, np.float32) if isinstance(x, tuple) else np.asarray(x)
        for name, x in tensors.items()
    }


def made(file: Path, tensors: dict[str, Any]) -> Path:
    """Write tensors, each given by its values or its shape."""
    save_file(arrays(tensors), file)
    return file


def kind_of(tmp_path: Path, tensors: dict[str, Any]) -> str:
    with open_section(made(tmp_path / "one.safetensors", tensors), WHOLE_FILE) as found:
        return recognise_file(found).name


@pytest.mark.parametrize(
    ("tensors", "name"),
    [
        ({FIRST: (8, 4, 3, 3), **SD_1_TEXT}, "Stable Diffusion 1"),
        ({FIRST: (8, 4, 3, 3), CONTEXT: (8, 768), **SD_1_TEXT}, "Stable Diffusion 1"),
        ({FIRST: (8, 4, 3, 3), CONTEXT: (8, 1024), **SD_2_TEXT}, "Stable Diffusion 2"),
        ({FIRST: (8, 4, 3, 3), CONTEXT: (8, 1024), **REFINER_TEXT}, "Stable Diffusion 2"),
        ({FIRST: (8, 9, 3, 3), CONTEXT: (8, 1024), **SD_2_TEXT}, "Stable Diffusion 2 base"),
        (
            {CONTEXT: (8, 1024), "global_step": np.int64(875000), **SD_2_TEXT},
            "Stable Diffusion 2 base",
        ),
        ({FIRST: (8, 4, 3, 3), **SDXL_TEXT}, "Stable Diffusion XL"),
        ({FIRST: (8, 4, 3, 3), **REFINER_TEXT}, "the refiner of Stable Diffusion XL"),
    ],
)
def test_kinds(tmp_path: Path, tensors: dict[str, Any], name: str) -> None:
    assert kind_of(tmp_path, tensors) == name


def test_inpainting_models_are_of_the_same_kinds(tmp_path: Path) -> None:
    for text, name in ((SD_1_TEXT, "Stable Diffusion 1"), (SDXL_TEXT, "Stable Diffusion XL")):
        assert kind_of(tmp_path, {FIRST: (8, 9, 3, 3), **text}) == name
    with pytest.raises(CheckpointError, match="for editing pictures"):
        kind_of(tmp_path, {FIRST: (8, 8, 3, 3), **SD_1_TEXT})


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({FIRST: (8, 8, 3, 3), **SD_1_TEXT}, r"for editing pictures \(8 input channels\)"),
        ({FIRST: (8, 5, 3, 3), CONTEXT: (8, 1024)}, "for depth to image"),
        ({FIRST: (8, 4, 3, 3), "edm_mean": (4,), **SDXL_TEXT}, "Playground 2.5"),
        ({FIRST: (8, 4, 3, 3), "edm_vpred.sigma_max": (1,), **SDXL_TEXT}, "CosXL"),
        ({f"{UNET}double_blocks.0.img_attn.proj.weight": (4, 4)}, "FLUX"),
        ({"double_blocks.0.img_attn.proj.weight": (4, 4)}, "FLUX"),
        ({f"{UNET}joint_blocks.0.x_block.attn.proj.weight": (4, 4)}, "Stable Diffusion 3"),
        ({"control_model.input_blocks.0.0.weight": (8, 4, 3, 3)}, "ControlNet"),
        ({"lora_unet_down_blocks_0_attentions_0_proj_in.lora_down.weight": (4, 4)}, "LoRA"),
        ({"unet.down_blocks.0.attentions.0.proj_in.lora_A.weight": (4, 4)}, "LoRA"),
        ({"emb_params": (2, 768)}, "textual inversion"),
        ({FIRST: (8, 4, 3, 3), f"{UNET}edm_mean": (4,), **SDXL_TEXT}, "Playground 2.5"),
        ({FIRST: (8, 4, 3, 3)}, "a UNet without text encoders; UNET_ID names it, and MODEL_ID"),
        ({FIRST.removeprefix(UNET): (8, 4, 3, 3)}, "a UNet without text encoders; UNET_ID"),
        ({"down_blocks.0.resnets.0.conv1.bias": (4,)}, "a UNet without text encoders; UNET_ID"),
        ({"decoder.conv_in.bias": (4,)}, "a VAE; VAE_ID names it"),
        ({"1.weight": (4,)}, "a tiny VAE; TINY_VAE names it"),
        ({"emb_params": (2, 768)}, "a textual inversion; copy it into EMBEDDING_DIR"),
        ({"unet.conv_in.lora_A.weight": (2, 4)}, "a LoRA; copy it into LORA_DIR"),
        ({f"{UNET}layers.0.attention.qkv.weight": (8, 8)}, "Lumina 2 or Z-Image; expected a"),
        ({"weight": (4,)}, r"unknown contents \(first tensor: weight\); expected a checkpoint of"),
    ],
)
def test_other_files_are_refused_by_name(
    tmp_path: Path, tensors: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=rf"one\.safetensors: .*{message}"):
        kind_of(tmp_path, tensors)


@pytest.mark.parametrize(
    ("tensors", "right"),
    [
        ({"global_step": np.int64(875000)}, True),
        ({"global_step": np.int64(140000)}, False),
        ({"global_step": np.int64(875000), "v_pred": (0,)}, False),
        ({LAST_NORM: np.array([0.1, -0.1, 0.1], "f")}, False),
        ({LAST_NORM: np.array([0.05, -0.05], "f")}, True),
        ({}, False),
    ],
)
def test_version_2_predicts_the_noise(tmp_path: Path, tensors: dict[str, Any], right: bool) -> None:
    file = made(tmp_path / "one.safetensors", {"a": (1,), **tensors})
    with open_file(file) as found:
        assert predicts_noise(found) is right


@pytest.mark.parametrize(
    ("folder", "published"),
    [("sd_1", SD_1), ("sd_2", SD_2), ("sdxl", SDXL_BASE), ("sdxl_refiner", SDXL_REFINER)],
)
def test_bundled_configurations_are_the_published(
    folder: str, published: Files, tmp_path: Path
) -> None:
    ours = read_config(CONFIGS / folder)
    assert ours == read_config(write(tmp_path, published), safety_checker=False)


def test_the_base_of_version_2() -> None:
    base, other = (read_config(CONFIGS / name) for name in ("sd_2_base", "sd_2"))
    assert (base.scheduler.prediction_type, other.scheduler.prediction_type) == (
        "epsilon",
        "v_prediction",
    )
    assert base.networks["unet"].sample_size == (64, 64)
    assert base.networks["text_encoder"] == other.networks["text_encoder"]


# SDXL's UNet with fewer layers, as in their config.json.
DISTILLED: dict[str, dict[str, Any]] = {
    "segmind/SSD-1B": {
        "mid_block_type": "UNetMidBlock2D",
        "transformer_layers_per_block": [[1, 1], [2, 2], [4, 4]],
        "reverse_transformer_layers_per_block": [[4, 4, 10], [2, 1, 1], [1, 1, 1]],
    },
    "segmind/Segmind-Vega": {
        "mid_block_type": "UNetMidBlock2D",
        "transformer_layers_per_block": [[1, 1], [1, 1], [2, 2]],
        "reverse_transformer_layers_per_block": [[2, 2, 2], [1, 1, 1], [1, 1, 1]],
    },
    "etri-vilab/koala-1b": {
        "layers_per_block": 1,
        "transformer_layers_per_block": [1, 2, 6],
    },
    "etri-vilab/koala-700m": {
        "layers_per_block": 1,
        "mid_block_type": None,
        "transformer_layers_per_block": [1, 2, 5],
    },
    "stabilityai/stable-diffusion-xl-base-1.0": {},
}


@pytest.mark.parametrize("name", DISTILLED)
def test_sizes_of_distilled_unets_come_from_the_tensors(name: str, tmp_path: Path) -> None:
    published = read_config(CONFIGS / "sdxl").networks["unet"]
    folder = write(tmp_path, SDXL_BASE)
    change_json(folder / "unet/config.json", **DISTILLED[name])
    config = read_config(folder)
    unet = trace_networks(config, np.dtype(np.float32))["unet"]
    assert unet_of(published, tensor_shapes(unet)) == config.networks["unet"]


@pytest.mark.parametrize("name", sorted(path.parent.name for path in GOLDEN.glob("*/checkpoint")))
def test_sizes_come_from_the_tensors(name: str) -> None:
    """Only heads, groups and settings that are no sizes come from the published network."""
    config = read_config(GOLDEN / name / "checkpoint", safety_checker=False)
    for network, module in trace_networks(config, np.dtype(np.float32)).items():
        right, shapes = config.networks[network], tensor_shapes(module)
        if network == "vae":
            assert vae_of(right, shapes) == right
        elif network == "unet":
            same = {*right.num_attention_heads}
            if len(same) == 1 and len(right.num_attention_heads) > 1:
                assert unet_of(right, shapes) == right
        else:
            assert text_encoder_of(right, shapes) == right


@pytest.mark.parametrize("marks", [[], ["v_pred"], ["v_pred", "ztsnr"]])
def test_a_mark_chooses_the_prediction(marks: list[str], tmp_path: Path) -> None:
    folder = thin_folder(tmp_path / "folder", "sdxl")
    file = thin_file(folder, tmp_path / "model.safetensors", extra_keys=marks)
    scheduler = fetch(str(file), None, FamilyReader()).config.scheduler
    assert scheduler.prediction_type == ("v_prediction" if marks else "epsilon")
    assert scheduler.betas.zero_snr == ("ztsnr" in marks)
    assert scheduler.name == "euler"
    chosen = fetch(str(file), None, FamilyReader("ddim")).config.scheduler
    assert (chosen.name, chosen.prediction_type) == ("ddim", scheduler.prediction_type)


V_MARK, ZERO_SNR_MARK = {"v_pred": (0,)}, {"v_pred": (0,), "ztsnr": (0,)}
SD_2_UNET = {CONTEXT: (8, 1024), LAST_NORM: np.array([0.05, -0.05], "f")}
V = {"prediction_type": "v_prediction"}
EPSILON = {"prediction_type": "epsilon"}


@pytest.mark.parametrize(
    ("tensors", "notes", "right"),
    [
        ({}, {}, {}),
        (V_MARK, {}, V | {"rescale_betas_zero_snr": False}),
        (ZERO_SNR_MARK, {}, V | {"rescale_betas_zero_snr": True}),
        ({UNET + name: shape for name, shape in ZERO_SNR_MARK.items()}, {}, ...),
        ({}, {"modelspec.prediction_type": "v"}, V),
        ({}, {"modelspec.prediction_type": "v_prediction"}, V),
        ({}, {"modelspec.prediction_type": "epsilon"}, EPSILON),
        ({}, {"modelspec.predict_key": "v"}, V),
        ({}, {"ss_v_parameterization": "True", "ss_zero_terminal_snr": "True"}, ...),
        ({}, {"ss_v_parameterization": "False"}, EPSILON),
        ({}, {"ss_v_parameterization": "None", "modelspec.prediction_type": ""}, {}),
        ({}, {"modelspec.prediction_type": "v", "modelspec.predict_key": "epsilon"}, V),
        # ComfyUI reads the tensor alone.
        (V_MARK, {"modelspec.prediction_type": "epsilon"}, V | {"rescale_betas_zero_snr": False}),
        (SD_2_UNET, {}, EPSILON),
        (SD_2_UNET, {"modelspec.prediction_type": "v"}, V),
        (SD_2_UNET | {LAST_NORM: np.array([0.2, -0.2], "f")}, {}, V),
    ],
)
def test_marks_replace_the_schedulers_settings(
    tmp_path: Path, tensors: dict[str, Any], notes: dict[str, str], right: Any
) -> None:
    """A mark may be a tensor in the UNet or beside it, or a note in the header."""
    file = tmp_path / "one.safetensors"
    save_file(arrays({"a": (1,), **tensors}), file, metadata=notes)
    both = V | {"rescale_betas_zero_snr": True}
    with open_section(file, WHOLE_FILE) as found:
        assert scheduler_settings(found.beside) == (both if right is ... else right)


def test_a_configuration_beside_a_file_says_what_it_predicts(tmp_path: Path) -> None:
    """AUTOMATIC1111 reads it, and it counts more than notes that merges leave."""
    file = tmp_path / "one.safetensors"
    save_file(arrays({"a": (1,)}), file, metadata={"modelspec.predict_key": "epsilon"})
    beside = file.with_suffix(".yaml")
    for text, right in {
        'model:\n  params:\n    parameterization: "v"\n': V,
        "model:\n  params:\n    parameterization: eps\n": EPSILON,
        "model:\n  params:\n    linear_start: 0.00085\n": EPSILON,
    }.items():
        beside.write_text(text)
        with open_file(file) as found:
            assert scheduler_settings(found) == right


def test_a_mark_against_a_note_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "one.safetensors"
    save_file(arrays(V_MARK), file, metadata={"modelspec.prediction_type": "epsilon"})
    with open_file(file) as found:
        scheduler_settings(found)
    [message] = caplog.messages
    assert "its tensor v_pred says v_prediction, and its notes epsilon" in message


@pytest.mark.parametrize("note", ["edm", "rectified_flow"])
def test_a_prediction_that_cannot_be_drawn_is_named(tmp_path: Path, note: str) -> None:
    file = tmp_path / "one.safetensors"
    save_file(arrays({"a": (1,)}), file, metadata={"modelspec.prediction_type": note})
    expected = rf"one\.safetensors: the note modelspec\.prediction_type .*'{note}'; supported are"
    with open_file(file) as found, pytest.raises(CheckpointError, match=expected):
        scheduler_settings(found)


def drawn(model: Path, **options: Any) -> np.ndarray:
    pipe = SDXLPipeline.from_pretrained(
        model,
        height=64,
        width=64,
        images_per_request=1,
        num_inference_steps=2,
        cache_dir=EXECUTABLES,
        **options,
    )
    image = np.ones((64, 64, 3), np.float32) if pipe.facts.needs_image else None
    found = pipe.generate("a photo of a cat", "blurry", output_type="latent", image=image)
    return found.images


@pytest.mark.parametrize(
    "kind",
    [
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("sdxl", "sdxl_refiner")),
        # `tests/reference/test_single_file.py` compares these kinds with torch.
        *(pytest.param(kind, marks=pytest.mark.rare) for kind in ("sd_1", "sd_2", "sd_2_base")),
    ],
)
def test_a_single_file_draws_what_its_folder_draws(kind: str, tmp_path: Path) -> None:
    folder = thin_folder(tmp_path / "folder", kind)
    marks = ["v_pred"] if kind == "sd_2" else []
    file = thin_file(folder, tmp_path / "model.safetensors", extra_keys=marks)
    np.testing.assert_array_equal(drawn(file), drawn(folder))


def test_every_kind_has_its_configuration() -> None:
    for kind in KINDS:
        config = read_config(CONFIGS / kind.folder)
        assert config.family is kind.family
        assert kind.sections.keys() == config.networks.keys()
