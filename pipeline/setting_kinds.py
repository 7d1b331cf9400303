"""The kinds of settings of a request: their limits, their texts, and the checks of their values."""

import dataclasses
import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self

import numpy as np

from pipeline.schedulers.config import MAX_INFERENCE_STEPS
from pipeline.text.controls import MAX_CONTROLS, Control, format_controls, parse_controls
from pipeline.text.loras import MAX_LORAS, MAX_WEIGHT, LoraWeights, format_loras, parse_loras

MAX_SEED = 2**32 - 1
MAX_VARIATIONS = 8  # in a list
_VARIATION = r"[0-9]{1,10}:[0-9](\.[0-9]{1,20})?"
VARIATIONS = rf"({_VARIATION}(,{_VARIATION}){{0,{MAX_VARIATIONS - 1}}})?"
SIZE = r"[1-9]\d{0,4}x[1-9]\d{0,4}"
_ANY_SIZE = ("WIDTHxHEIGHT",)  # what the name of a size looks like
_TIMESTEPS = re.compile(rf"[0-9]{{1,5}}( ?, ?[0-9]{{1,5}}){{0,{MAX_INFERENCE_STEPS - 1}}}")


def random_seed() -> int:
    """Return a random seed from 0 to MAX_SEED."""
    return secrets.randbelow(MAX_SEED + 1)


def listed(text: str) -> list[str]:
    """Return the parts of a text between commas, as an operator's setting has them."""
    return [part.strip() for part in text.split(",") if part.strip()]


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
        absent_note: note on what a request that leaves it out gets; "" if that is simply the
            default.
        of_model: fields of the declaration that depend on the model, each with the name of the
            model's attribute.
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
    absent_note: str = ""
    of_model: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def named(self, name: str) -> Self:
        """Return the declaration under this name, with all names that derive from it."""
        return dataclasses.replace(
            self,
            name=name,
            flag=self.flag or name.replace("_", "-"),
            link=self.link or name,
            key=self.key or name.replace("_", " ").capitalize(),
        )

    def for_model(self, model: object) -> Self:
        """Return the declaration with the limits and the default that hold for a model."""
        changes = {field: getattr(model, name) for field, name in self.of_model.items()}
        return dataclasses.replace(self, **changes)

    @property
    def help(self) -> str:
        """Description with the limits, as the command line and Gradio's clients show it."""
        return f"{self.description.removesuffix('.')}{self.range_text}. {self.details}".strip()

    @property
    def range_text(self) -> str:
        """The values that can be used, as `help` goes on after the description."""
        return ""

    @property
    def limits(self) -> dict[str, Any]:
        """Values for a message that says what would be right."""
        return {}

    def expected(self, code: str) -> str:
        """Return what would be right, for a fault of this code."""
        return self.noun

    def absent_value(self) -> Any:
        """Return the value of a request that leaves the setting out."""
        return self.default

    def of_picture(self, value: Any, index: int) -> Any:
        """Return the value for one picture of a request."""
        return value

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
    """Declaration of a number. None can be used where it is the default.

    Attributes:
        low, high: limits, both inclusive.
        any_high: upper limit of any model, for HTTP schemas, if it differs from `high`.
        unavailable: the code of the fault of a number where the model takes only a single one.
    """

    kind = float
    noun = "a number"

    low: float = 0
    high: float
    any_high: float | None = None
    unavailable: Literal["out_of_range", "no_step_cache", "missing_refiner", "no_clip_skip"] = (
        "out_of_range"
    )

    @property
    def range_text(self) -> str:
        return f", {self.low} to {self.high}"

    @property
    def limits(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high}

    def expected(self, code: str) -> str:
        if code == "missing_refiner":
            return f"none or {self.high:g}, because there is no refiner"
        known = self.kind is int and code == "out_of_range"
        return f"{'' if known else f'{self.noun} from '}{self.low} to {self.high}"

    def fault(self, value: Any) -> "Fault | None":
        if value is None and self.default is None:
            return None
        is_whole = self.kind is int
        other_type = Fault("not_whole" if is_whole else "not_a_number", self, value)
        is_number = isinstance(value, int | float | np.integer | np.floating)
        if not is_number or isinstance(value, bool) or not abs(value) < math.inf:
            return other_type
        if not self.low <= value <= self.high and not (is_whole and value != int(value)):
            code = "out_of_range" if self.low < self.high else self.unavailable
            return Fault(code, self, value)
        return other_type if is_whole and not isinstance(value, int | np.integer) else None

    def checked(self, value: Any) -> Any:
        return None if value is None else super().checked(value)


@dataclass(frozen=True, kw_only=True)
class Whole(Number):
    """Declaration of a whole number."""

    kind = int
    noun = "a whole number"


@dataclass(frozen=True, kw_only=True)
class OwnNumber(Number):
    """Declaration of a number that may be None."""

    default: Any = None
    absent_note: str = "The scheduler's own if None."


@dataclass(frozen=True, kw_only=True)
class OwnWhole(OwnNumber, Whole):
    """Declaration of a whole number that may be None."""


@dataclass(frozen=True, kw_only=True)
class Seed(Whole):
    """Declaration of a seed: picture i has the seed plus i. Without one it is random."""

    default: Any = 0
    high: float = MAX_SEED
    absent_note: str = "Random if None."

    def absent_value(self) -> int:
        return random_seed()

    def of_picture(self, value: int, index: int) -> int:
        return (value + index) % (MAX_SEED + 1)


@dataclass(frozen=True, kw_only=True)
class Choice(Setting):
    """Declaration of a choice among names. A default of "" stands for the model's own.

    Attributes:
        choices: the names.
        texts: the names as a picture's text has them, where they differ.
        least: the number of names from which on there is something to choose.
        unknown: the code of the fault of a name that is not among them.
    """

    noun = "a name"

    default: Any = ""
    absent_note: str = "The model's own if None."
    choices: Sequence[str]
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    least: int = 2
    unknown: Literal["unknown_choice", "missing_recipe"] = "unknown_choice"

    @property
    def range_text(self) -> str:
        return f": {', '.join(self.choices)}" if self.choices else ""

    @property
    def limits(self) -> dict[str, Any]:
        return {"choices": [*self.choices]}

    def expected(self, code: str) -> str:
        return f"one of {', '.join(map(repr, self.choices))}"

    def fault(self, value: Any) -> "Fault | None":
        known = value is None or (isinstance(value, str) and value in ("", *self.choices))
        return None if known else Fault(self.unknown, self, value)

    def checked(self, value: str | None) -> str:
        return value or self.default

    def in_text(self, value: Any) -> str:
        return self.texts.get(value, value)


@dataclass(frozen=True, kw_only=True)
class Named(Choice):
    """Declaration of a choice among names of which only a model knows what they are."""

    absent_note: str = "The first one if None."
    choices: Sequence[str] = ()

    def fault(self, value: Any) -> "Fault | None":
        return super().fault(value) if self.choices or not isinstance(value, str) else None


@dataclass(frozen=True, kw_only=True)
class Size(Choice):
    """Declaration of one of a model's sizes, such as "1536x1024".

    In Python the pair of the height and the width has the same meaning.
    """

    noun = "a size"

    absent_note: str = ""
    choices: Sequence[str] = _ANY_SIZE

    def fault(self, value: Any) -> "Fault | None":
        text = str(self.checked(value))
        choices = re.findall(f"^{SIZE}$", text) if self.choices is _ANY_SIZE else self.choices
        return None if text in ("", *choices) else Fault(self.unknown, self, value)

    def checked(self, value: str | tuple[int, int] | None) -> str:
        return "{1}x{0}".format(*value) if isinstance(value, tuple) else value or ""


@dataclass(frozen=True, kw_only=True)
class Written(Setting):
    """Declaration of a text with a form of its own, which an example shows.

    `checked` raises an error for a text that has another form.
    """

    example: ClassVar[str]
    unreadable: ClassVar[Literal["unreadable", "not_timesteps"]] = "unreadable"

    @property
    def range_text(self) -> str:
        return f", such as {self.example}"

    @property
    def limits(self) -> dict[str, Any]:
        return {"example": self.example}

    def expected(self, code: str) -> str:
        return f"{self.noun}, such as {self.example!r}"

    def fault(self, value: Any) -> "Fault | None":
        try:
            self.checked(value)
        except (AttributeError, TypeError, ValueError):
            return Fault(self.unreadable, self, value)
        return None


@dataclass(frozen=True, kw_only=True)
class Timesteps(Written):
    """Declaration of a run's timesteps.

    The value is a text such as "999,749,499,249"; in Python a sequence of whole numbers has the
    same meaning. The default "" stands for spaced timesteps.

    Attributes:
        trained: the number of timesteps that the model was trained with.
    """

    example = "999,749,499,249"
    unreadable = "not_timesteps"
    noun = "a list"

    default: Any = ""
    trained: int = 1000

    @property
    def limits(self) -> dict[str, Any]:
        high = self.trained - 1
        return {"low": 0, "high": high, "limit": MAX_INFERENCE_STEPS, **super().limits}

    def expected(self, code: str) -> str:
        falling = f"up to {MAX_INFERENCE_STEPS} falling whole numbers from 0 to {self.trained - 1}"
        return f"{falling}, such as {self.example!r}"

    def fault(self, value: Any) -> "Fault | None":
        fault = super().fault(value)
        is_late = not fault and any(x >= self.trained for x in parse_timesteps(self.checked(value)))
        return Fault(self.unreadable, self, value) if is_late else fault

    def checked(self, value: str | Sequence[int] | None) -> str:
        listed = () if value is None else value
        text = listed if isinstance(listed, str) else ",".join(map(str, listed))
        return ",".join(map(str, parse_timesteps(text)))


@dataclass(frozen=True, kw_only=True)
class Variations(Written):
    """Declaration of a list of variations: seeds with strengths, such as "12:0.25,34:0.5"."""

    example = "12:0.25,34:0.5"
    noun = "a list"

    def checked(self, value: str) -> str:
        parse_variations(value)
        return value


@dataclass(frozen=True, kw_only=True)
class Loras(Written):
    """Declaration of LoRAs with their weights.

    The value is a text such as "pixel:0.8,other:0.5:0.3"; in Python a mapping such as
    `{"pixel": 0.8, "other": (0.5, 0.3)}` has the same meaning.
    """

    example = "pixel:0.8,other:0.5:0.3"
    noun = f"up to {MAX_LORAS} LoRAs with weights from {-MAX_WEIGHT:g} to {MAX_WEIGHT:g}"

    def checked(self, value: str | LoraWeights | None) -> str:
        return format_loras(parse_loras(value or "") if isinstance(value, str | None) else value)


@dataclass(frozen=True, kw_only=True)
class Controls(Written):
    """Declaration of controls: networks through which pictures follow others.

    The value is a text such as "canny:scale=0.8,depth"; in Python a sequence of `Control` has the
    same meaning.
    """

    example = "canny:scale=0.8:end=0.6"
    noun = f"up to {MAX_CONTROLS} controls"

    def checked(self, value: str | Sequence[Control] | None) -> str:
        is_text = isinstance(value, str | None)
        return format_controls(parse_controls(value or "") if is_text else value)


def parse_size(text: str | None) -> tuple[int, int] | None:
    """Return the width and height in a text such as "1024x768"; None without one."""
    width, _, height = (text or "").partition("x")
    return (int(width), int(height)) if text else None


def parse_variations(text: str) -> list[tuple[int, float]]:
    """Return the seed and the strength, from 0 to 1, of each variation in a list.

    Raises:
        TypeError: if `text` is not a text.
        ValueError: if it is not such a list, or has more than `MAX_VARIATIONS`.
    """
    if re.fullmatch(VARIATIONS, text) is None:
        raise ValueError(f"{text!r} is no list of variations")
    pairs = [entry.split(":") for entry in text.split(",") if entry]
    variations = [(int(seed), float(strength)) for seed, strength in pairs]
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
    timesteps = [int(entry) for entry in text.split(",") if entry]
    if any(before <= after for before, after in pairwise(timesteps)):
        raise ValueError(f"{text!r} does not fall")
    return timesteps


def add_variation(text: str, seed: int, strength: float) -> str:
    """Return a list of variations with one more at its end."""
    entry = f"{seed}:{np.format_float_positional(strength, trim='-')}"
    return ",".join(filter(None, (text, entry)))


@dataclass(frozen=True)
class Fault:
    """Reason why a value cannot be used.

    Attributes:
        code: "out_of_range" or `Number.unavailable` for a number of the right type;
            `Written.unreadable` for a text; `Choice.unknown` for a name; otherwise the type that
            the value does not have.
    """

    code: Literal[
        "not_a_number",
        "not_whole",
        "out_of_range",
        "unreadable",
        "unknown_choice",
        "missing_recipe",
        "missing_refiner",
        "no_step_cache",
        "no_clip_skip",
        "not_timesteps",
    ]
    setting: Setting
    value: Any

    def __str__(self) -> str:
        expectation = self.setting.expected(self.code)
        return f"{self.setting.name} is {self.value!r}; expected {expectation}"
