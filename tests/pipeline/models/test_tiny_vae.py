"""The tiny VAE: agreement with torch's AutoencoderTiny, and what its configuration may say."""

import shutil
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from pipeline.checkpoints.weights import shape_rngs
from pipeline.errors import CheckpointError
from pipeline.models.layers import merge_kernels
from pipeline.models.shapes import tiny_vae_of
from pipeline.models.tiny_vae import TinyVAE
from pipeline.models.vae_config import PUBLISHED, TinyVAEConfig, read_tiny_vae
from tests.checkpoints import GOLDEN, change_json
from tools import agreement
from tools.agreement import relative_error

FOLDER = GOLDEN / "tiny_vae"
COMPONENT_BOUND = 2e-5


@cache
def golden() -> dict[str, np.ndarray]:
    with np.load(FOLDER / "tiny_vae.npz", allow_pickle=False) as arrays:
        return dict(arrays)


@cache
def tiny_vae() -> TinyVAE:
    return agreement.load_module(TinyVAE, read_tiny_vae(FOLDER / "config.json"), FOLDER)


@pytest.mark.parametrize("merged", [False, True])
def test_pictures_are_torchs(merged: bool) -> None:
    """Pictures agree, and some latents are so large that they are limited."""
    assert np.abs(golden()["z"]).max() > 6
    vae = merge_kernels(nnx.clone(tiny_vae())) if merged else tiny_vae()
    ours = nnx.jit(TinyVAE.decode)(vae, jnp.asarray(golden()["z"]))
    assert relative_error(np.asarray(ours), golden()["decoded"]) <= COMPONENT_BOUND


def test_the_published_shape() -> None:
    module = nnx.eval_shape(lambda: TinyVAE(PUBLISHED, dtype=jnp.bfloat16, rngs=shape_rngs()))
    decoder = nnx.state(module)["decoder"]
    # The published decoder has 1.2 million parameters.
    assert sum(leaf.size for leaf in jax.tree.leaves(decoder)) == 1_222_531
    latents = jax.ShapeDtypeStruct((1, 16, 24, 4), jnp.float32)
    pictures = nnx.eval_shape(TinyVAE.decode, module, latents)
    assert (pictures.shape, pictures.dtype) == ((1, 128, 192, 3), jnp.float32)


def test_the_configuration_follows_from_the_tensors() -> None:
    config = read_tiny_vae(FOLDER / "config.json")
    assert config == TinyVAEConfig(3, 4, 6, (2, 1), 1.0)
    tensors = load_file(FOLDER / "diffusion_pytorch_model.safetensors")
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    assert tiny_vae_of(PUBLISHED, shapes) == config
    alone = {name: shape for name, shape in shapes.items() if name.startswith("decoder.")}
    assert tiny_vae_of(PUBLISHED, alone) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"act_fn": "silu"}, r"act_fn = 'silu' is not supported; expected 'relu'"),
        ({"upsample_fn": "bilinear"}, r"upsample_fn = 'bilinear'.*'nearest'"),
        ({"upsampling_scaling_factor": 4}, r"upsampling_scaling_factor = 4.*expected 2"),
        ({"in_channels": 4}, r"in_channels = 4"),
        ({"out_channels": 4}, r"out_channels = 4"),
        ({"shift_factor": 0.1}, r"shift_factor = 0\.1"),
        ({"scaling_factor": 0}, r"scaling_factor = 0.*above 0"),
        (
            {"decoder_block_out_channels": [6, 8]},
            r"decoder_block_out_channels = \[6, 8\].*2 equal integers",
        ),
        ({"num_decoder_blocks": [2, 1, 1]}, r"decoder_block_out_channels.*3 equal integers"),
        ({"upscale": True}, r"unknown key upscale"),
    ],
)
def test_values_that_are_not_supported(changes: dict, message: str, tmp_path: Path) -> None:
    file = Path(shutil.copy(FOLDER / "config.json", tmp_path))
    change_json(file, **changes)
    with pytest.raises(CheckpointError, match=rf"config\.json: {message}"):
        read_tiny_vae(file)


def test_a_file_without_settings_is_the_published_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"_class_name": "AutoencoderTiny"}')
    assert read_tiny_vae(tmp_path / "config.json") == PUBLISHED
