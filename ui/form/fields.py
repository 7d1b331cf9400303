"""The page's fields: how each looks, and their values.

`pipeline.request` declares each setting's type, range, default and description.
"""

from collections import namedtuple
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from pipeline.facts import Facts
from pipeline.request import GUIDANCE_SCALE, NUM_INFERENCE_STEPS, VALUES
from pipeline.setting_kinds import Number, OwnNumber, Seed, Setting
from pipeline.text.prompt_syntax import A1111
from ui import i18n, start
from ui.samples.styles import NONE

# Longest id of a session that is kept. The page's own are shorter; a program may send any.
_MAX_SESSION = 64
USUAL = ""  # the size's value for the model's own size
ALL = 0  # the count's value for as many pictures as the model draws at once


@dataclass(frozen=True)
class Field:
    """How the page shows one setting.

    Attributes:
        high: the end of its slider, if that is below the setting's own limit.
        step: the step of its slider.
        in_per_cent: whether its values, shares from 0 to 1, are shown in per cent.
        if_set: whether it is shown only while it has another value than the default, which a link
            or a picture can give it.
    """

    high: float | None = None
    step: float = 1
    in_per_cent: bool = False
    if_set: bool = False


# In the order of the page.
FIELDS: Mapping[str, Field] = {
    "model": Field(),
    "guidance_scale": Field(high=20, step=0.5),
    "guidance_until": Field(step=0.05, in_per_cent=True),
    "guidance_rescale": Field(step=0.05),
    "num_inference_steps": Field(),
    "scheduler": Field(),
    "sigma_schedule": Field(),
    "timestep_spacing": Field(if_set=True),
    "timesteps": Field(if_set=True),
    "eta": Field(if_set=True),
    "seed": Field(),
    "variation_strength": Field(step=0.05),
    "variation_seed": Field(),
    "variation_of": Field(),
    "loras": Field(),
    "controls": Field(),
    "decoder": Field(),
    "cache_interval": Field(),
    "recipe": Field(),
    "strength": Field(step=0.01),
    "padding": Field(),
    "prompt_syntax": Field(),
    "denoising_end": Field(step=0.01),
    "enlarge": Field(if_set=True),
    "enlarge_strength": Field(step=0.01, if_set=True),
    "enlarge_steps": Field(if_set=True),
    "clip_skip": Field(),
}


_IN_PER_CENT = [setting.link for setting in VALUES if FIELDS[setting.name].in_per_cent]
_OWN_NUMBERS = [setting.link for setting in VALUES if isinstance(setting, OwnNumber)]
# Ids of the elements of fields that have another name there, by the name in a `RequestError`.
_ELEMENTS = {
    "negative_prompt": "negative",
    **{setting.name: setting.flag for setting in VALUES},
    **start.ELEMENTS,
}
DEFAULTS: dict[str, Any] = {
    "prompt": "",
    "style": NONE,
    "negative_prompt": "",
    "several": False,
    "size": USUAL,
    "images": ALL,
    "randomise": True,
    **{setting.link: setting.default for setting in VALUES},
    "steps": NUM_INFERENCE_STEPS,
    "guidance_scale": GUIDANCE_SCALE,
    "prompt_syntax": A1111,  # programs send plain text unless they say otherwise
}


@dataclass(frozen=True)
class Visitor:
    """The sender of a request: one open page, or a program."""

    session: str
    address: str

    @classmethod
    def behind(cls, request: gr.Request) -> "Visitor":
        """Return the visitor whose browser or program sent `request`."""
        session = (request.session_hash or "")[:_MAX_SESSION]
        return cls(session, request.client.host if request.client else "")


def _sent(name: str, value: Any) -> Any:
    """Return a field's value for that of its component; anything odd stays, to be refused later."""
    if value is None:  # a text field that was never in view
        return "" if DEFAULTS[name] == "" else None
    try:
        if name in _IN_PER_CENT:
            return value / 100
        if name in _OWN_NUMBERS and isinstance(value, str):
            return float(value) if value.strip() else None
    except (OverflowError, TypeError, ValueError):
        pass
    return value


def _shown(name: str, value: Any) -> Any:
    """Return the value of a field's component."""
    if name in _IN_PER_CENT:
        return i18n.per_cent(value)
    if name in _OWN_NUMBERS:
        return "" if value is None else f"{value:g}"
    return value


class Fields(namedtuple("Fields", [*DEFAULTS], defaults=[*DEFAULTS.values()])):
    """The values of the page's fields, in the order in which the page sends them.

    Shares are from 0 to 1 here; their components have them in per cent. A number that is None here
    is an empty text in its component.
    """

    __slots__ = ()

    @classmethod
    def for_model(cls, facts: Facts) -> "Fields":
        """Return the fields that nobody has set, with the model's defaults for its own choices."""
        return cls(
            **{
                setting.link: setting.absent_value()
                if isinstance(setting, Seed)
                else setting.for_model(facts).default
                for setting in VALUES
                if setting.absent_note
            }
        )

    @classmethod
    def sent(cls, values: Mapping[str, Any]) -> "Fields":
        """Return the fields for the values of the components, by name; others have defaults."""
        return cls(**{name: _sent(name, values[name]) for name in DEFAULTS if name in values})

    def shown(self) -> dict[str, Any]:
        """Return the values for the components, by name."""
        return {name: _shown(name, value) for name, value in self._asdict().items()}


def highest(setting: Number) -> float:
    """Return the largest value of a number's component."""
    high = FIELDS[setting.name].high
    return setting.high if high is None else high


def label_of(setting: Setting) -> str:
    """Return the label of a setting's component."""
    label = i18n.SETTINGS[setting.name].label
    return f"{label} (%)" if FIELDS[setting.name].in_per_cent else label


def as_shown(setting: Setting, number: float) -> float:
    """Return a setting's number as the page shows it."""
    return i18n.per_cent(number) if FIELDS[setting.name].in_per_cent else number


def element_of(field: str | None) -> str | None:
    """Return the id of the element that shows a field of a `RequestError`."""
    return None if field is None else _ELEMENTS.get(field, field)


def size_of(size: tuple[int, int] | None, facts: Facts) -> str:
    """Return the value for the choice of sizes."""
    return USUAL if size in (None, facts.sizes[0]) else "{}x{}".format(*size)
