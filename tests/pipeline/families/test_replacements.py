"""A VAE or a UNet that replaces a checkpoint's own."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pipeline import SDXLPipeline
from pipeline.checkpoints.checkpoint import Checkpoint, Section
from pipeline.checkpoints.source import fetch, fetch_component
from pipeline.checkpoints.tensors import open_tensors
from pipeline.errors import CheckpointError
from pipeline.families import FamilyReader
from pipeline.families.single_files import CONFIGS, UNET_FILE, VAE_FILE
from pipeline.images import metadata
from tests.checkpoints import EXECUTABLES, GOLDEN, change_json, copy_checkpoint
from tests.single_files import thin_file, thin_folder, write_weights

SOURCE = GOLDEN / "sd_1/checkpoint"
KEY = "decoder.conv_in.bias"


def read(model: Path, vae: Path) -> Checkpoint:
    other = fetch_component(str(vae), "vae", VAE_FILE)
    return fetch(str(model), None, FamilyReader(vae=other))


def value(checkpoint: Checkpoint) -> np.ndarray:
    with checkpoint.tensors("vae") as tensors:
        return tensors[KEY].read()


@pytest.fixture(scope="module")
def thin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return thin_folder(tmp_path_factory.mktemp("thin") / "folder", "sd_1")


@pytest.fixture(scope="module")
def other(thin: Path) -> Path:
    """Return a checkpoint like `thin` with other weights."""
    folder = shutil.copytree(thin, thin.parent / "other")
    write_weights(folder, seed=1)
    return folder


def in_checkpoint(other: Path, _: Path) -> Path:
    return other


def alone(other: Path, folder: Path) -> Path:
    return shutil.copytree(other / "vae", folder / "alone")


def own_names(other: Path, folder: Path) -> Path:
    weights = other / "vae/diffusion_pytorch_model.safetensors"
    return Path(shutil.copy(weights, folder / "own.safetensors"))


def in_single_file(other: Path, folder: Path) -> Path:
    return thin_file(other, folder / "whole.safetensors")


def original_names(other: Path, folder: Path, prefix: str = "") -> Path:
    whole = load_file(in_single_file(other, folder))
    start = "first_stage_model."
    vae = {
        prefix + name.removeprefix(start): values
        for name, values in whole.items()
        if name.startswith(start)
    }
    training = {f"{prefix}loss.logvar": np.zeros(1, np.float32)} if prefix != "vae." else {}
    save_file(vae | training, folder / "original.safetensors")
    return folder / "original.safetensors"


def with_prefix(other: Path, folder: Path) -> Path:
    return original_names(other, folder, "vae.")


@pytest.mark.parametrize(
    "form", [in_checkpoint, alone, own_names, in_single_file, original_names, with_prefix]
)
def test_every_form_is_read(thin: Path, other: Path, form: Any, tmp_path: Path) -> None:
    vae = form(other, tmp_path)
    found = read(thin, vae)
    right = fetch(str(other), None, FamilyReader())
    assert found.config.networks["vae"] == right.config.networks["vae"]
    assert found.replacements["vae"].name == vae.name
    np.testing.assert_array_equal(value(found), value(right))
    assert not np.array_equal(value(found), value(fetch(str(thin), None, FamilyReader())))


def test_the_checkpoints_own_is_not_needed(thin: Path, other: Path, tmp_path: Path) -> None:
    without = shutil.copytree(thin, tmp_path / "without")
    shutil.rmtree(without / "vae")
    vae = own_names(other, tmp_path)
    assert read(without, vae).config.networks["vae"].scaling_factor == 0.18215
    file = thin_file(thin, tmp_path / "whole.safetensors")
    kept = {
        name: tensor
        for name, tensor in load_file(file).items()
        if not name.startswith("first_stage_model.")
    }
    save_file(kept, tmp_path / "part.safetensors")
    np.testing.assert_array_equal(
        value(read(tmp_path / "part.safetensors", vae)), value(read(file, vae))
    )


UNET_START = "model.diffusion_model."
UNET_KEY = "mid_block.resnets.0.conv1.weight"


@pytest.fixture(scope="module")
def xl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return thin_folder(tmp_path_factory.mktemp("xl") / "folder", "sdxl")


def unet_file(model: Path, file: Path, prefix: str, notes: dict, *marks: str) -> Path:
    """Write a checkpoint's UNet alone, as ComfyUI's ModelSave and others do."""
    if not (whole_file := model.with_suffix(".safetensors")).exists():
        thin_file(model, whole_file)
    whole = load_file(whole_file)
    unet = {
        prefix + name.removeprefix(UNET_START): values
        for name, values in whole.items()
        if name.startswith(UNET_START)
    }
    save_file(unet | {name: np.zeros(0, np.float32) for name in marks}, file, metadata=notes)
    return file


@pytest.mark.parametrize(
    "prefix", [UNET_START, "", "diffusion_model.", "model.model.diffusion_model."]
)
@pytest.mark.parametrize(
    ("marks", "notes", "right"),
    [
        ((), {}, ("epsilon", False)),
        (("v_pred",), {}, ("v_prediction", False)),
        (("v_pred", "ztsnr"), {}, ("v_prediction", True)),
        ((f"{UNET_START}v_pred", f"{UNET_START}ztsnr"), {}, ("v_prediction", True)),
        ((), {"modelspec.prediction_type": "v"}, ("v_prediction", False)),
    ],
)
def test_a_unet_says_what_it_predicts(
    xl: Path, prefix: str, marks: tuple, notes: dict, right: tuple, tmp_path: Path
) -> None:
    file = unet_file(xl, tmp_path / "unet.safetensors", prefix, notes, *marks)
    unet = fetch_component(str(file), "unet", UNET_FILE)
    checkpoint = fetch(str(xl), None, FamilyReader(unet=unet))
    scheduler = checkpoint.config.scheduler
    assert (scheduler.prediction_type, scheduler.betas.zero_snr) == right
    with checkpoint.tensors("unet") as ours, open_tensors(xl / "unet") as theirs:
        assert ours.keys() == theirs.keys()
        np.testing.assert_array_equal(ours[UNET_KEY].read(), theirs[UNET_KEY].read())


def test_a_unet_that_says_nothing_is_drawn_as_the_checkpoints_own(xl: Path, tmp_path: Path) -> None:
    model = shutil.copytree(xl, tmp_path / "v")
    change_json(model / "scheduler/scheduler_config.json", prediction_type="v_prediction")
    for notes, right in (({}, "v_prediction"), ({"modelspec.predict_key": "epsilon"}, "epsilon")):
        file = unet_file(xl, tmp_path / "unet.safetensors", "", notes)
        unet = fetch_component(str(file), "unet", UNET_FILE)
        checkpoint = fetch(str(model), None, FamilyReader(unet=unet))
        assert checkpoint.config.scheduler.prediction_type == right


def test_a_unet_of_diffusers_names_with_a_prefix(xl: Path, tmp_path: Path) -> None:
    """A pipeline's tensors in one file have the network before their names."""
    [weights] = (xl / "unet").glob("*.safetensors")
    leftovers = {"model_ema.decay": np.ones(1, np.float32), "loss.logvar": np.ones(1, np.float32)}
    for prefix in ("unet.", ""):
        tensors = {prefix + name: values for name, values in load_file(weights).items()}
        save_file(tensors | leftovers, tmp_path / "unet.safetensors")
        unet = fetch_component(str(tmp_path / "unet.safetensors"), "unet", UNET_FILE)
        with fetch(str(xl), None, FamilyReader(unet=unet)).tensors("unet") as ours:
            assert ours.keys() == load_file(weights).keys()


@pytest.mark.parametrize(
    ("name", "network", "section", "message"),
    [
        ("edm_mean", "unet", UNET_FILE, r"this is Playground 2\.5; expected a UNet"),
        ("edm_vpred.sigma_max", "unet", UNET_FILE, "this is CosXL; expected a UNet"),
        ("decoder.conv_in.bias", "unet", UNET_FILE, "this is a VAE; .*; VAE_ID names it"),
        ("controlnet_down_blocks.0.bias", "unet", UNET_FILE, "this is a ControlNet; expected"),
        ("conv_in.lora_A.weight", "unet", UNET_FILE, "a LoRA; .*; copy it into LORA_DIR"),
        ("double_blocks.0.img_attn.norm.key_norm.scale", "unet", UNET_FILE, "this is FLUX;"),
        ("input_blocks.0.0.bias", "vae", VAE_FILE, "a UNet without text encoders; expected a VAE"),
        ("1.weight", "vae", VAE_FILE, "this is a tiny VAE; .*; TINY_VAE names it"),
        ("text_model.embeddings.token_embedding.weight", "vae", VAE_FILE, "a text encoder;"),
        ("body.0.rdb1.conv1.bias", "vae", VAE_FILE, "this is an upscaler; expected a VAE"),
    ],
)
def test_a_file_of_another_kind_is_named(
    xl: Path, name: str, network: str, section: Section, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "other.safetensors"
    save_file({name: np.ones(4, np.float32)}, file)
    component = fetch_component(str(file), network, section)
    with pytest.raises(CheckpointError, match=rf"other\.safetensors: .*{message}"):
        fetch(str(xl), None, replace(FamilyReader(), **{network: component}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scaling_factor": 0.13025}, r"scaling_factor = 0\.13025 does not fit .*; expected 0\.18"),
        ({"latent_channels": 16}, r"latent_channels = 16 does not fit .*checkpoint; expected 4"),
        ({"_class_name": "AutoencoderTiny"}, r"_class_name = 'AutoencoderTiny'.*'AutoencoderKL'"),
        (
            {"latents_mean": [0.0] * 4, "latents_std": [1.0] * 4},
            r"latents_mean = .* does not fit .*; expected None",
        ),
    ],
)
def test_other_latents_are_refused(changes: dict, message: str, tmp_path: Path) -> None:
    model = copy_checkpoint(tmp_path, SOURCE)
    vae = shutil.copytree(SOURCE / "vae", tmp_path / "mine")
    change_json(vae / "config.json", **changes)
    with pytest.raises(CheckpointError, match=rf"mine.*{message}"):
        read(model, vae)


def test_other_latents_of_a_file_are_refused(thin: Path, tmp_path: Path) -> None:
    wide = shutil.copytree(thin, tmp_path / "wide")
    change_json(wide / "vae/config.json", latent_channels=8)
    change_json(wide / "unet/config.json", in_channels=8, out_channels=8)
    write_weights(wide)
    with pytest.raises(
        CheckpointError, match=r"own\.safetensors: latent_channels = 8 does not fit"
    ):
        read(thin, own_names(wide, tmp_path))


@pytest.mark.parametrize("name", ["model.ckpt", "vae.pt"])
def test_a_pickle_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\x80\x02.")
    with pytest.raises(CheckpointError, match=rf"{name}: only safetensors"):
        read(SOURCE, tmp_path / name)


def test_a_folder_without_a_vae(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no vae; expected a config\.json"):
        read(SOURCE, tmp_path)
    with pytest.raises(CheckpointError, match=r"vae\.safetensors: no such file"):
        fetch_component("vae.safetensors", "vae", VAE_FILE)


@pytest.mark.slow
def test_pictures_are_drawn_with_it_and_name_it(tmp_path: Path) -> None:
    vae = shutil.copytree(SOURCE / "vae", tmp_path / "mine")
    file = vae / "diffusion_pytorch_model.safetensors"
    save_file({name: 2 * tensor for name, tensor in load_file(file).items()}, file)

    def drawn(**options: Any) -> tuple[SDXLPipeline, Any]:
        pipe = SDXLPipeline.from_pretrained(
            SOURCE,
            images_per_request=2,
            devices=jax.devices()[:1],
            cache_dir=EXECUTABLES,
            **options,
        )
        return pipe, pipe.generate("a red star", images=1, num_inference_steps=2).images[0]

    (plain, own), (pipe, other) = drawn(), drawn(vae=vae)
    assert (plain.facts.vae, pipe.facts.vae) == (None, "mine")
    assert np.any(np.asarray(own) != np.asarray(other))
    text = other.info[metadata.KEY]
    assert "VAE: mine" in text
    assert "VAE" not in own.info[metadata.KEY]
    assert metadata.from_text(text).vae == "mine"


def test_every_published_scale_is_bundled() -> None:
    scales = {
        folder.name: json.loads((folder / "vae/config.json").read_text()).get("scaling_factor")
        for folder in CONFIGS.iterdir()
    }
    xl = dict.fromkeys(("sdxl", "sdxl_refiner"), 0.13025)
    assert scales == {**xl, "sd_1": None, "sd_2": None, "sd_2_base": None}
