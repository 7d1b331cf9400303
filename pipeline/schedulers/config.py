"""A checkpoint's choice of scheduler, and its settings, read from `scheduler_config.json`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline.strict_json import StrictJson

# diffusers' class of each scheduler, by the name that an operator uses.
SCHEDULERS = {
    "euler": "EulerDiscreteScheduler",
    "euler-ancestral": "EulerAncestralDiscreteScheduler",
    "heun": "HeunDiscreteScheduler",
    "lms": "LMSDiscreteScheduler",
    "ddim": "DDIMScheduler",
    "ddpm": "DDPMScheduler",
    "pndm": "PNDMScheduler",
    "dpmsolver++": "DPMSolverMultistepScheduler",
    "dpmsolver++-2m-sde": "DPMSolverMultistepScheduler",
    "dpmsolver++-sde": "DPMSolverSDEScheduler",
    "unipc": "UniPCMultistepScheduler",
    "lcm": "LCMScheduler",
    "tcd": "TCDScheduler",
}

MAX_INFERENCE_STEPS = 50  # per request

# Schedulers whose class reads `rescale_betas_zero_snr`.
ZERO_SNR = ("euler", "euler-ancestral", "ddim", "dpmsolver++")

OFF = (False, None)
# Settings that a class reads and that change its results, with their supported values.
SUPPORTED: dict[str, dict[str, Sequence[Any]]] = {
    "euler": {
        "interpolation_type": ("linear",),
        "final_sigmas_type": ("zero",),
        "timestep_type": ("discrete",),
        "use_exponential_sigmas": OFF,
        "use_beta_sigmas": OFF,
        "sigma_min": (None,),
        "sigma_max": (None,),
    },
    "euler-ancestral": {},
    "ddim": {},
    "pndm": {},
    "dpmsolver++": {
        "algorithm_type": ("dpmsolver++",),
        "solver_order": (2,),
        "solver_type": ("midpoint",),
        "final_sigmas_type": ("zero",),
        "lambda_min_clipped": (float("-inf"),),
        "variance_type": (None,),
        "use_exponential_sigmas": OFF,
        "use_beta_sigmas": OFF,
        "use_lu_lambdas": OFF,
        "use_flow_sigmas": OFF,
        "use_dynamic_shifting": OFF,
    },
}
# Keys that published files carry for another class, or for options that are refused above.
ELSEWHERE = (
    *("clip_sample", "clip_sample_range", "sample_max_value", "dynamic_thresholding_ratio"),
    *("set_alpha_to_one", "skip_prk_steps", "use_karras_sigmas", "flow_shift", "time_shift_type"),
    # The last step of DPM-Solver++ ends at noise level zero, so it is of first order anyway.
    *("lower_order_final", "euler_at_final"),
    *(key for settings in SUPPORTED.values() for key in settings),
)


@dataclass(frozen=True)
class SchedulerConfig:
    """A noise schedule and the method that follows it; `name` is a key of `SCHEDULERS`.

    `set_alpha_to_one`: True ends the last step of DDIM and PNDM without noise, False with the
    noise of the first training timestep.
    `rescale_betas_zero_snr`: whether latents have no signal left at the last training timestep.
    """

    name: str
    num_train_timesteps: int
    beta_start: float
    beta_end: float
    beta_schedule: str
    prediction_type: str
    timestep_spacing: str
    steps_offset: int
    use_karras_sigmas: bool
    set_alpha_to_one: bool
    rescale_betas_zero_snr: bool


def read_scheduler(
    path: Path,
    named: str,
    chosen: str | None = None,
    forced: Mapping[str, Any] = MappingProxyType({}),
) -> SchedulerConfig:
    """Read `scheduler_config.json`.

    Args:
        path: the file.
        named: the class that `model_index.json` names; without `chosen`, the file must name the
            same class.
        chosen: a key of `SCHEDULERS` that replaces that class, as with diffusers' `from_config`.
            Settings that the file leaves out then have the chosen class's own defaults. If such a
            default is not supported (skip_prk_steps, clip_sample), the supported value is used.
        forced: settings that replace the file's, as some of diffusers' pipelines force them.

    Raises:
        CheckpointError: if a setting is not supported; the message names file, key and value.
    """
    keys = StrictJson(path)
    keys.values |= forced
    name = chosen or _name(keys, named)
    spacings = ["linspace", "leading", "trailing"]
    config = SchedulerConfig(
        name=name,
        num_train_timesteps=keys.size("num_train_timesteps", 1000),
        beta_start=keys.positive("beta_start", 0.0001),
        beta_end=keys.positive("beta_end", 0.02),
        beta_schedule=keys.one_of("beta_schedule", ("linear", "scaled_linear")),
        prediction_type=keys.one_of("prediction_type", ("epsilon", "v_prediction")),
        timestep_spacing=keys.one_of(
            "timestep_spacing", spacings, "leading" if name in ("ddim", "pndm") else "linspace"
        ),
        steps_offset=_steps_offset(keys),
        use_karras_sigmas=name in ("euler", "dpmsolver++")
        and bool(keys.one_of("use_karras_sigmas", (False, True, None))),
        set_alpha_to_one=name in ("ddim", "pndm")
        and keys.take("set_alpha_to_one", bool, name == "ddim"),
        rescale_betas_zero_snr=bool(
            keys.one_of("rescale_betas_zero_snr", (*OFF, True) if name in ZERO_SNR else OFF)
        ),
    )
    if name == "pndm":
        keys.one_of("skip_prk_steps", (True,), default=chosen is not None)
    if name == "ddim":
        keys.one_of("clip_sample", (False,), default=chosen is None)
    for key, right in SUPPORTED[name].items():
        keys.one_of(key, right)
    keys.one_of("thresholding", OFF)
    keys.one_of("trained_betas", (None,))
    keys.drop(*ELSEWHERE)
    keys.finish()
    if config.num_train_timesteps < MAX_INFERENCE_STEPS:
        right = f"at least {MAX_INFERENCE_STEPS}, the most steps of a request"
        raise keys.error("num_train_timesteps", config.num_train_timesteps, right)
    _check_offset(keys, config, forced="steps_offset" in forced)
    if config.rescale_betas_zero_snr and (name, config.prediction_type) == ("ddim", "epsilon"):
        right = "'v_prediction' with rescale_betas_zero_snr: without signal, DDIM cannot tell the"
        raise keys.error("prediction_type", "epsilon", f"{right} picture from the noise")
    for key, beta in (("beta_start", config.beta_start), ("beta_end", config.beta_end)):
        if beta >= 1:
            raise keys.error(key, beta, "a number below 1")
    return config


def _name(keys: StrictJson, named: str) -> str:
    value = keys.values.get("_class_name")
    if value not in SCHEDULERS.values():
        raise keys.error("_class_name", value, " or ".join(map(repr, SCHEDULERS.values())))
    if value != named:
        raise keys.error("_class_name", value, f"{named!r}, as in model_index.json")
    return next(name for name, class_name in SCHEDULERS.items() if class_name == value)


def _steps_offset(keys: StrictJson) -> int:
    value = keys.take("steps_offset", int, 0)
    if value < 0:
        raise keys.error("steps_offset", value, "0 or more")
    return value


def _check_offset(keys: StrictJson, config: SchedulerConfig, *, forced: bool) -> None:
    """Refuse an offset that takes a run past the training timesteps.

    diffusers adds the offset only with "leading" spacing. An offset that is too large makes it fail
    with an IndexError, or run a timestep that the network was never trained for.
    """
    if config.timestep_spacing != "leading":
        return
    trained = config.num_train_timesteps
    # DPM-Solver++ spaces one timestep more than there are steps and leaves out the last timestep.
    more = 1 if config.name == "dpmsolver++" else 0
    counts = range(1 + more, MAX_INFERENCE_STEPS + more + 1)
    largest = max((count - 1) * (trained // count) for count in counts)
    room = trained - 1 - largest
    if config.steps_offset <= room:
        return
    if not forced:
        right = f"at most {room}, so that every timestep is below num_train_timesteps = {trained}"
        raise keys.error("steps_offset", config.steps_offset, right)
    # Only the number of training timesteps can be wrong where the offset is forced.
    timestep = largest + config.steps_offset
    right = f"a number above {timestep}, a run's largest timestep with steps_offset"
    right += f" {config.steps_offset}"
    raise keys.error("num_train_timesteps", trained, right)
