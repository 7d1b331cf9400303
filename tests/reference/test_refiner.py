"""Live agreement with torch's base model and refiner, on random checkpoints.

The refiner has the base model's text encoder and VAE, as in diffusers' documentation.
"""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from pipeline import SDXLPipeline
from pipeline.schedulers.methods import make_schedule
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
    use_scheduler,
)
from tests.reference.tiny_checkpoints import REFINER, TINY, Files, load, write
from tests.reference.torch_reference import Sample


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of a base model and of its refiner."""
    made = {"base": TINY["plain"], "refiner": REFINER["refiner"]}
    found = {name: tmp_path_factory.mktemp(name) for name in made}
    for name, folder in found.items():
        write(dataclasses.replace(made[name], files=Files()), folder)
    return found


@pytest.fixture(scope="module")
def both(folders: dict[str, Path]) -> tuple[Loaded, Loaded]:
    """Return the base model, which is ours with its refiner, and the refiner beside it."""
    ours = SDXLPipeline.from_pretrained(
        folders["base"],
        refiner=folders["refiner"],
        images_per_request=IMAGES,
        dtype="float32",
        devices=jax.devices()[:1],
    )
    base = load(folders["base"])
    beside = load(folders["refiner"], text_encoder_2=base.text_encoder_2, vae=base.vae)
    return Loaded(base, ours), Loaded(beside, ours)


@pytest.mark.parametrize("share", [0.5, 0.75])
@pytest.mark.parametrize("scheduler", ["euler", "dpmsolver++", "euler-ancestral", "heun"])
def test_the_refiner_goes_on(
    scheduler: str,
    share: float,
    both: tuple[Loaded, Loaded],
    request: pytest.FixtureRequest,
) -> None:
    base, refiner = both
    own = base.ours._config.schedulers.choose(scheduler)
    first = make_schedule(own, STEPS, denoising_start=share).first
    for loaded in both:
        use_scheduler(loaded, scheduler)
    rng = np.random.default_rng(request.config.getoption("--seed"))
    noise, *_ = pictures(rng, base)

    def theirs(noise: np.ndarray) -> Sample:
        one = torch_reference.sample(
            base.theirs, PROMPTS, NEGATIVE, noise, SCALE, STEPS, denoising_end=share
        )
        return torch_reference.sample_from_picture(
            refiner.theirs,
            PROMPTS,
            NEGATIVE,
            one.latents,
            SCALE,
            STEPS,
            one.latents,
            first_evaluation=first,
            denoising_start=share,
        )

    check(drawn(base.ours, noise, scheduler=scheduler, denoising_end=share), theirs, noise)


@pytest.mark.parametrize("strength", [0.4, 0.8])
def test_the_refiner_alone(
    strength: float, folders: dict[str, Path], request: pytest.FixtureRequest
) -> None:
    ours = SDXLPipeline.from_pretrained(
        folders["refiner"], images_per_request=IMAGES, dtype="float32", devices=jax.devices()[:1]
    )
    loaded = Loaded(load(folders["refiner"]), ours)
    rng = np.random.default_rng(request.config.getoption("--seed"))
    noise, images, _ = pictures(rng, loaded)

    def theirs(noise: np.ndarray) -> Sample:
        return torch_reference.sample_from_picture(
            loaded.theirs, PROMPTS, NEGATIVE, noise, SCALE, STEPS, images, strength=strength
        )

    check(drawn(ours, noise, image=[*images], strength=strength), theirs, noise)
