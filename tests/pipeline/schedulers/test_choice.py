"""The choice of a request's scheduler, and the sigmas that were optimised for a family."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import InputError
from pipeline.families.sdxl import SDXL as FAMILY
from pipeline.families.stable_diffusion import SD_1, SD_2
from pipeline.schedulers.choice import Schedulers, read_schedulers
from pipeline.schedulers.config import (
    ALIGNED,
    MAX_INFERENCE_STEPS,
    SCHEDULERS,
    count_evaluations,
)
from pipeline.schedulers.euler import euler_sigmas
from pipeline.schedulers.methods import make_schedule
from pipeline.schedulers.names import SAMPLERS, SCHEDULE_TYPES, find_scheduler, find_sigma_schedule
from pipeline.schedulers.sigmas import aligned_sigmas
from tests.scheduler_cases import SDXL

BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


def schedulers(
    folder: Path, class_name: str = "EulerDiscreteScheduler", **values: Any
) -> Schedulers:
    """Read the schedulers of a file with these values."""
    file = folder / "scheduler_config.json"
    file.write_text(json.dumps({"_class_name": class_name, **BETAS, **values}))
    return read_schedulers(file, class_name, aligned_sigmas=FAMILY.aligned_sigmas)


def test_without_a_choice_it_is_the_models_own(tmp_path: Path) -> None:
    found = schedulers(tmp_path, use_karras_sigmas=True, timestep_spacing="trailing")
    assert found.choose() == found.own == found.choose("euler")
    assert found.configs.keys() == SCHEDULERS.keys()


def test_a_choice_keeps_the_rest_of_the_file(tmp_path: Path) -> None:
    found = schedulers(tmp_path, use_karras_sigmas=True, timestep_spacing="trailing")
    other = found.choose("dpmsolver++")
    assert (other.name, other.sigma_schedule) == ("dpmsolver++", "karras")
    assert other.timestep_spacing == "trailing"
    assert found.choose("ddim").sigma_schedule == "default"
    assert found.choose("tcd").eta == 0.3
    assert found.choose("tcd", eta=0).eta == 0
    assert found.choose(timestep_spacing="linspace").timestep_spacing == "linspace"


def test_timesteps_replace_the_files_sigmas(tmp_path: Path) -> None:
    found = schedulers(tmp_path, use_karras_sigmas=True).choose(timesteps=[999, 499])
    assert (found.timesteps, found.sigma_schedule) == ((999, 499), "default")
    assert make_schedule(found, 2).timesteps.tolist() == [999, 499]


def test_a_scheduler_that_does_not_fit_the_model_says_why(tmp_path: Path) -> None:
    found = schedulers(tmp_path, prediction_type="sample")
    assert {*found.refused} == {"euler-ancestral", "pndm", "dpmsolver++-sde"}
    with pytest.raises(InputError, match="'pndm' does not fit this model: prediction_type = "):
        found.choose("pndm")
    assert not any(str(tmp_path) in reason for reason in found.refused.values())


def test_timesteps_that_the_model_does_not_have(tmp_path: Path) -> None:
    found = schedulers(tmp_path, num_train_timesteps=100)
    with pytest.raises(InputError, match="timesteps begin with 100; expected at most 99"):
        found.choose(timesteps=[100, 1])
    assert found.choose(timesteps=[99, 1]).timesteps == (99, 1)


def test_a_spacing_that_goes_past_the_models_timesteps(tmp_path: Path) -> None:
    found = schedulers(tmp_path, timestep_spacing="trailing", steps_offset=30)
    with pytest.raises(InputError, match="expected 'trailing' or 'linspace'"):
        found.choose(timestep_spacing="leading")


# --- align your steps


@pytest.mark.parametrize(
    ("family", "timesteps"),
    [
        (FAMILY, [999, 845, 730, 587, 443, 310, 193, 116, 53, 13]),
        (SD_1, [999, 850, 736, 645, 545, 455, 343, 233, 124, 24]),
    ],
    ids=["SDXL", "SD 1"],
)
def test_published_sigmas_are_at_the_published_timesteps(family: Any, timesteps: list[int]) -> None:
    config = replace(SDXL, sigma_schedule=ALIGNED, aligned_sigmas=family.aligned_sigmas)
    found, sigmas = euler_sigmas(config, 10)
    assert sigmas.tolist() == pytest.approx([*family.aligned_sigmas[:10], 0])
    np.testing.assert_allclose(found, timesteps, atol=1.5)


def test_other_numbers_of_steps_are_interpolated() -> None:
    sigmas = [16.0, 4.0, 1.0]
    assert aligned_sigmas(sigmas, 4).tolist() == pytest.approx([16, 8, 4, 2])
    assert aligned_sigmas(sigmas, 1).tolist() == pytest.approx([16])


def test_a_family_without_published_sigmas(tmp_path: Path) -> None:
    found = replace(schedulers(tmp_path), aligned_sigmas=SD_2.aligned_sigmas)
    assert ALIGNED not in found.sigma_schedules
    with pytest.raises(InputError, match=f"sigma_schedule is '{ALIGNED}', which this model's fam"):
        found.choose(sigma_schedule=ALIGNED)


# --- numbers of evaluations


def test_evaluations_are_those_of_the_table(tmp_path: Path) -> None:
    for name, config in schedulers(tmp_path).configs.items():
        for steps in (1, 2, 3, MAX_INFERENCE_STEPS):
            assert count_evaluations(name, steps) == make_schedule(config, steps).stops[-1]
    assert count_evaluations("one of a newer version", 7) == 7


def test_evaluations_from_a_picture(tmp_path: Path) -> None:
    for name, config in schedulers(tmp_path).configs.items():
        for steps, strength in ((1, 1.0), (7, 0.3), (25, 0.5), (MAX_INFERENCE_STEPS, 0.02)):
            stops = make_schedule(config, steps, strength=strength).stops
            assert count_evaluations(name, steps, strength) == stops[-1]
        assert count_evaluations(name, 4, 0.2) == 0
    assert count_evaluations("one of a newer version", 10, 0.5) == 5


# --- names


@pytest.mark.parametrize(
    ("text", "scheduler", "sigma_schedule"),
    [
        ("Euler a", "euler-ancestral", None),
        ("euler_ancestral", "euler-ancestral", None),
        ("EulerAncestralDiscreteScheduler", "euler-ancestral", None),
        ("DPM++ 2M Karras", "dpmsolver++", "karras"),
        ("DPM++ 2M SDE Exponential", "dpmsolver++-2m-sde", "exponential"),
        ("DPM++ SDE Karras", "dpmsolver++-sde", "karras"),
        ("dpmpp_2m", "dpmsolver++", None),
        ("DPMSolverMultistepScheduler", "dpmsolver++", None),
        ("PLMS", "pndm", None),
        ("uni_pc", "unipc", None),
        ("Euler Automatic", "euler", "default"),
        ("DPM2 a Karras", None, None),
        ("Karras", None, None),
        ("", None, None),
    ],
)
def test_names_of_other_programs(text: str, scheduler: str | None, sigma_schedule: str | None):
    assert find_scheduler(text) == (scheduler, sigma_schedule)


def test_every_name_is_found_again() -> None:
    assert SAMPLERS.keys() == SCHEDULERS.keys()
    for name, text in SAMPLERS.items():
        assert find_scheduler(name) == find_scheduler(text.upper()) == (name, None)
        for sigma_schedule, kind in SCHEDULE_TYPES.items():
            assert find_sigma_schedule(kind) == sigma_schedule
            assert find_scheduler(f"{text} {kind}") == (name, sigma_schedule)
