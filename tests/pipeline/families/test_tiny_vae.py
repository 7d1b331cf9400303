"""A tiny VAE beside a checkpoint."""

import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from pipeline.checkpoints.checkpoint import Checkpoint
from pipeline.checkpoints.source import fetch
from pipeline.errors import CheckpointError
from pipeline.families import FamilyReader
from pipeline.families.reader import fetch_tiny_vae
from pipeline.runtime.loading import find_networks
from tests.checkpoints import GOLDEN, change_json
from tests.single_files import thin_file, thin_folder

TINY = GOLDEN / "tiny_vae"


def read_tiny(tiny: Path, model: Path = GOLDEN / "karras/checkpoint") -> Checkpoint:
    return fetch(str(model), None, FamilyReader(tiny_vae=fetch_tiny_vae(tiny)))


def tiny_in_checkpoint(folder: Path) -> Path:
    shutil.copytree(TINY, folder / "whole/vae")
    return folder / "whole"


def tiny_file(folder: Path) -> Path:
    return Path(
        shutil.copy(TINY / "diffusion_pytorch_model.safetensors", folder / "taesd.safetensors")
    )


def tiny_decoder_file(folder: Path) -> Path:
    """Return a file as the authors publish it: a decoder whose first layer has no tensors."""
    renamed = {}
    for name, tensor in load_file(tiny_file(folder)).items():
        half, _, number, rest = name.split(".", 3)
        if half == "decoder":
            renamed[f"{int(number) + 1}.{rest}"] = tensor
    save_file(renamed, folder / "decoder.safetensors")
    return folder / "decoder.safetensors"


@pytest.mark.parametrize("form", [lambda _: TINY, tiny_in_checkpoint, tiny_file, tiny_decoder_file])
def test_every_form_of_a_tiny_vae_is_read(form: Any, tmp_path: Path) -> None:
    found, right = read_tiny(form(tmp_path)), read_tiny(TINY)
    config, expected = found.config.tiny_vae, right.config.tiny_vae
    assert config is not None
    assert expected is not None
    assert config.decoder_blocks == expected.decoder_blocks == (2, 1)
    networks = [find_networks(each, np.dtype(np.float32))["tiny_vae"] for each in (found, right)]
    decoders = [each.load(jnp.asarray).decoder for each in networks]
    for ours, theirs in zip(*(jax.tree.leaves(nnx.state(each)) for each in decoders), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latent_channels": 16}, r"latent_channels = 16 does not fit .*checkpoint; expected 4"),
        ({"_class_name": "AutoencoderKL"}, r"_class_name = 'AutoencoderKL'.*'AutoencoderTiny'"),
        (
            {
                "num_decoder_blocks": [1, 1, 1],
                "num_encoder_blocks": [1, 1, 1],
                "decoder_block_out_channels": [6, 6, 6],
                "encoder_block_out_channels": [6, 6, 6],
            },
            r"scale_factor = 4 does not fit .*expected 2",
        ),
    ],
)
def test_a_tiny_vae_of_other_latents_is_refused(
    changes: dict, message: str, tmp_path: Path
) -> None:
    tiny = shutil.copytree(TINY, tmp_path / "mine")
    change_json(tiny / "config.json", **changes)
    with pytest.raises(CheckpointError, match=rf"mine.*{message}"):
        read_tiny(tiny)


def test_a_file_that_is_no_tiny_decoder_is_refused(tmp_path: Path) -> None:
    encoder = {
        name.removeprefix("encoder.layers."): tensor
        for name, tensor in load_file(tiny_file(tmp_path)).items()
        if name.startswith("encoder.")
    }
    save_file(encoder, tmp_path / "encoder.safetensors")
    message = r"encoder\.safetensors: the decoder of a tiny VAE is missing; .*decoder\.layers\.0"
    with pytest.raises(CheckpointError, match=message):
        read_tiny(tmp_path / "encoder.safetensors")


def test_a_tiny_vae_is_read_beside_a_single_file(tmp_path: Path) -> None:
    thin = thin_folder(tmp_path / "folder", "sd_1")
    file = thin_file(thin, tmp_path / "whole.safetensors")
    with pytest.raises(CheckpointError, match=r"scale_factor = 2 does not fit .*whole\.safetens"):
        read_tiny(TINY, file)
