"""A VAE that replaces a checkpoint's own."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pipeline import SDXLPipeline
from pipeline.checkpoints.checkpoint import Checkpoint
from pipeline.checkpoints.source import fetch, fetch_component
from pipeline.errors import CheckpointError
from pipeline.families import FamilyReader
from pipeline.families.single_files import CONFIGS, VAE_FILE
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
