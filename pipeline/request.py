"""Settings of a request, each declared once, and checks that need no loaded checkpoint.

`GenerateRequest` declares the settings. The HTTP schemas, the command line, links, the text inside
pictures and the page's components are made from `SETTINGS`, which lists these declarations.
"""

import dataclasses
import math
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self, TypeVar

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
from pipeline.text.loras import MAX_LORAS, MAX_WEIGHT, LoraWeights, format_loras, parse_loras

FULL, TINY = "full", "tiny"  # decoders: the VAE's, and the tiny VAE's
MAX_IMAGES = 64  # per request
MAX_SEED = 2**32 - 1
MAX_VARIATIONS = 8  # in a list
_VARIATION = r"[0-9]{1,10}:[0-9](\.[0-9]{1,20})?"
VARIATIONS = rf"({_VARIATION}(,{_VARIATION}){{0,{MAX_VARIATIONS - 1}}})?"
_TIMESTEPS = re.compile(rf"[0-9]{{1,5}}( ?, ?[0-9]{{1,5}}){{0,{MAX_INFERENCE_STEPS - 1}}}")


def random_seed() -> int:
    """Return a random seed from 0 to MAX_SEED."""
    return secrets.randbelow(MAX_SEED + 1)


# --- kinds of settings ---


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Declaration of a setting.

    Attributes:
        name: name in Python and over HTTP.
        default: value for requests that leave it out; `...` if it cannot be left out.
        description: meaning, as programs read it.
        details: more about the values, for the command line and for Gradio's clients.
        flag: name on the command line and of the page's component, by default `name`.
        link: name in links and for Gradio's clients, by default `name`.
        key: name in a picture's text, by default `name`.
        optional: whether pictures' texts and links leave it out if it has its default.
        part_of: name of the setting whose default turns this one off; "" for none.
        after: name of the setting that it follows on the page and on the command line, if that is
            not the one declared before it.
        on_page: whether the page shows it.
        if_set: whether the page shows it only while it has another value than the default, which a
            link or a picture can give it.
        in_per_cent: whether the page shows it in per cent; it is a share from 0 to 1.
    """

    kind: ClassVar[Any] = str
    noun: ClassVar[str] = "a text"

    name: str = ""
    default: Any = ...
    description: str
    details: str = ""
    flag: str = ""
    link: str = ""
    key: str = ""
    optional: bool = False
    part_of: str = ""
    after: str = ""
    on_page: bool = True
    if_set: bool = False
    in_per_cent: bool = False

    def named(self, name: str) -> Self:
        """Return the declaration under this name, with all names that derive from it."""
        return dataclasses.replace(
            self,
            name=name,
            flag=self.flag or name.replace("_", "-"),
            link=self.link or name,
            key=self.key or name.replace("_", " ").capitalize(),
        )

    @property
    def help(self) -> str:
        """Description with the limits, as the command line and Gradio's clients show it."""
        return self.description

    def for_model(self, model: object) -> Self:
        """Return the declaration with the limits and the default that hold for a model."""
        return self

    @property
    def absent_note(self) -> str:
        """Note on what a request that leaves it out gets; "" if that is simply the default."""
        return ""

    def absent_value(self, model: object) -> Any:
        """Return the value that a request to `model` gets if it leaves the setting out."""
        return self.for_model(model).default

    def of_picture(self, value: Any, index: int) -> Any:
        """Return the value for one picture of a request."""
        return value

    @property
    def limits(self) -> dict[str, Any]:
        """Values for a message that says what would be right."""
        return {}

    def expected(self, code: str) -> str:
        """Return what would be right, for a fault of this code."""
        return self.noun

    def fault(self, value: Any) -> "Fault | None":
        """Return why a value cannot be used; None if it can."""
        return None

    def checked(self, value: Any) -> Any:
        """Return a value that can be used, in the type that requests have it in."""
        return self.kind(value)

    def in_text(self, value: Any) -> Any:
        """Return a value as a picture's text has it."""
        return self.kind(value)


@dataclass(frozen=True, kw_only=True)
class Texts(Setting):
    """Declaration of a text: one for all pictures, or a sequence with one for each."""

    def of_picture(self, value: Any, index: int) -> str:
        return value or "" if isinstance(value, str | None) else value[index]


@dataclass(frozen=True, kw_only=True)
class Number(Setting):
    """Declaration of a number.

    Attributes:
        low, high: limits, both inclusive.
        any_high: upper limit of any model, for HTTP schemas, if it differs from `high`.
        model_default: whether a model has its own default, in its attribute of the setting's name.
        slider_high: end of the page's slider, if it is lower.
        slider_step: step of the page's slider.
    """

    kind = float
    noun = "a number"

    low: float = 0
    high: float
    any_high: float | None = None
    model_default: bool = False
    slider_high: float | None = None
    slider_step: float = 0.05

    @property
    def help(self) -> str:
        limits = f"{self.description.removesuffix('.')}, {self.low} to {self.high}."
        return f"{limits} {self.details}".strip()

    @property
    def absent_note(self) -> str:
        return "The server's own if None." if self.model_default else ""

    def for_model(self, model: object) -> Self:
        if not self.model_default:
            return self
        return dataclasses.replace(self, default=getattr(model, self.name))

    @property
    def most_on_page(self) -> float:
        """Largest value of the page's component."""
        return self.high if self.slider_high is None else self.slider_high

    @property
    def limits(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high}

    def expected(self, code: str) -> str:
        known = self.kind is int and code == "out_of_range"
        return f"{'' if known else f'{self.noun} from '}{self.low} to {self.high}"

    def fault(self, value: Any) -> "Fault | None":
        if not _is_number(value) or not abs(value) < math.inf:
            return Fault("not_a_number", self, value)
        return None if self.low <= value <= self.high else Fault("out_of_range", self, value)


@dataclass(frozen=True, kw_only=True)
class Whole(Number):
    """Declaration of a whole number.

    Attributes:
        model_high: name of the model's attribute that holds its own upper limit; "" if it has none.
    """

    kind = int
    noun = "a whole number"

    slider_step: float = 1
    model_high: str = ""

    def for_model(self, model: object) -> Self:
        own = super().for_model(model)
        if not self.model_high:
            return own
        return dataclasses.replace(own, high=getattr(model, self.model_high))

    def fault(self, value: Any) -> "Fault | None":
        if not _is_number(value) or not abs(value) < math.inf:
            return Fault("not_whole", self, value)
        if not self.low <= value <= self.high and value == int(value):
            return Fault("out_of_range", self, value)
        return None if isinstance(value, int | np.integer) else Fault("not_whole", self, value)


@dataclass(frozen=True, kw_only=True)
class OwnNumber(Number):
    """Declaration of a number that has another default with each scheduler."""

    default: Any = None

    @property
    def absent_note(self) -> str:
        return "The scheduler's own if None."

    def fault(self, value: Any) -> "Fault | None":
        return None if value is None else super().fault(value)

    def checked(self, value: Any) -> float | None:
        return None if value is None else super().checked(value)


@dataclass(frozen=True, kw_only=True)
class Seed(Whole):
    """Declaration of a seed: picture i has the seed plus i. Without one it is random."""

    default: Any = 0
    high: float = MAX_SEED

    @property
    def absent_note(self) -> str:
        return "Random if None."

    def absent_value(self, model: object) -> int:
        return random_seed()

    def of_picture(self, value: int, index: int) -> int:
        return (value + index) % (MAX_SEED + 1)


@dataclass(frozen=True, kw_only=True)
class Choice(Setting):
    """Declaration of a choice among names. The default "" stands for the model's own.

    Attributes:
        choices: the names.
        model_choices: name of the model's attribute with the names that it can draw with; "" if
            these are all of them.
        texts: the names as a picture's text has them, where they differ.
    """

    noun = "a name"

    default: Any = ""
    choices: Sequence[str]
    model_choices: str = ""
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def help(self) -> str:
        named = f"{self.description.removesuffix('.')}: {', '.join(self.choices)}."
        return f"{named} {self.details}".strip()

    @property
    def absent_note(self) -> str:
        return "The model's own if None."

    def for_model(self, model: object) -> Self:
        own = getattr(model, self.model_choices) if self.model_choices else self.choices
        return dataclasses.replace(self, choices=own)

    @property
    def limits(self) -> dict[str, Any]:
        return {"choices": [*self.choices]}

    def expected(self, code: str) -> str:
        return f"one of {', '.join(map(repr, self.choices))}"

    def fault(self, value: Any) -> "Fault | None":
        known = value is None or (isinstance(value, str) and value in ("", *self.choices))
        return None if known else Fault("unknown_choice", self, value)

    def checked(self, value: str | None) -> str:
        return value or ""

    def in_text(self, value: Any) -> str:
        return self.texts.get(value, value)


@dataclass(frozen=True, kw_only=True)
class Timesteps(Setting):
    """Declaration of a run's timesteps.

    The value is a text such as "999,749,499,249"; in Python a sequence of whole numbers has the
    same meaning. The default "" stands for spaced timesteps.

    Attributes:
        high: the largest timestep, inclusive.
        model_trained: name of the model's attribute with the number of its timesteps.
    """

    example: ClassVar[str] = "999,749,499,249"
    noun = "a list"

    default: Any = ""
    high: int = 999
    model_trained: str = "num_train_timesteps"

    @property
    def help(self) -> str:
        return f"{self.description.removesuffix('.')}, such as {self.example}. {self.details}"

    def for_model(self, model: object) -> Self:
        return dataclasses.replace(self, high=getattr(model, self.model_trained) - 1)

    @property
    def limits(self) -> dict[str, Any]:
        return {"low": 0, "high": self.high, "limit": MAX_INFERENCE_STEPS, "example": self.example}

    def expected(self, code: str) -> str:
        falling = f"up to {MAX_INFERENCE_STEPS} falling whole numbers from 0 to {self.high}"
        return f"{falling}, such as {self.example!r}"

    def fault(self, value: Any) -> "Fault | None":
        try:
            timesteps = parse_timesteps(self.checked(value))
        except (TypeError, ValueError):
            return Fault("not_timesteps", self, value)
        too_late = timesteps and timesteps[0] > self.high
        return Fault("not_timesteps", self, value) if too_late else None

    def checked(self, value: str | Sequence[int] | None) -> str:
        listed = () if value is None else value
        text = listed if isinstance(listed, str) else ",".join(map(str, listed))
        return ",".join(map(str, parse_timesteps(text)))


@dataclass(frozen=True, kw_only=True)
class Variations(Setting):
    """Declaration of a list of variations: seeds with strengths, such as "12:0.25,34:0.5"."""

    example: ClassVar[str] = "12:0.25,34:0.5"
    noun = "a list"

    @property
    def help(self) -> str:
        return f"{self.description.removesuffix('.')}, such as {self.example}."

    @property
    def limits(self) -> dict[str, Any]:
        return {"example": self.example}

    def expected(self, code: str) -> str:
        return f"{self.noun} such as {self.example!r}"

    def fault(self, value: Any) -> "Fault | None":
        try:
            parse_variations(value)
        except (TypeError, ValueError):
            return Fault("unreadable", self, value)
        return None


@dataclass(frozen=True, kw_only=True)
class Loras(Setting):
    """Declaration of LoRAs with their weights.

    The value is a text such as "pixel:0.8,other:0.5:0.3"; in Python a mapping such as
    `{"pixel": 0.8, "other": (0.5, 0.3)}` has the same meaning.
    """

    example: ClassVar[str] = "pixel:0.8,other:0.5:0.3"
    noun = f"up to {MAX_LORAS} LoRAs with weights from {-MAX_WEIGHT:g} to {MAX_WEIGHT:g}"

    @property
    def help(self) -> str:
        return f"{self.description.removesuffix('.')}, such as {self.example}. {self.details}"

    @property
    def limits(self) -> dict[str, Any]:
        return {"example": self.example}

    def expected(self, code: str) -> str:
        return f"{self.noun}, such as {self.example!r}"

    def fault(self, value: Any) -> "Fault | None":
        try:
            self.checked(value)
        except (AttributeError, TypeError, ValueError):
            return Fault("unreadable", self, value)
        return None

    def checked(self, value: str | LoraWeights | None) -> str:
        return format_loras(parse_loras(value or "") if isinstance(value, str | None) else value)


def parse_variations(text: str) -> list[tuple[int, float]]:
    """Return the seed and the strength, from 0 to 1, of each variation in a list.

    Raises:
        TypeError: if `text` is not a text.
        ValueError: if it is not such a list, or has more than `MAX_VARIATIONS`.
    """
    if re.fullmatch(VARIATIONS, text) is None:
        raise ValueError(f"{text!r} is no list of variations")
    found = [each.split(":") for each in text.split(",") if each]
    variations = [(int(seed), float(strength)) for seed, strength in found]
    if any(seed > MAX_SEED or strength > 1 for seed, strength in variations):
        raise ValueError(f"{text!r} has a seed or a strength that is too large")
    return variations


def parse_timesteps(text: str) -> list[int]:
    """Return the timesteps in a list; none for "".

    Raises:
        ValueError: if it is not a list of falling numbers, or has more than `MAX_INFERENCE_STEPS`.
    """
    if text and _TIMESTEPS.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no list of timesteps")
    timesteps = [int(each) for each in text.split(",") if each]
    if any(before <= after for before, after in pairwise(timesteps)):
        raise ValueError(f"{text!r} does not fall")
    return timesteps


def add_variation(earlier: str, seed: int, strength: float) -> str:
    """Return a list of variations with one more at its end."""
    added = f"{seed}:{np.format_float_positional(strength, trim='-')}"
    return ",".join(filter(None, (earlier, added)))


@dataclass(frozen=True)
class Fault:
    """Reason why a value cannot be used.

    Attributes:
        code: "out_of_range" for a number of the right type; "unreadable" for a text;
            "unknown_choice" for a name; "not_timesteps" for a list of timesteps; otherwise the type
            that the value does not have.
    """

    code: Literal[
        "not_a_number",
        "not_whole",
        "out_of_range",
        "unreadable",
        "unknown_choice",
        "not_timesteps",
    ]
    setting: Setting
    value: Any

    def __str__(self) -> str:
        right = self.setting.expected(self.code)
        return f"{self.setting.name} is {self.value!r}; expected {right}"


@dataclass(frozen=True)
class Misfit:
    """Reason why a setting cannot be used together with another one.

    Attributes:
        setting: the setting that cannot be used.
        value: its value.
        other: the other setting.
        its: the value of the other setting, or the model's own.
        choices: values of `other` with which it could be used; empty if it must be left out.
    """

    setting: Setting
    value: Any
    other: Setting
    its: Any
    choices: Sequence[str] = ()

    def __str__(self) -> str:
        one, other = self.setting.name, self.other.name
        if not self.choices:
            return f"{one} and {other} cannot be used together; leave one of them out"
        right = f"leave it out, or set {other} to {' or '.join(map(repr, self.choices))}"
        return f"{one} is {self.value!r}, which {other} {self.its!r} cannot use; {right}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _declare(setting: Setting) -> Any:
    default = dataclasses.MISSING if setting.default is ... else setting.default
    return dataclasses.field(default=default, metadata={"setting": setting})


# --- the settings ---

AnySetting = TypeVar("AnySetting", bound=Setting)
R = TypeVar("R", bound="GenerateRequest")


@dataclass(frozen=True)
class GenerateRequest:
    """Request for pictures: every setting, with its limits and its default.

    The order is that of `/generate`'s arguments, so new settings come last.
    """

    prompt: str | Sequence[str] = _declare(
        Texts(description="One for all pictures, or one for each.")
    )
    negative_prompt: str | Sequence[str] | None = _declare(
        Texts(default=None, description="What the pictures should not show.", flag="negative")
    )
    guidance_scale: float = _declare(
        Number(
            default=5.0,
            high=50,
            description="How closely to follow the prompt.",
            details="1 and below: no guidance.",
            model_default=True,
            flag="guidance",
            key="CFG scale",
            slider_high=20,
            slider_step=0.5,
        )
    )
    num_inference_steps: int = _declare(
        Whole(
            default=25,
            low=1,
            high=MAX_INFERENCE_STEPS,
            model_high="max_inference_steps",
            model_default=True,
            any_high=1000,
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
            description="The share of the steps with guidance.",
            details="Less is quicker.",
            optional=True,
            after="guidance_scale",
            in_per_cent=True,
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
            description="Variation i is turned towards variation_seed + i.",
            part_of="variation_strength",
        )
    )
    variation_of: str = _declare(
        Variations(
            default="",
            description="Earlier variations, applied in order; the result is varied.",
            optional=True,
            part_of="variation_strength",
        )
    )
    guidance_rescale: float = _declare(
        Number(
            default=0.0,
            high=1,
            description="How far to undo the contrast that guidance adds.",
            details="0: not at all. For models with zero terminal SNR about 0.7.",
            optional=True,
            after="guidance_until",
        )
    )
    loras: str = _declare(
        Loras(
            default="",
            description="The LoRAs to draw with, by name, and their weights.",
            details="Two weights are the UNet's and the text encoders'.",
            key="Loras",
            optional=True,
        )
    )

    scheduler: str = _declare(
        Choice(
            choices=tuple(SCHEDULERS),
            model_choices="schedulers",
            texts=SAMPLERS,
            description="The scheduler, which removes the noise.",
            details='Names such as "DPM++ 2M Karras" are understood too.',
            key="Sampler",
            optional=True,
            after="num_inference_steps",
        )
    )
    sigma_schedule: str = _declare(
        Choice(
            choices=tuple(SCHEDULE_TYPES),
            model_choices="sigma_schedules",
            texts=SCHEDULE_TYPES,
            description="How noise levels are spaced.",
            key="Schedule type",
            optional=True,
            after="scheduler",
        )
    )
    timestep_spacing: str = _declare(
        Choice(
            choices=SPACINGS,
            description="How timesteps are spaced.",
            optional=True,
            after="sigma_schedule",
            if_set=True,
        )
    )
    timesteps: str = _declare(
        Timesteps(
            description="The timesteps of the run, in place of spaced ones.",
            details="Their number is then the number of steps.",
            optional=True,
            after="timestep_spacing",
            if_set=True,
        )
    )
    eta: float | None = _declare(
        OwnNumber(
            high=1,
            description="The share of new noise in the steps of DDIM and TCD.",
            key="Eta DDIM",
            optional=True,
            after="timesteps",
            if_set=True,
        )
    )
    decoder: str = _declare(
        Choice(
            choices=(FULL, TINY),
            model_choices="decoders",
            description="The decoder, which turns latents into pictures.",
            details=f"{TINY}: quicker and less exact; only with a tiny VAE.",
            optional=True,
        )
    )
    recipe: str = _declare(
        Choice(
            choices=recipes.NAMES,
            model_choices="recipe_names",
            description="Draw in few steps with a LoRA that the server has for it.",
            details="Sets the LoRA, scheduler, steps and guidance scale together.",
            optional=True,
            after="prompt",
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
    def guided_steps(self) -> int:
        """Number of steps with guidance, which come first; 0 for a scale of 1 or less."""
        until = self.guidance_until if self.guidance_scale > 1 else 0.0
        return round(until * self.steps)

    @property
    def steps(self) -> int:
        """Number of steps: that of the timesteps, if the request names any."""
        return self.timesteps.count(",") + 1 if self.timesteps else self.num_inference_steps

    def evaluations(self, own_scheduler: str) -> int:
        """Return how often a picture evaluates the network, if the model's own scheduler is this.

        It is the measure of a request's work: some schedulers evaluate it twice in a step.
        """
        return count_evaluations(self.scheduler or own_scheduler, self.steps)

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


def in_order(settings: Iterable[AnySetting]) -> list[AnySetting]:
    """Return settings in the order of the page and of the command line."""
    ordered: list[AnySetting] = []
    for setting in settings:
        names = [each.name for each in ordered]
        place = names.index(setting.after) + 1 if setting.after in names else len(ordered)
        ordered.insert(place, setting)
    return ordered


def effective(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values without those that change nothing, which texts and links leave out."""

    def is_default(name: str) -> bool:
        return values[name] == SETTINGS[name].default

    return {
        name: value
        for name, value in values.items()
        if not (SETTINGS[name].optional and is_default(name))
        and not ((other := SETTINGS[name].part_of) and is_default(other))
    }


def with_own_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with the scheduler and the sigma schedule under this program's names.

    Other programs' names are understood, and "DPM++ 2M Karras" names both. A sigma schedule that is
    given is used in place of the one that the scheduler's name contains. Unknown names stay.
    """
    scheduler, sigma_schedule = values.get("scheduler"), values.get("sigma_schedule")
    name, contained = find_scheduler(scheduler) if isinstance(scheduler, str) else (None, None)
    given = find_sigma_schedule(sigma_schedule) if isinstance(sigma_schedule, str) else None
    found = {"scheduler": name, "sigma_schedule": given or (None if sigma_schedule else contained)}
    return {**values, **{key: value for key, value in found.items() if value}}


def with_recipe(request: R, available: Iterable[recipes.LoraRecipe]) -> R:
    """Return a request in which the settings of its recipe stand in place of the recipe's name.

    A number of steps that the recipe was made for is kept, and so is a weight of its LoRA.

    Raises:
        InputError: if the recipe is not available, or there are too many LoRAs.
    """
    if not request.recipe:
        return request
    by_name = {recipe.name: recipe for recipe in available}
    if request.recipe not in by_name:
        right = f"one of {', '.join(map(repr, by_name))}" if by_name else "none, without its LoRA"
        raise InputError(f"recipe is {request.recipe!r}; expected {right}")
    recipe = by_name[request.recipe]
    settings = dict(recipe.settings)
    if request.num_inference_steps in recipe.steps:
        del settings["num_inference_steps"]
    try:
        loras = format_loras({recipe.lora: 1.0, **parse_loras(request.loras)})
    except ValueError as error:
        raise InputError(f"loras and recipe {request.recipe!r}: {error}") from error
    return dataclasses.replace(request, **settings, loras=loras, recipe="")


def misfits(request: GenerateRequest, own_scheduler: str) -> Iterator[Misfit]:
    """Yield settings that cannot be used together.

    Args:
        request: a request without `faults`.
        own_scheduler: the scheduler that draws it if it names none. If it is not among
            `SCHEDULERS`, only the instance that has it can check what it takes.
    """
    used = request.scheduler or own_scheduler
    options = SCHEDULERS[used].options if used in SCHEDULERS else {}
    for name, is_taken in options.items():
        value = getattr(request, name)
        if is_taken or value in (SETTINGS[name].default, DEFAULT_SIGMAS):
            continue
        others = [other for other, own in SCHEDULERS.items() if own.options[name]]
        yield Misfit(SETTINGS[name], value, SETTINGS["scheduler"], used, others)
    if request.timesteps and request.sigma_schedule not in ("", DEFAULT_SIGMAS):
        spaced = SETTINGS["sigma_schedule"], request.sigma_schedule
        yield Misfit(SETTINGS["timesteps"], request.timesteps, *spaced)


def faults(request: GenerateRequest, model: object = None) -> Iterator[Fault]:
    """Yield a fault for each value that cannot be used, by `model`'s own limits if it is given."""
    for setting in SETTINGS.values():
        here = setting if model is None else setting.for_model(model)
        if fault := here.fault(getattr(request, setting.name)):
            yield fault


# --- checked requests ---


@dataclass(frozen=True)
class Request(GenerateRequest):
    """A request whose values have been checked: one prompt and negative prompt per picture."""

    images: int = 1

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
        earlier = [([seed] * self.images, x) for seed, x in parse_variations(self.variation_of)]
        return [*earlier, (self.variation_seeds, self.variation_strength)]

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
    checked = Request(**values, images=images)
    return dataclasses.replace(checked, num_inference_steps=checked.steps)


def checked_latents(latents: np.ndarray, right: tuple[int, ...]) -> np.ndarray:
    """Return latents as a NumPy array `[images, h, w, C]` float32.

    Args:
        latents: the noise to check.
        right: the shape that it must have.

    Raises:
        InputError: if the shape, the dtype or a value is wrong; the message says which.
    """
    try:
        array = np.asarray(latents)
    except ValueError as error:
        raise InputError(f"latents are not an array of {list(right)} float32: {error}") from error
    if array.shape != right or array.dtype != np.float32:
        raise InputError(
            f"latents are {list(array.shape)} {array.dtype}; expected {list(right)} float32"
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
