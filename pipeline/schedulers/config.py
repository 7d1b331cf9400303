"""A checkpoint's choice of scheduler, and its settings, read from `scheduler_config.json`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline.strict_json import StrictJson

MAX_INFERENCE_STEPS = 50  # per request

OFF = (False, None)
PREDICTIONS = ("epsilon", "v_prediction", "sample")
FLOW_PREDICTION = "flow_prediction"
SPACINGS = ("linspace", "leading", "trailing")
# Defaults of most classes.
DEFAULTS: Mapping[str, Any] = {
    "beta_start": 0.0001,
    "beta_end": 0.02,
    "beta_schedule": "linear",
    "timestep_spacing": "linspace",
}
# The key that asks for each way to space sigmas; without one of them, timesteps are spaced.
SIGMA_KEYS = {
    "use_karras_sigmas": "karras",
    "use_exponential_sigmas": "exponential",
    "use_beta_sigmas": "beta",
}
DEFAULT_SIGMAS = "default"
ALIGNED = "align-your-steps"  # sigmas that were optimised for the model's family
_MULTISTEP = {
    "solver_order": (2,),
    "solver_type": ("midpoint",),
    "final_sigmas_type": ("zero",),
    "lambda_min_clipped": (float("-inf"),),
    "variance_type": (None,),
    "use_lu_lambdas": OFF,
    "use_flow_sigmas": OFF,
    "use_dynamic_shifting": OFF,
}
_DISTILLED_DEFAULTS = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "timestep_spacing": "leading",
}
_DISTILLED = {
    "clip_sample": (False,),
    "original_inference_steps": (50,),
    "timestep_scaling": (10.0,),
}


@dataclass(frozen=True)
class SchedulerClass:
    """A class of diffusers, as far as this package supports it.

    Attributes:
        name: its name.
        evaluations: the number of evaluations of the network in every step but the last, which
            always takes one.
        starts_twice: whether a run of more than one step takes one evaluation more at its start.
        supported: settings that it reads and that change its results, with the supported values.
            Where a file leaves one out, its default must be among them; see `own_defaults`.
        implied: settings of the class that the scheduler's name stands for.
        own_defaults: the class's own defaults of such settings, where they are not supported. A
            checkpoint whose file leaves such a setting out is refused. A scheduler that an operator
            or a request chose uses the first supported value instead.
        defaults: defaults of other settings, where they differ from those of most classes.
        predictions: the types of prediction that it supports.
        sigma_schedules: whether it has the settings of `SIGMA_KEYS`.
        zero_snr: whether it reads `rescale_betas_zero_snr`.
        alpha_to_one: the default of `set_alpha_to_one` if it reads that key; None if it does not,
            and always ends without noise.
        spaced: whether `timestep_spacing` decides about the timesteps; otherwise they are some of
            those of the model's distillation.
        one_more: whether it spaces one timestep more than there are steps, and leaves out the last.
        whole_timesteps: whether it steps between whole training timesteps, and converts predictions
            there.
        own_timesteps: whether a run can be given its timesteps.
        eta: the default of the share of noise, if a run can be given it.
    """

    name: str
    evaluations: int = 1
    starts_twice: bool = False
    supported: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    implied: Mapping[str, Any] = field(default_factory=dict)
    own_defaults: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    predictions: Sequence[str] = PREDICTIONS
    sigma_schedules: bool = False
    zero_snr: bool = False
    alpha_to_one: bool | None = None
    spaced: bool = True
    one_more: bool = False
    whole_timesteps: bool = False
    own_timesteps: bool = False
    eta: float | None = None

    @property
    def options(self) -> dict[str, bool]:
        """Whether it takes each setting of a request that only some schedulers take, by name."""
        return {
            "timestep_spacing": self.spaced,
            "sigma_schedule": self.sigma_schedules,
            "timesteps": self.own_timesteps,
            "eta": self.eta is not None,
        }


# The schedulers, by the name that operators and requests use.
SCHEDULERS = {
    "euler": SchedulerClass(
        "EulerDiscreteScheduler",
        supported={
            "interpolation_type": ("linear",),
            "final_sigmas_type": ("zero",),
            "timestep_type": ("discrete",),
            "sigma_min": (None,),
            "sigma_max": (None,),
        },
        sigma_schedules=True,
        zero_snr=True,
        own_timesteps=True,
    ),
    "euler-ancestral": SchedulerClass(
        "EulerAncestralDiscreteScheduler", predictions=PREDICTIONS[:2], zero_snr=True
    ),
    "heun": SchedulerClass(
        "HeunDiscreteScheduler",
        evaluations=2,
        supported={"clip_sample": OFF},
        defaults={"beta_start": 0.00085, "beta_end": 0.012},
        sigma_schedules=True,
        own_timesteps=True,
    ),
    "lms": SchedulerClass("LMSDiscreteScheduler", sigma_schedules=True),
    "ddim": SchedulerClass(
        "DDIMScheduler",
        supported={"clip_sample": (False,)},
        own_defaults={"clip_sample": True},
        defaults={"timestep_spacing": "leading"},
        zero_snr=True,
        alpha_to_one=True,
        whole_timesteps=True,
        eta=0.0,
    ),
    "ddpm": SchedulerClass(
        "DDPMScheduler",
        supported={"clip_sample": (False,), "variance_type": ("fixed_small",)},
        own_defaults={"clip_sample": True},
        defaults={"timestep_spacing": "leading"},
        zero_snr=True,
        whole_timesteps=True,
        own_timesteps=True,
    ),
    "pndm": SchedulerClass(
        "PNDMScheduler",
        starts_twice=True,
        supported={"skip_prk_steps": (True,)},
        own_defaults={"skip_prk_steps": False},
        defaults={"timestep_spacing": "leading"},
        predictions=PREDICTIONS[:2],
        alpha_to_one=False,
    ),
    "dpmsolver++": SchedulerClass(
        "DPMSolverMultistepScheduler",
        supported=_MULTISTEP | {"algorithm_type": ("dpmsolver++",)},
        implied={"algorithm_type": "dpmsolver++"},
        sigma_schedules=True,
        zero_snr=True,
        one_more=True,
        own_timesteps=True,
    ),
    "dpmsolver++-2m-sde": SchedulerClass(
        "DPMSolverMultistepScheduler",
        supported=_MULTISTEP | {"algorithm_type": ("sde-dpmsolver++",)},
        implied={"algorithm_type": "sde-dpmsolver++"},
        sigma_schedules=True,
        zero_snr=True,
        one_more=True,
        own_timesteps=True,
    ),
    "dpmsolver++-sde": SchedulerClass(
        "DPMSolverSDEScheduler",
        evaluations=2,
        defaults={"beta_start": 0.00085, "beta_end": 0.012},
        predictions=PREDICTIONS[:2],
        sigma_schedules=True,
    ),
    "unipc": SchedulerClass(
        "UniPCMultistepScheduler",
        supported={
            "solver_order": (2,),
            "solver_type": ("bh2", "midpoint", "heun", "logrho"),
            "predict_x0": (True,),
            "lower_order_final": (True,),
            "disable_corrector": ([],),
            "solver_p": (None,),
            "final_sigmas_type": ("zero",),
            "use_flow_sigmas": OFF,
            "use_dynamic_shifting": OFF,
            "shift_terminal": (None,),
            "sigma_min": (None,),
            "sigma_max": (None,),
        },
        sigma_schedules=True,
        zero_snr=True,
        one_more=True,
    ),
    "lcm": SchedulerClass(
        "LCMScheduler",
        supported=_DISTILLED,
        defaults=_DISTILLED_DEFAULTS,
        zero_snr=True,
        alpha_to_one=True,
        spaced=False,
        whole_timesteps=True,
        own_timesteps=True,
    ),
    "tcd": SchedulerClass(
        "TCDScheduler",
        supported=_DISTILLED,
        defaults=_DISTILLED_DEFAULTS,
        zero_snr=True,
        alpha_to_one=True,
        spaced=False,
        whole_timesteps=True,
        own_timesteps=True,
        eta=0.3,
    ),
}
# Keys that only `use_dynamic_shifting` reads.
_DYNAMIC = "base_shift", "max_shift", "base_image_seq_len", "max_image_seq_len", "time_shift_type"
# The class that models of flow matching name. Their runs are drawn by "euler" alone.
FLOW_CLASS = SchedulerClass(
    "FlowMatchEulerDiscreteScheduler",
    supported={
        "invert_sigmas": (False,),
        "shift_terminal": (None,),
        "stochastic_sampling": (False,),
        "use_dynamic_shifting": (False,),
        **dict.fromkeys(SIGMA_KEYS, OFF),
    },
    predictions=(FLOW_PREDICTION,),
)
CLASS_NAMES = (
    *dict.fromkeys(scheduler.name for scheduler in SCHEDULERS.values()),
    FLOW_CLASS.name,
)
# Keys that published files carry for another class, or for options that are refused above.
ELSEWHERE = (
    *("clip_sample_range", "sample_max_value", "dynamic_thresholding_ratio", "noise_sampler_seed"),
    *("set_alpha_to_one", "flow_shift", "time_shift_type", "rescale_betas_zero_snr", *SIGMA_KEYS),
    # The last step of DPM-Solver++ ends at noise level zero, so it is of first order anyway.
    *("lower_order_final", "euler_at_final"),
    *(key for scheduler in SCHEDULERS.values() for key in scheduler.supported),
)


@dataclass(frozen=True)
class Betas:
    """Training that mixes x0 and noise by variances (Ho et al. 2020).

    `start`, `end`: the first and the last variance that a timestep adds, and `schedule`, the way
    between them.
    `zero_snr`: whether latents have no signal left at the last training timestep.
    """

    start: float
    end: float
    schedule: str
    zero_snr: bool = False


@dataclass(frozen=True)
class Flow:
    """Training on straight lines from x0 to noise (Liu et al. 2022, "Flow straight and fast").

    `shift`: how much more of a run's steps are spent near noise (Esser et al. 2024, section 5.3.2);
    1 spaces them evenly.
    """

    shift: float


@dataclass(frozen=True)
class SchedulerConfig:
    """A noise schedule and the method that follows it; `name` is a key of `SCHEDULERS`.

    `sigma_schedule`: "default" for sigmas at spaced timesteps, a value of `SIGMA_KEYS`, or
    "align-your-steps".
    `set_alpha_to_one`: True ends the last step without noise, False with the noise of the first
    training timestep.
    `eta`: the share of noise in DDIM and TCD.
    `timesteps`: the timesteps of a run, falling, in place of spaced ones.
    `aligned_sigmas`: the sigmas of "align-your-steps", falling; None if the family has none.
    """

    name: str
    num_train_timesteps: int
    training: Betas | Flow
    prediction_type: str
    timestep_spacing: str
    steps_offset: int
    sigma_schedule: str
    set_alpha_to_one: bool
    eta: float = 0.0
    timesteps: tuple[int, ...] | None = None
    aligned_sigmas: tuple[float, ...] | None = None

    @property
    def betas(self) -> Betas:
        """The variances of training; methods that need them draw no models of flow matching."""
        assert isinstance(self.training, Betas)
        return self.training


def count_evaluations(name: str, steps: int, strength: float = 1.0) -> int:
    """Return how often a run of `steps` evaluates the network.

    `name` is a key of `SCHEDULERS`. Another name, which only a newer instance can send, counts as
    one evaluation a step. `strength` is that of `first_evaluation`.
    """
    scheduler = SCHEDULERS.get(name, SchedulerClass(name))
    total = 1 + (steps - 1) * scheduler.evaluations + (scheduler.starts_twice and steps > 1)
    first = first_evaluation(name, steps, strength)
    return 0 if first is None else total - first


def first_evaluation(name: str, steps: int, strength: float) -> int | None:
    """Return the number of evaluations that a run from a picture leaves out at its start.

    It is that of diffusers' `get_timesteps`; None if no step is left.

    Args:
        name: see `count_evaluations`.
        steps: the number of steps of the whole run.
        strength: the share of the steps that is left, from 0, which leaves none, to 1.
    """
    scheduler = SCHEDULERS.get(name, SchedulerClass(name))
    step_count = min(int(steps * strength), steps)
    return (steps - step_count) * scheduler.evaluations if step_count > 0 else None


def read_scheduler(
    path: Path,
    class_name: str,
    choice: str | None = None,
    forced: Mapping[str, Any] = MappingProxyType({}),
) -> SchedulerConfig:
    """Read `scheduler_config.json`.

    Args:
        path: the file.
        class_name: the class that `model_index.json` names; without `choice`, the file must name
            the same class.
        choice: a key of `SCHEDULERS` that replaces that class, as with diffusers' `from_config`.
            Settings that the file leaves out then have the chosen class's own defaults. If such a
            default is not supported, the supported value is used.
        forced: settings that replace the file's, as some of diffusers' pipelines force them. The
            class of models of flow matching replaces them all.

    Raises:
        CheckpointError: if a setting is not supported; the message names file, key and value.
    """
    keys = StrictJson(path)
    if forced.get("_class_name") == FLOW_CLASS.name:
        keys.values = {key: forced[key] for key in ("_class_name", "shift") if key in forced}
        class_name = FLOW_CLASS.name
    if keys.values.get("_class_name") == class_name == FLOW_CLASS.name:
        return _read_flow(keys, choice or "euler")
    keys.values |= forced
    name = choice or _name(keys, class_name)
    scheduler = SCHEDULERS[name]
    if choice is not None:
        keys.values |= scheduler.implied
    defaults = {**DEFAULTS, **scheduler.defaults}
    config = SchedulerConfig(
        name=name,
        num_train_timesteps=keys.size("num_train_timesteps", 1000),
        training=Betas(
            start=keys.positive("beta_start", defaults["beta_start"]),
            end=keys.positive("beta_end", defaults["beta_end"]),
            schedule=keys.one_of(
                "beta_schedule", ("linear", "scaled_linear"), defaults["beta_schedule"]
            ),
            zero_snr=scheduler.zero_snr
            and bool(keys.one_of("rescale_betas_zero_snr", (*OFF, True))),
        ),
        prediction_type=keys.one_of("prediction_type", scheduler.predictions),
        timestep_spacing=keys.one_of("timestep_spacing", SPACINGS, defaults["timestep_spacing"]),
        steps_offset=_steps_offset(keys),
        sigma_schedule=_sigma_schedule(keys) if scheduler.sigma_schedules else DEFAULT_SIGMAS,
        set_alpha_to_one=scheduler.alpha_to_one is None
        or keys.take("set_alpha_to_one", bool, scheduler.alpha_to_one),
        eta=scheduler.eta or 0.0,
    )
    for key, right in scheduler.supported.items():
        keys.one_of(key, right, right[0] if choice else scheduler.own_defaults.get(key, right[0]))
    if not scheduler.zero_snr:
        keys.one_of("rescale_betas_zero_snr", OFF)
    keys.expect({"thresholding": OFF, "trained_betas": (None,)})
    keys.finish(*ELSEWHERE)
    _check(keys, config, forced)
    return config


def _read_flow(keys: StrictJson, name: str) -> SchedulerConfig:
    """Read the file of a model of flow matching."""
    if name != "euler":
        right = "a class of another kind: models of flow matching are drawn by 'euler' alone"
        raise keys.error("_class_name", FLOW_CLASS.name, right)
    config = SchedulerConfig(
        name=name,
        num_train_timesteps=keys.size("num_train_timesteps", 1000),
        training=Flow(keys.positive("shift", 1.0)),
        prediction_type=keys.one_of("prediction_type", FLOW_CLASS.predictions, FLOW_PREDICTION),
        timestep_spacing="linspace",
        steps_offset=0,
        sigma_schedule=DEFAULT_SIGMAS,
        set_alpha_to_one=True,
    )
    keys.expect(FLOW_CLASS.supported)
    keys.finish(*_DYNAMIC)
    _check(keys, config, {})
    return config


def _sigma_schedule(keys: StrictJson) -> str:
    true_keys = [key for key in SIGMA_KEYS if keys.one_of(key, (*OFF, True))]
    if len(true_keys) > 1:
        raise keys.error(true_keys[1], True, f"False beside {true_keys[0]}")
    return SIGMA_KEYS[true_keys[0]] if true_keys else DEFAULT_SIGMAS


def _check(keys: StrictJson, config: SchedulerConfig, forced: Mapping[str, Any]) -> None:
    """Refuse settings that do not fit together."""
    if config.num_train_timesteps < MAX_INFERENCE_STEPS:
        right = f"at least {MAX_INFERENCE_STEPS}, the most steps of a request"
        raise keys.error("num_train_timesteps", config.num_train_timesteps, right)
    _check_offset(keys, config, forced="steps_offset" in forced)
    if isinstance(config.training, Flow):
        return
    without_signal = config.betas.zero_snr and config.prediction_type == "epsilon"
    if without_signal and SCHEDULERS[config.name].whole_timesteps:
        right = "'v_prediction' with rescale_betas_zero_snr: without signal, this scheduler cannot"
        raise keys.error("prediction_type", "epsilon", f"{right} tell the picture from the noise")
    for key, beta in (("beta_start", config.betas.start), ("beta_end", config.betas.end)):
        if beta >= 1:
            raise keys.error(key, beta, "a number below 1")


def _name(keys: StrictJson, class_name: str) -> str:
    value = keys.values.get("_class_name")
    if value not in CLASS_NAMES:
        raise keys.error("_class_name", value, " or ".join(map(repr, CLASS_NAMES)))
    if value != class_name:
        raise keys.error("_class_name", value, f"{class_name!r}, as in model_index.json")
    names = [name for name, scheduler in SCHEDULERS.items() if scheduler.name == value]
    # One class of diffusers is several schedulers, by its algorithm.
    algorithm = keys.values.get("algorithm_type")
    of_algorithm = (
        name for name in names if algorithm in SCHEDULERS[name].supported.get("algorithm_type", ())
    )
    return next(of_algorithm, names[0])


def _steps_offset(keys: StrictJson) -> int:
    value = keys.take("steps_offset", int, 0)
    if value < 0:
        raise keys.error("steps_offset", value, "0 or more")
    return value


def largest_offset(config: SchedulerConfig) -> int | None:
    """Return the largest `steps_offset` with which no run goes past the training timesteps.

    None if the scheduler does not use the offset: diffusers adds it only with "leading" spacing.
    """
    if config.timestep_spacing != "leading" or not SCHEDULERS[config.name].spaced:
        return None
    return config.num_train_timesteps - 1 - _largest_leading(config)


def _largest_leading(config: SchedulerConfig) -> int:
    """Return the largest timestep of any run with "leading" spacing, before the offset."""
    extra_steps = 1 if SCHEDULERS[config.name].one_more else 0
    counts = range(1 + extra_steps, MAX_INFERENCE_STEPS + extra_steps + 1)
    return max((count - 1) * (config.num_train_timesteps // count) for count in counts)


def _check_offset(keys: StrictJson, config: SchedulerConfig, *, forced: bool) -> None:
    """Refuse an offset that takes a run past the training timesteps.

    An offset that is too large makes diffusers fail with an IndexError, or run a timestep that the
    network was never trained for.
    """
    room, trained = largest_offset(config), config.num_train_timesteps
    if room is None or config.steps_offset <= room:
        return
    if not forced:
        right = f"at most {room}, so that every timestep is below num_train_timesteps = {trained}"
        raise keys.error("steps_offset", config.steps_offset, right)
    # Only the number of training timesteps can be wrong where the offset is forced.
    timestep = _largest_leading(config) + config.steps_offset
    right = f"a number above {timestep}, a run's largest timestep with steps_offset"
    right += f" {config.steps_offset}"
    raise keys.error("num_train_timesteps", trained, right)
