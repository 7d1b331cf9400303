"""The tiny VAE: agreement with torch's AutoencoderTiny, alone and in whole pipelines."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diffusers import AutoencoderTiny
from flax import nnx

from pipeline import SDXLPipeline
from pipeline.models.tiny_vae import TinyVAE
from pipeline.models.vae_config import PUBLISHED, read_tiny_vae
from tests.checkpoints import EXECUTABLES, GOLDEN
from tests.reference import torch_reference
from tests.reference.tiny_checkpoints import load, write_tiny_vae
from tools import agreement
from tools.agreement import relative_error

NETWORK_BOUND = 1e-4
PICTURE_BOUND = 1 / 255
PROMPTS = ["a red star on a blue background", "night, light and a soft outline!"]
STEPS = 8


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    return request.config.getoption("--seed")


def drawn(rng: np.random.Generator) -> dict[str, object]:
    """Return arguments of a tiny VAE of random shape."""
    stages = int(rng.integers(1, 5))
    widths = {half: int(rng.integers(3, 12)) for half in ("encoder", "decoder")}
    return {
        "latent_channels": int(rng.choice((4, 8, 16))),
        **{f"{half}_block_out_channels": (width,) * stages for half, width in widths.items()},
        **{f"num_{half}_blocks": rng.integers(1, 4, stages).tolist() for half in widths},
    }


@pytest.mark.parametrize("number", range(4))
def test_networks_agree(number: int, seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng([seed, number, 12])
    theirs = write_tiny_vae(tmp_path, rng, **drawn(rng))
    ours = agreement.load_module(TinyVAE, read_tiny_vae(tmp_path / "config.json"), tmp_path)
    z = 4 * rng.standard_normal((2, 3, 5, ours.config.latent_channels), dtype=np.float32)
    decoded = nnx.jit(TinyVAE.decode)(ours, jnp.asarray(z))
    assert (
        relative_error(np.asarray(decoded), torch_reference.vae_decode(theirs, z)) <= NETWORK_BOUND
    )


def test_the_published_shape_agrees(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng([seed, 13])
    published = {
        "encoder_block_out_channels": (64,) * 4,
        "decoder_block_out_channels": (64,) * 4,
        "num_encoder_blocks": (1, 3, 3, 3),
        "num_decoder_blocks": (3, 3, 3, 1),
    }
    theirs = write_tiny_vae(tmp_path, rng, **published)
    assert read_tiny_vae(tmp_path / "config.json") == PUBLISHED
    ours = agreement.load_module(TinyVAE, PUBLISHED, tmp_path)
    z = rng.standard_normal((1, 8, 6, 4), dtype=np.float32)
    decoded = nnx.jit(TinyVAE.decode)(ours, jnp.asarray(z))
    expected = torch_reference.vae_decode(theirs, z)
    assert relative_error(np.asarray(decoded), expected) <= NETWORK_BOUND


@pytest.mark.parametrize("name", ["plain", "sd_1"])
def test_pictures_agree(name: str) -> None:
    folder, tiny = GOLDEN / name / "checkpoint", GOLDEN / "tiny_vae"
    theirs = load(folder, "fp16" if list(folder.glob("unet/*.fp16*")) else None)
    own = theirs.vae
    theirs.vae = AutoencoderTiny.from_pretrained(tiny)
    ours = SDXLPipeline.from_pretrained(
        folder,
        images_per_request=2,
        devices=jax.devices()[:1],
        tiny_vae=tiny,
        cache_dir=EXECUTABLES,
    )
    unet = ours._config.networks["unet"]
    noise = np.random.default_rng(12).standard_normal(
        (2, *unet.sample_size, unet.in_channels), dtype=np.float32
    )
    expected = torch_reference.sample(theirs, PROMPTS, None, noise, 5.0, STEPS).images
    images, full = (
        ours.generate(
            PROMPTS,
            num_inference_steps=STEPS,
            latents=noise,
            output_type="np",
            decoder=decoder,
        ).images
        for decoder in ("tiny", "full")
    )
    assert np.abs(images - expected).max() <= PICTURE_BOUND
    theirs.vae = own
    expected = torch_reference.sample(theirs, PROMPTS, None, noise, 5.0, STEPS).images
    assert np.abs(full - expected).max() <= PICTURE_BOUND
