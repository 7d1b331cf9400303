"""The miniature's LoRAs in torch's diffusers: the files load there, and draw the same pictures."""

import jax
import numpy as np
import pytest
from diffusers import EulerDiscreteScheduler, StableDiffusionXLPipeline

from pipeline import BUNDLED, SDXLPipeline
from tests.reference import torch_reference
from tests.reference.samples import psnr

LORAS = BUNDLED / "loras"
NAMES = ("dusk", "glow", "miniature-quick")
PROMPTS = ("a large red star on a blue background", "a green circle above a yellow square")
IMAGES = 2


@pytest.fixture(scope="module")
def ours() -> SDXLPipeline:
    devices = jax.devices()[:1]
    pipe = SDXLPipeline.from_pretrained(BUNDLED, images_per_request=IMAGES, devices=devices)
    for name in NAMES:
        pipe.load_lora(LORAS / f"{name}.safetensors")
    return pipe


@pytest.fixture(scope="module")
def theirs() -> StableDiffusionXLPipeline:
    pipe = StableDiffusionXLPipeline.from_pretrained(BUNDLED, local_files_only=True)
    pipe.set_progress_bar_config(disable=True)
    for name in NAMES:
        pipe.load_lora_weights(LORAS, weight_name=f"{name}.safetensors", adapter_name=name)
    return pipe


@pytest.fixture
def noise(theirs: StableDiffusionXLPipeline, request: pytest.FixtureRequest) -> np.ndarray:
    rng = np.random.default_rng(request.config.getoption("--seed"))
    side, channels = theirs.unet.config.sample_size, theirs.unet.config.in_channels
    return rng.standard_normal((IMAGES, side, side, channels), dtype=np.float32)


@pytest.mark.parametrize("loras", [{"dusk": 1.0}, {"glow": 1.0}, {"dusk": 0.5, "glow": 0.5}])
def test_the_same_pictures(
    ours: SDXLPipeline,
    theirs: StableDiffusionXLPipeline,
    loras: dict[str, float],
    noise: np.ndarray,
) -> None:
    theirs.set_adapters(list(loras), list(loras.values()))
    expected = torch_reference.sample(theirs, PROMPTS, None, noise, 5.0)
    drawn = ours.generate(PROMPTS, None, 5.0, latents=noise, output_type="np", loras=loras)
    assert min(map(psnr, drawn.images, expected.images)) >= 50


def test_the_same_pictures_in_four_steps(
    ours: SDXLPipeline,
    theirs: StableDiffusionXLPipeline,
    noise: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = theirs.scheduler.config
    spaced = EulerDiscreteScheduler.from_config(own, timestep_spacing="trailing")
    monkeypatch.setattr(theirs, "scheduler", spaced)
    theirs.set_adapters("miniature-quick")
    expected = torch_reference.sample(theirs, PROMPTS, None, noise, 1.0, steps=4)
    drawn = ours.generate(
        PROMPTS,
        guidance_scale=1.0,
        num_inference_steps=4,
        latents=noise,
        output_type="np",
        loras={"miniature-quick": 1.0},
        timestep_spacing="trailing",
    )
    assert min(map(psnr, drawn.images, expected.images)) >= 50
