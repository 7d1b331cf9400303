"""The cases in which schedulers are compared with diffusers', step by step.

A case is the keywords of `SchedulerConfig` that differ from SDXL's, `steps`, and those of `PART` if
it is a part of a run.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pipeline.schedulers.config import (
    SCHEDULERS,
    SIGMA_KEYS,
    SPACINGS,
    Betas,
    SchedulerConfig,
)

Case = Mapping[str, Any]

STEPS = 5
OWN_TIMESTEPS = (999, 845, 587, 310, 53)
ETAS = (0.0, 0.4, 1.0)
# Keywords of `make_schedule` for a part of a run.
PART = ("strength", "denoising_start", "denoising_end")
STRENGTHS = (1.0, 0.9, 0.5, 0.3)
SWITCHES = (0.8, 0.45)  # shares of the denoising after which another model goes on
SDXL = SchedulerConfig(
    name="euler",
    num_train_timesteps=1000,
    training=Betas(0.00085, 0.012, "scaled_linear"),
    prediction_type="epsilon",
    timestep_spacing="leading",
    steps_offset=1,
    sigma_schedule="default",
    set_alpha_to_one=True,
)


def cases() -> Iterator[Case]:
    """Yield every option of every scheduler, with the others at their defaults."""
    for name, scheduler in SCHEDULERS.items():
        spacings = SPACINGS if scheduler.spaced else ("leading",)
        for prediction in scheduler.predictions:
            for spacing in spacings:
                case = {"name": name, "timestep_spacing": spacing, "prediction_type": prediction}
                yield {**case, "steps": STEPS}
                # A sample is all that a network can predict without signal, beside v.
                is_blind = scheduler.whole_timesteps and prediction == "epsilon"
                if scheduler.zero_snr and not is_blind:
                    yield {**case, "rescale_betas_zero_snr": True, "steps": STEPS}
        for steps in (1, 2, 3):
            yield {"name": name, "steps": steps}
        if scheduler.sigma_schedules:
            for sigma_schedule in SIGMA_KEYS.values():
                yield {"name": name, "sigma_schedule": sigma_schedule, "steps": STEPS}
        if scheduler.own_timesteps:
            yield {"name": name, "timesteps": OWN_TIMESTEPS, "steps": STEPS}
        if scheduler.eta is not None:
            for eta in ETAS:
                yield {"name": name, "eta": eta, "steps": STEPS}
        if scheduler.alpha_to_one is False:
            yield {"name": name, "set_alpha_to_one": False, "steps": STEPS}
        yield from _parts(name)


def _parts(name: str) -> Iterator[Case]:
    """Yield runs from a picture, and the two parts of runs that two models share."""
    for strength in STRENGTHS:
        yield {"name": name, "steps": STEPS, "strength": strength}
    for share in SWITCHES:
        yield {"name": name, "steps": STEPS, "denoising_end": share}
        yield {"name": name, "steps": STEPS, "denoising_start": share}
    if SCHEDULERS[name].sigma_schedules:
        yield {"name": name, "sigma_schedule": "karras", "steps": STEPS, "strength": 0.7}


def config_of(case: Case) -> SchedulerConfig:
    """Return the configuration of a case."""
    eta = SCHEDULERS[case["name"]].eta or 0.0
    changes = {key: value for key, value in case.items() if key not in ("steps", *PART)}
    if "timesteps" in changes:
        changes["timesteps"] = tuple(changes["timesteps"])
    zero_snr = changes.pop("rescale_betas_zero_snr", False)
    return replace(with_zero_snr(SDXL, zero_snr), **{"eta": eta} | changes)


def with_zero_snr(config: SchedulerConfig, zero_snr: bool = True) -> SchedulerConfig:
    """Return a configuration with or without signal at the last training timestep."""
    return replace(config, training=replace(config.betas, zero_snr=zero_snr))


def part_of(case: Case) -> dict[str, float]:
    """Return the keywords of `make_schedule` for the case's part of a run."""
    return {key: case[key] for key in PART if key in case}
