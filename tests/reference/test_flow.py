"""SDXL trained by flow matching agrees with torch's, from noise and from pictures."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from pipeline import SDXLPipeline
from tests.reference import torch_reference
from tests.reference.pictures import (
    IMAGES,
    NEGATIVE,
    PROMPTS,
    SCALE,
    STEPS,
    Loaded,
    check,
    drawn,
    pictures,
)
from tests.reference.samples import check_sample
from tests.reference.tiny_checkpoints import TINY, Files, load, write

TIMESTEPS = 1000


class FlowScheduler(FlowMatchEulerDiscreteScheduler):
    """diffusers' scheduler with the methods that SDXL's pipelines call on every scheduler."""

    init_noise_sigma = 1.0

    def scale_model_input(self, sample: torch.Tensor, _timestep: Any) -> torch.Tensor:
        return sample

    def add_noise(
        self, samples: torch.Tensor, noise: torch.Tensor, timesteps: torch.Tensor
    ) -> torch.Tensor:
        return self.scale_noise(samples, timesteps, noise)


@pytest.fixture(scope="module", params=[1.0, 3.0])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """Make an SDXL whose scheduler shifts noise levels so far."""
    folder: Path = tmp_path_factory.mktemp("flow")
    tiny = dataclasses.replace(
        TINY["plain"],
        scheduler={"num_train_timesteps": TIMESTEPS, "shift": request.param},
        scheduler_class=FlowMatchEulerDiscreteScheduler,
        files=Files(),
    )
    write(tiny, folder)
    theirs = load(folder)
    theirs.scheduler = FlowScheduler.from_config(theirs.scheduler.config)
    ours = SDXLPipeline.from_pretrained(
        folder, images_per_request=IMAGES, dtype="float32", devices=jax.devices()[:1]
    )
    return Loaded(theirs, ours)


def test_from_noise(loaded: Loaded, request: pytest.FixtureRequest) -> None:
    rng = np.random.default_rng(request.config.getoption("--seed"))
    noise, _, _ = pictures(rng, loaded)
    check_sample(loaded.theirs, loaded.ours, noise, PROMPTS, NEGATIVE, SCALE)


@pytest.mark.parametrize("strength", [0.3, 0.8])
def test_from_pictures(loaded: Loaded, strength: float, request: pytest.FixtureRequest) -> None:
    rng = np.random.default_rng(request.config.getoption("--seed"))
    noise, images, _ = pictures(rng, loaded)

    def theirs(noise: np.ndarray) -> torch_reference.Sample:
        return torch_reference.sample_from_picture(
            loaded.theirs, PROMPTS, NEGATIVE, noise, SCALE, STEPS, images, strength=strength
        )

    check(drawn(loaded.ours, noise, image=[*images], strength=strength), theirs, noise)
