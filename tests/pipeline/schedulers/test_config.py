"""Scheduler and settings that a file asks for, and values that are refused or ignored."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import CheckpointError
from pipeline.families.stable_diffusion import SD_1
from pipeline.schedulers.config import (
    SCHEDULERS,
    SIGMA_KEYS,
    SchedulerConfig,
    read_scheduler,
)
from pipeline.schedulers.methods import make_schedule

# Settings with which every class supports the file of any other class.
PLAIN = {"beta_schedule": "scaled_linear", "clip_sample": False, "skip_prk_steps": True}
NOTHING: dict[str, Any] = {}
FORCED = SD_1.forced_scheduler_settings


def read(
    folder: Path,
    name: str,
    chosen: str | None = None,
    forced: Mapping[str, Any] = NOTHING,
    **values: Any,
) -> SchedulerConfig:
    class_name = SCHEDULERS[name].name
    file = folder / "scheduler_config.json"
    settings = {"_class_name": class_name, **PLAIN, **SCHEDULERS[name].implied, **values}
    file.write_text(json.dumps(settings))
    return read_scheduler(file, class_name, chosen, forced)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_class_decides(tmp_path: Path, name: str) -> None:
    config = read(tmp_path, name)
    assert config.name == name
    # Each class has its own defaults.
    leading = ("ddim", "ddpm", "pndm", "lcm", "tcd")
    assert config.timestep_spacing == ("leading" if name in leading else "linspace")
    assert config.set_alpha_to_one == (name != "pndm")
    assert config.betas.end == (
        0.012 if name in ("heun", "dpmsolver++-sde", "lcm", "tcd") else 0.02
    )
    assert config.eta == (0.3 if name == "tcd" else 0.0)


@pytest.mark.parametrize("chosen", SCHEDULERS)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_another_one_may_be_chosen(tmp_path: Path, name: str, chosen: str) -> None:
    config = read(tmp_path, name, chosen, prediction_type="v_prediction", steps_offset=2)
    assert config == read(tmp_path, chosen, prediction_type="v_prediction", steps_offset=2)
    assert (config.name, config.prediction_type, config.steps_offset) == (chosen, "v_prediction", 2)


def test_a_chosen_scheduler_replaces_an_unsupported_class(tmp_path: Path) -> None:
    file = tmp_path / "scheduler_config.json"
    file.write_text(json.dumps({"_class_name": "DEISMultistepScheduler", **PLAIN}))
    assert read_scheduler(file, "DEISMultistepScheduler", "ddim").name == "ddim"
    with pytest.raises(CheckpointError, match="_class_name = 'DEISMultistepScheduler'"):
        read_scheduler(file, "DEISMultistepScheduler")


def test_a_chosen_scheduler_ignores_unsupported_defaults(tmp_path: Path) -> None:
    own = (("pndm", "skip_prk_steps"), ("ddim", "clip_sample"), ("ddpm", "clip_sample"))
    for chosen, key in own:
        file = tmp_path / "scheduler_config.json"
        file.write_text(json.dumps({"_class_name": SCHEDULERS[chosen].name}))
        assert read_scheduler(file, SCHEDULERS[chosen].name, chosen).name == chosen
        with pytest.raises(CheckpointError, match=f"{key} = .* is not supported"):
            read_scheduler(file, SCHEDULERS[chosen].name)


@pytest.mark.parametrize(("key", "expected"), SIGMA_KEYS.items())
def test_only_schedulers_with_sigma_schedules_accept_them(
    tmp_path: Path, key: str, expected: str
) -> None:
    for name, scheduler in SCHEDULERS.items():
        right = expected if scheduler.sigma_schedules else "default"
        values: dict[str, Any] = {key: True}
        assert read(tmp_path, name, **values).sigma_schedule == right


def test_one_schedule_of_sigmas(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"use_beta_sigmas = True .* use_karras_sigmas"):
        read(tmp_path, "euler", use_karras_sigmas=True, use_beta_sigmas=True)


def test_the_algorithm_is_a_scheduler_of_its_own(tmp_path: Path) -> None:
    noisy: dict[str, Any] = {"algorithm_type": "sde-dpmsolver++"}
    assert read(tmp_path, "dpmsolver++", **noisy).name == "dpmsolver++-2m-sde"
    assert read(tmp_path, "dpmsolver++", "dpmsolver++", **noisy).name == "dpmsolver++"
    assert read(tmp_path, "dpmsolver++", "dpmsolver++-2m-sde").name == "dpmsolver++-2m-sde"


def test_zero_terminal_snr(tmp_path: Path) -> None:
    for name in (name for name, scheduler in SCHEDULERS.items() if scheduler.zero_snr):
        settings = {"prediction_type": "v_prediction", "rescale_betas_zero_snr": True}
        assert read(tmp_path, name, **settings).betas.zero_snr
        for off in (False, None):
            assert not read(tmp_path, name, rescale_betas_zero_snr=off).betas.zero_snr
        assert not read(tmp_path, name).betas.zero_snr
    assert read(tmp_path, "euler", rescale_betas_zero_snr=True).prediction_type == "epsilon"
    said = r"prediction_type = 'epsilon' .* 'v_prediction' with rescale_betas_zero_snr"
    for name in (name for name, scheduler in SCHEDULERS.items() if scheduler.whole_timesteps):
        with pytest.raises(CheckpointError, match=said):
            read(tmp_path, name, rescale_betas_zero_snr=True)


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("given", [{}, {"steps_offset": 0}, {"steps_offset": 1}])
def test_stable_diffusion_1_and_2_have_an_offset(
    tmp_path: Path, name: str, given: dict[str, Any]
) -> None:
    assert read(tmp_path, name, forced=FORCED, **given).steps_offset == 1
    assert read(tmp_path, name, **given).steps_offset == given.get("steps_offset", 0)


def test_stable_diffusion_1_and_2_are_never_clipped(tmp_path: Path) -> None:
    assert read(tmp_path, "ddim", forced=FORCED, clip_sample=True).name == "ddim"
    with pytest.raises(CheckpointError, match="clip_sample = True is not supported"):
        read(tmp_path, "ddim", clip_sample=True)
    # The other schedulers ignore it.
    assert read(tmp_path, "euler", clip_sample=True).name == "euler"


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("pndm", "skip_prk_steps", False),
        ("euler", "num_train_timesteps", 49),
        ("euler", "num_train_timesteps", 10**9),
        ("pndm", "set_alpha_to_one", None),
        ("pndm", "prediction_type", "sample"),
        ("pndm", "rescale_betas_zero_snr", True),
        ("ddim", "rescale_betas_zero_snr", 1),
        ("ddim", "thresholding", True),
        ("ddim", "timestep_spacing", "karras"),
        ("dpmsolver++", "algorithm_type", "dpmsolver"),
        ("euler-ancestral", "prediction_type", "sample"),
        ("dpmsolver++-sde", "prediction_type", "sample"),
        ("heun", "clip_sample", True),
        ("ddpm", "variance_type", "fixed_large"),
        ("unipc", "solver_type", "bh1"),
        ("unipc", "predict_x0", False),
        ("unipc", "disable_corrector", [0]),
        ("lcm", "original_inference_steps", 100),
        ("lms", "rescale_betas_zero_snr", True),
        ("dpmsolver++", "solver_order", 3),
        ("dpmsolver++", "solver_type", "heun"),
        ("dpmsolver++", "final_sigmas_type", "sigma_min"),
        ("dpmsolver++", "lambda_min_clipped", -5.1),
        ("dpmsolver++", "use_lu_lambdas", True),
        ("dpmsolver++", "use_flow_sigmas", True),
        ("dpmsolver++", "variance_type", "learned_range"),
        ("dpmsolver++", "nonsense", 1),
    ],
)
def test_refused_with_file_key_and_value(tmp_path: Path, name: str, key: str, value: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path, name, **{key: value})
    assert str(tmp_path / "scheduler_config.json") in str(caught.value)
    assert f"{key} = {value!r}" in str(caught.value)


@pytest.mark.parametrize(
    "name", [name for name, scheduler in SCHEDULERS.items() if scheduler.spaced]
)
def test_an_offset_stays_within_the_training_timesteps(tmp_path: Path, name: str) -> None:
    config = read(tmp_path, name, timestep_spacing="leading", steps_offset=19)
    runs = [make_schedule(config, steps).timesteps for steps in range(1, 51)]
    assert max(map(max, runs)) == 999
    for offset in (20, 1000, 10**30):
        said = rf"scheduler_config\.json: steps_offset = {offset} is not supported; .* at most 19,"
        with pytest.raises(CheckpointError, match=said):
            read(tmp_path, name, timestep_spacing="leading", steps_offset=offset)
        # As in diffusers, the other spacings ignore it.
        for spacing in ("linspace", "trailing"):
            read(tmp_path, name, timestep_spacing=spacing, steps_offset=offset)


def test_the_offset_of_stable_diffusion_1_and_2_needs_room(tmp_path: Path) -> None:
    assert read(tmp_path, "ddim", num_train_timesteps=50).steps_offset == 0
    with pytest.raises(CheckpointError, match=r"num_train_timesteps = 50 .* a number above 50, a"):
        read(tmp_path, "ddim", forced=FORCED, num_train_timesteps=50)
    make_schedule(read(tmp_path, "ddim", forced=FORCED, num_train_timesteps=51), 50)


def test_settings_of_other_classes_are_ignored(tmp_path: Path) -> None:
    assert read(tmp_path, "ddim", solver_order=3, sigma_max=80.0).name == "ddim"
    assert read(tmp_path, "pndm", lambda_min_clipped=float("-inf")).name == "pndm"
