"""Settings of a request, each declared once, and checks that need no loaded checkpoint.

`GenerateRequest` declares the settings. The HTTP schemas, the command line, links, the text inside
pictures and the page's components are made from `SETTINGS`, which lists these declarations.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from pipeline.errors import InputError
from pipeline.schedulers import recipes
from pipeline.schedulers.config import (
    DEFAULT_SIGMAS,
    MAX_INFERENCE_STEPS,
    SCHEDULERS,
    SPACINGS,
    count_evaluations,
)
from pipeline.schedulers.names import (
    SAMPLERS,
    SCHEDULE_TYPES,
    find_scheduler,
    find_sigma_schedule,
)
from pipeline.setting_kinds import (
    Choice,
    Controls,
    Fault,
    Loras,
    Named,
    Number,
    OwnNumber,
    OwnWhole,
    Seed,
    Setting,
    Size,
    Texts,
    Timesteps,
    Variations,
    Whole,
    parse_variations,
)
from pipeline.text.loras import parse_loras
from pipeline.text.prompt_syntax import PLAIN, SYNTAXES

FULL, TINY = "full", "tiny"  # decoders: the VAE's, and the tiny VAE's
MAX_IMAGES = 64  # per request
MAX_PADDING = 1024  # pixels
MAX_CACHE_INTERVAL = 5  # evaluations
MAX_CLIP_SKIP = 12  # layers
NUM_INFERENCE_STEPS, GUIDANCE_SCALE = 25, 5.0  # of models that have no others
STRENGTH = 0.8  # of requests with a picture that give none
DENOISING_END = 0.8  # the same with a refiner
MIN_DENOISING_END = 0.01
ENLARGE_STRENGTH = 0.35  # of second runs that give none


def _declare(setting: Setting) -> Any:
    default = dataclasses.MISSING if setting.default is ... else setting.default
    return dataclasses.field(default=default, metadata={"setting": setting})


# --- the settings ---


@dataclass(frozen=True)
class GenerateRequest:
    """Request for pictures: every setting, with its limits and its default.

    The order is that of `/generate`'s arguments, so new settings come last.
    """

    prompt: str | Sequence[str] = _declare(
        Texts(description="What to draw: one text for all pictures, or one for each.")
    )
    negative_prompt: str | Sequence[str] | None = _declare(
        Texts(default=None, description="What the pictures should not show.", flag="negative")
    )
    guidance_scale: float | None = _declare(
        Number(
            default=None,
            high=50,
            description="How closely to follow the prompt.",
            details="1 and below: no guidance.",
            of_model={"default": "guidance_scale"},
            absent_note="The model's own if None.",
            flag="guidance",
            key="CFG scale",
        )
    )
    num_inference_steps: int | None = _declare(
        Whole(
            default=None,
            low=1,
            high=MAX_INFERENCE_STEPS,
            any_high=1000,
            of_model={"default": "num_inference_steps", "high": "max_inference_steps"},
            absent_note="The model's own if None.",
            description="Denoising steps.",
            flag="steps",
            link="steps",
            key="Steps",
        )
    )
    seed: int = _declare(Seed(description="Picture i is drawn from seed + i."))
    guidance_until: float = _declare(
        Number(
            default=1.0,
            high=1,
            description="The share of the steps that have guidance, from the first step on.",
            details="Less is quicker.",
            optional=True,
        )
    )
    variation_strength: float = _declare(
        Number(
            default=0.0,
            high=1,
            description="How far to vary the picture of `seed`.",
            details="0: no variations.",
            key="Variation seed strength",
            optional=True,
        )
    )
    variation_seed: int = _declare(
        Seed(
            description="The noise of variation i is turned towards that of variation_seed + i.",
            part_of="variation_strength",
        )
    )
    variation_of: str = _declare(
        Variations(
            default="",
            description="Earlier variations to apply first, in order; their result is varied.",
            optional=True,
            part_of="variation_strength",
        )
    )
    guidance_rescale: float = _declare(
        Number(
            default=0.0,
            high=1,
            description="How far to undo the contrast that guidance adds.",
            details="0: the model's own, mostly none. About 0.7 for zero terminal SNR.",
            optional=True,
        )
    )
    loras: str = _declare(
        Loras(
            default="",
            description="The LoRAs to draw with, by name, and their weights.",
            details="Of two weights, the UNet's comes first, then the text encoders'.",
            key="Loras",
            optional=True,
        )
    )
    controls: str = _declare(
        Controls(
            default="",
            description="The ControlNets through which the pictures follow others.",
            details="Each has a picture to follow, in the same order.",
            key="Controls",
            optional=True,
        )
    )

    scheduler: str = _declare(
        Choice(
            choices=tuple(SCHEDULERS),
            of_model={"choices": "schedulers"},
            texts=SAMPLERS,
            description="The scheduler, which removes the noise.",
            details='Names such as "DPM++ 2M Karras" are understood too.',
            key="Sampler",
            optional=True,
        )
    )
    sigma_schedule: str = _declare(
        Choice(
            choices=tuple(SCHEDULE_TYPES),
            of_model={"choices": "sigma_schedules"},
            texts=SCHEDULE_TYPES,
            description="How noise levels are spaced.",
            key="Schedule type",
            optional=True,
        )
    )
    timestep_spacing: str = _declare(
        Choice(
            choices=SPACINGS,
            description="How timesteps are spaced.",
            optional=True,
        )
    )
    timesteps: str = _declare(
        Timesteps(
            of_model={"trained": "num_train_timesteps"},
            description="The timesteps to use, falling, instead of the scheduler's own.",
            details="Their number is then the number of steps.",
            optional=True,
        )
    )
    eta: float | None = _declare(
        OwnNumber(
            high=1,
            description="The share of new noise in the steps of DDIM and TCD.",
            key="Eta DDIM",
            optional=True,
        )
    )
    decoder: str = _declare(
        Choice(
            choices=(FULL, TINY),
            of_model={"choices": "decoders"},
            description="The decoder, which turns latents into pictures.",
            details=f"{TINY}: quicker and less exact; only with a tiny VAE.",
            optional=True,
        )
    )
    recipe: str = _declare(
        Choice(
            choices=recipes.NAMES,
            of_model={"choices": "recipe_names"},
            description="Draw in few steps with a distilled LoRA, by the name of its recipe.",
            details="Sets the LoRA, scheduler, steps and guidance scale together.",
            least=1,
            unknown="missing_recipe",
            optional=True,
        )
    )
    strength: float | None = _declare(
        OwnNumber(
            low=0.01,
            high=1,
            description="How far to redraw the picture that the request starts from.",
            details="1: as if there were none.",
            key="Denoising strength",
            optional=True,
            absent_note=f"{STRENGTH} with a picture if None.",
        )
    )
    padding: int | None = _declare(
        OwnWhole(
            high=MAX_PADDING,
            description="Draw only the masked part, with this many pixels around it.",
            key="Masked area padding",
            optional=True,
            absent_note="The whole picture is drawn if None.",
        )
    )
    prompt_syntax: str = _declare(
        Choice(
            choices=SYNTAXES,
            default=PLAIN,
            absent_note="",
            description="The syntax of prompts.",
            details="a1111: AUTOMATIC1111's, with weights, changes, breaks, lists and LoRAs.",
            optional=True,
        )
    )
    cache_interval: int = _declare(
        Whole(
            default=1,
            low=1,
            high=MAX_CACHE_INTERVAL,
            of_model={"high": "max_cache_interval"},
            unavailable="no_step_cache",
            description="Run the whole UNet only once in this many evaluations.",
            details="Higher is quicker and less exact. Above 1 it needs a step cache.",
            optional=True,
        )
    )

    denoising_end: float | None = _declare(
        OwnNumber(
            low=MIN_DENOISING_END,
            high=1,
            description="The share of the denoising after which the refiner takes over.",
            details="1: the base model alone.",
            key="Refiner switch at",
            optional=True,
            of_model={"low": "min_denoising_end"},
            unavailable="missing_refiner",
            absent_note=f"{DENOISING_END} with a refiner if None.",
        )
    )

    model: str = _declare(
        Named(
            of_model={"choices": "model_names"},
            description="The name of the model to draw with.",
            flag="checkpoint",
            optional=True,
        )
    )

    enlarge: str = _declare(
        Size(
            of_model={"choices": "size_names"},
            description="Draw the finished pictures again in a larger size.",
            details="The second run starts from them.",
            key="Hires resize",
            optional=True,
        )
    )
    enlarge_strength: float | None = _declare(
        OwnNumber(
            low=0.01,
            high=1,
            description="How far the second run redraws the pictures.",
            key="Hires strength",
            optional=True,
            part_of="enlarge",
            absent_note=f"{ENLARGE_STRENGTH} if None, but at least the share of one step.",
        )
    )
    enlarge_steps: int | None = _declare(
        OwnWhole(
            low=1,
            high=MAX_INFERENCE_STEPS,
            of_model={"high": "max_inference_steps"},
            any_high=1000,
            description="The steps of the second run.",
            details="Only the share `enlarge_strength` of them is taken.",
            key="Hires steps",
            optional=True,
            part_of="enlarge",
            absent_note="As many as those of the first run if None.",
        )
    )

    clip_skip: int = _declare(
        Whole(
            default=0,
            high=MAX_CLIP_SKIP,
            of_model={"high": "max_clip_skip"},
            unavailable="no_clip_skip",
            description="The layer of the text encoder that is read, counted from the last one.",
            details="0: the model's own, mostly the last. Only for Stable Diffusion 1.",
            optional=True,
        )
    )

    @property
    def settings(self) -> dict[str, Any]:
        """The values of all settings by name, as `SDXLPipeline.generate` takes them."""
        return {name: getattr(self, name) for name in SETTINGS}

    @property
    def lora_weights(self) -> dict[str, tuple[float, float]]:
        """The weights in the UNet and in the text encoders of each LoRA, by name, sorted."""
        return parse_loras(self.loras)

    @property
    def steps(self) -> int:
        """Number of steps of a resolved request: that of the timesteps, if it names any."""
        count = self.timesteps.count(",") + 1 if self.timesteps else self.num_inference_steps
        return cast(int, count)

    @property
    def guidance(self) -> float:
        """Guidance scale of a resolved request."""
        return cast(float, self.guidance_scale)

    @property
    def share(self) -> float:
        """The share of the steps that are taken: the strength, or 1 without one."""
        return 1.0 if self.strength is None else self.strength

    @property
    def runs(self) -> list[tuple[int, float]]:
        """Number of steps of each run of a resolved request, and the share that is taken."""
        second = self.enlarge_steps or self.steps, cast(float, self.enlarge_strength)
        return [(self.steps, self.share), *([second] if self.enlarge else [])]

    @property
    def drawn_steps(self) -> int:
        """Number of steps that a picture of a resolved request takes in all its runs."""
        return sum(int(steps * share) for steps, share in self.runs)

    @property
    def ends_early(self) -> bool:
        """Whether the model leaves the last steps to a refiner."""
        return self.denoising_end not in (None, 1)

    def guided_steps(self, steps: int) -> int:
        """Return how many of a run's steps have guidance; they come first.

        There are none for a scale of 1 or less.
        """
        until = self.guidance_until if self.guidance > 1 else 0.0
        return round(until * steps)

    def evaluations(self, own_scheduler: str) -> int:
        """Return how often a picture evaluates the network, if the model's own scheduler is this.

        It is the measure of a request's work: some schedulers evaluate it twice in a step, and a
        run from a picture takes fewer steps the lower its strength is.
        """
        return sum(count_evaluations(self.scheduler or own_scheduler, *run) for run in self.runs)

    def of_picture(self, index: int) -> dict[str, Any]:
        """Return the values for one picture: its own prompts and seeds.

        Variations share one seed; each has a variation seed of its own.
        """
        values = {
            name: SETTINGS[name].of_picture(value, index) for name, value in self.settings.items()
        }
        return values | ({"seed": self.seed} if self.variation_strength > 0 else {})


SETTINGS: Mapping[str, Setting] = {
    field.name: field.metadata["setting"].named(field.name)
    for field in dataclasses.fields(GenerateRequest)
}
# Settings with one value for all pictures, or with one that follows from the first picture's.
VALUES = [setting for setting in SETTINGS.values() if not isinstance(setting, Texts)]
CHOICES = [name for name, setting in SETTINGS.items() if isinstance(setting, Choice)]


def effective(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values without those that change nothing, which texts and links leave out."""
    unset = {name for name, value in values.items() if value == SETTINGS[name].default}
    return {
        name: value
        for name, value in values.items()
        if not (SETTINGS[name].optional and name in unset) and SETTINGS[name].part_of not in unset
    }


def with_own_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with the scheduler and the sigma schedule under this program's names.

    Other programs' names are understood, and "DPM++ 2M Karras" names both. A sigma schedule that is
    given is used in place of the one that the scheduler's name contains. Unknown names stay.
    """
    scheduler, sigma_schedule = values.get("scheduler"), values.get("sigma_schedule")
    name, contained = find_scheduler(scheduler) if isinstance(scheduler, str) else (None, None)
    schedule = find_sigma_schedule(sigma_schedule) if isinstance(sigma_schedule, str) else None
    names = {
        "scheduler": name,
        "sigma_schedule": schedule or (None if sigma_schedule else contained),
    }
    return {**values, **{key: value for key, value in names.items() if value}}


@dataclass(frozen=True)
class Misfit:
    """Reason why a setting cannot be used together with another one.

    Attributes:
        setting: the setting that cannot be used.
        value: its value.
        other: the other setting.
        other_value: the value of the other setting, or the model's own.
        choices: values of `other` with which it could be used; empty if it must be left out.
    """

    setting: Setting
    value: Any
    other: Setting
    other_value: Any
    choices: Sequence[str] = ()

    def __str__(self) -> str:
        name, other = self.setting.name, self.other.name
        if not self.choices:
            return f"{name} and {other} cannot be used together; leave one of them out"
        right = f"leave it out, or set {other} to {' or '.join(map(repr, self.choices))}"
        return f"{name} is {self.value!r}, which {other} {self.other_value!r} cannot use; {right}"


def misfits(request: GenerateRequest, own_scheduler: str) -> Iterator[Misfit]:
    """Yield settings that cannot be used together.

    Args:
        request: a request without `faults`.
        own_scheduler: the scheduler that draws it if it names none. If it is not among
            `SCHEDULERS`, only the instance that has it can check what it takes.
    """
    scheduler_name = request.scheduler or own_scheduler
    options = SCHEDULERS[scheduler_name].options if scheduler_name in SCHEDULERS else {}
    for name, is_taken in options.items():
        value = getattr(request, name)
        if is_taken or value in (SETTINGS[name].default, DEFAULT_SIGMAS):
            continue
        choices = [key for key, scheduler in SCHEDULERS.items() if scheduler.options[name]]
        yield Misfit(SETTINGS[name], value, SETTINGS["scheduler"], scheduler_name, choices)
    if request.timesteps and request.sigma_schedule not in ("", DEFAULT_SIGMAS):
        sigmas = SETTINGS["sigma_schedule"], request.sigma_schedule
        yield Misfit(SETTINGS["timesteps"], request.timesteps, *sigmas)


def faults(request: GenerateRequest, model: object = None) -> Iterator[Fault]:
    """Yield a fault for each value that cannot be used, by `model`'s own limits if it is given."""
    for setting in SETTINGS.values():
        model_setting = setting if model is None else setting.for_model(model)
        if fault := model_setting.fault(getattr(request, setting.name)):
            yield fault


# --- checked requests ---


@dataclass(frozen=True)
class Request(GenerateRequest):
    """A request whose values have been checked: one prompt and negative prompt per picture.

    Attributes:
        images: the number of pictures.
        ignored: for each picture the parts of its prompts that have no effect, as they are written;
            empty before the prompts' lists are chosen from, and in plain syntax.
    """

    images: int = 1
    ignored: tuple[tuple[str, ...], ...] = ()

    @property
    def prompts(self) -> list[str]:
        """The prompt of each picture."""
        return self._each("prompt")

    @property
    def negative_prompts(self) -> list[str]:
        """The negative prompt of each picture."""
        return self._each("negative_prompt")

    @property
    def seeds(self) -> list[int]:
        """The seed of each picture."""
        return self._each("seed")

    @property
    def variation_seeds(self) -> list[int]:
        """The variation seed of each picture."""
        return self._each("variation_seed")

    @property
    def variations(self) -> list[tuple[list[int], float]]:
        """The variations to apply in order: a seed for each picture, and the strength."""
        if not self.variation_strength > 0:
            return []
        pairs = [([seed] * self.images, x) for seed, x in parse_variations(self.variation_of)]
        return [*pairs, (self.variation_seeds, self.variation_strength)]

    def _each(self, name: str) -> list[Any]:
        return [self.of_picture(i)[name] for i in range(self.images)]


def check_request(request: GenerateRequest, images: int) -> Request:
    """Return the checked request for `images` pictures.

    Raises:
        InputError: if a value cannot be used; the message names it.
    """
    check_count("images_per_request", images, 1, MAX_IMAGES)
    values = with_own_names(request.settings)
    for fault in faults(dataclasses.replace(request, **values)):
        raise InputError(str(fault))
    for name, setting in SETTINGS.items():
        if isinstance(setting, Texts):
            absent = values[name] is None and setting.default is None
            values[name] = _per_picture(name, "" if absent else values[name], images)
        else:
            values[name] = setting.checked(values[name])
    return Request(**values, images=images)


def checked_latents(latents: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return latents as a NumPy array `[images, h, w, C]` float32.

    Args:
        latents: the noise to check.
        shape: the shape that it must have.

    Raises:
        InputError: if the shape, the dtype or a value is wrong; the message says which.
    """
    try:
        array = np.asarray(latents)
    except ValueError as error:
        raise InputError(f"latents are not an array of {list(shape)} float32: {error}") from error
    if array.shape != shape or array.dtype != np.float32:
        raise InputError(
            f"latents are {list(array.shape)} {array.dtype}; expected {list(shape)} float32"
        )
    if not np.isfinite(array).all():
        raise InputError("latents hold NaN or infinity; expected standard normal noise")
    return array


def _per_picture(name: str, value: Any, count: int) -> list[str]:
    if isinstance(value, str):
        texts = [value] * count
    else:
        texts = list(value) if isinstance(value, Iterable) else [value]
    if len(texts) != count or not all(isinstance(text, str) for text in texts):
        raise InputError(
            f"{name} must be one text, or a list of {count}, one for each picture;"
            f" got {len(texts)} of {sorted({type(text).__name__ for text in texts})}"
        )
    return texts


def check_count(name: str, value: object, low: int, high: int) -> None:
    """Raise InputError unless `value` is a whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputError(f"{name} is {value!r}; expected a whole number from {low} to {high}")
    if not low <= value <= high:
        raise InputError(f"{name} is {value}; expected {low} to {high}")


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise InputError unless `value` is one of the choices."""
    if value not in choices:
        right = ", ".join(map(repr, choices))
        raise InputError(f"{name} is {value!r}; expected one of {right}")


def check_name(owner: str, name: str, is_name: Callable[[str], bool], without: str) -> None:
    """Raise InputError if a LoRA, a model or an embedding cannot have this name."""
    if not is_name(name):
        raise InputError(
            f"{name!r} cannot be {owner} name; expected up to 100 printable characters without"
            f" {without}; pass another as name"
        )


def check_faults(faults: Mapping[str, bool]) -> None:
    """Raise InputError with the first of these messages whose fault is there."""
    for message, is_there in faults.items():
        if is_there:
            raise InputError(message)
