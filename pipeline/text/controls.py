"""Controls of a request: pictures that its own pictures follow, each through a network.

As text they are such as "canny:scale=0.8:end=0.6,depth:preprocessor=none": the name of a network,
and the values that differ from the defaults.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from pipeline.text.loras import LORA_NAME, is_lora_name

MAX_CONTROLS = 3  # in a request
MAX_SCALE = 2.0
MAX_RESOLUTION = 2048  # pixels of the shorter side
# How the prompt and the control share a picture, after sd-webui-controlnet's control modes, and
# `guess_mode` of diffusers.
CONTROL_MODES = "balanced", "prompt", "control", "guess"
# How a picture of another shape is fitted, after its resize modes: cut, stretched, or with borders.
RESIZE_MODES = "crop", "stretch", "fill"
# The types of pictures that union networks tell apart, in the order of their task embeddings.
UNION_TYPES = "openpose", "depth", "soft", "hard", "normal", "segment", "tile", "repaint"
_WORD = re.compile(r"[a-z0-9_.+-]{0,60}")
_DIGITS = 20  # behind the point of a number
_NUMBER = re.compile(rf"[0-9]{{1,5}}(\.[0-9]{{1,{_DIGITS}}})?")


@dataclass(frozen=True)
class Control:
    """A picture to follow, and how far.

    Attributes:
        name: the name of a loaded ControlNet.
        image: the picture, as `SDXLPipeline.generate` takes one to start from. None follows the
            picture that the request starts from.
        scale: how strongly the network's residuals count, 0 to 2.
        start, end: the shares of the steps at which it begins and ends.
        type: what a network of the union kind follows, one of `UNION_TYPES`; "" means the one that
            the preprocessor makes.
        preprocessor: makes a map of the picture; "none" for a picture that is a map already.
        resolution: the shorter side of the map in pixels; 0 means that of the pictures.
        threshold_a, threshold_b: numbers that some preprocessors take; None means their defaults.
        resize_mode: one of `RESIZE_MODES`.
        control_mode: one of `CONTROL_MODES`.
    """

    name: str
    image: Any = field(default=None, compare=False, repr=False)
    scale: float = 1.0
    start: float = 0.0
    end: float = 1.0
    type: str = ""
    preprocessor: str = "none"
    resolution: int = 0
    threshold_a: float | None = None
    threshold_b: float | None = None
    resize_mode: str = "crop"
    control_mode: str = "balanced"


# The values that a text holds, with their defaults.
DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(Control)[2:]}
_CHOICES = {
    "type": ("", *UNION_TYPES),
    "resize_mode": RESIZE_MODES,
    "control_mode": CONTROL_MODES,
}
_HIGHEST = {"scale": MAX_SCALE, "start": 1.0, "end": 1.0, "resolution": MAX_RESOLUTION}


# The names that sd-webui-controlnet has for modes and types, and their values here.
A1111_RESIZE_MODES = {
    "Just Resize": "stretch",
    "Crop and Resize": "crop",
    "Resize and Fill": "fill",
}
A1111_CONTROL_MODES = {
    "Balanced": "balanced",
    "My prompt is more important": "prompt",
    "ControlNet is more important": "control",
}
A1111_TYPES = {
    "Unknown": "",
    "OpenPose": "openpose",
    "Depth": "depth",
    "Soft Edge": "soft",
    "Hard Edge": "hard",
    "Normal Map": "normal",
    "Segmentation": "segment",
    "Tile": "tile",
    "Inpaint": "repaint",
}


def to_unit(control: Control) -> str:
    """Return a control as sd-webui-controlnet writes a unit into a picture's text."""
    types, resize_modes, control_modes = (
        {value: name for name, value in names.items()}
        for names in (A1111_TYPES, A1111_RESIZE_MODES, A1111_CONTROL_MODES)
    )
    values = {
        "Module": control.preprocessor,
        "Model": control.name,
        "Weight": control.scale,
        "Resize Mode": resize_modes[control.resize_mode],
        "Processor Res": control.resolution or -1,
        "Threshold A": -1 if control.threshold_a is None else control.threshold_a,
        "Threshold B": -1 if control.threshold_b is None else control.threshold_b,
        "Guidance Start": control.start,
        "Guidance End": control.end,
        "Pixel Perfect": control.resolution == 0,
        "Control Mode": control_modes.get(control.control_mode, "Balanced"),
        "Union Control Type": types[control.type],
    }
    return ", ".join(f"{key}: {value}" for key, value in values.items())


def from_unit(text: str) -> Control:
    """Return the control of a unit in a picture's text; fields that are unknown here are ignored.

    Raises:
        ValueError: if it names no network, or has a value that cannot be used.
    """
    values = {key: value for key, _, value in (part.partition(": ") for part in text.split(", "))}

    def number(key: str, default: Any) -> Any:
        value = float(values.get(key, "-1"))
        return default if value < 0 else value

    is_whole = values.get("Pixel Perfect") == "True"
    return checked(
        Control(
            values.get("Model", "").partition(" [")[0],
            scale=number("Weight", 1.0),
            start=number("Guidance Start", 0.0),
            end=number("Guidance End", 1.0),
            type=A1111_TYPES.get(values.get("Union Control Type", ""), ""),
            preprocessor=values.get("Module", "none"),
            resolution=0 if is_whole else number("Processor Res", 0),
            threshold_a=number("Threshold A", None),
            threshold_b=number("Threshold B", None),
            resize_mode=A1111_RESIZE_MODES.get(values.get("Resize Mode", ""), "crop"),
            control_mode=A1111_CONTROL_MODES.get(values.get("Control Mode", ""), "balanced"),
        )
    )


def parse_controls(text: str) -> tuple[Control, ...]:
    """Return the controls in a text, without their pictures.

    Raises:
        TypeError: if `text` is not a text.
        ValueError: if it is not such a text, or exceeds a limit.
    """
    entries = text.split(",", MAX_CONTROLS) if text else []
    return _bounded([*map(_parse, entries)])


def format_controls(controls: Sequence[Control]) -> str:
    """Return the text from which `parse_controls` reads controls.

    Raises:
        ValueError: if a value cannot be used, or there are too many; the message says which.
    """
    return ",".join(map(_format, map(checked, _bounded(controls))))


def _bounded(controls: Sequence[Control]) -> tuple[Control, ...]:
    if len(controls) > MAX_CONTROLS:
        raise ValueError(f"{len(controls)} controls are too many; expected up to {MAX_CONTROLS}")
    return tuple(controls)


def checked(control: Control) -> Control:
    """Return a control whose values can be used, numbers as floats.

    Raises:
        ValueError: if a value cannot be used; the message says which, and what would be right.
    """
    if not is_lora_name(control.name):
        raise ValueError(f"{control.name!r} is no name of a ControlNet")
    values: dict[str, Any] = {}
    for name, default in DEFAULTS.items():
        value = getattr(control, name)
        if isinstance(default, str):
            choices = _CHOICES.get(name)
            is_right = value in choices if choices else _WORD.fullmatch(str(value)) is not None
            right = ", ".join(map(repr, choices or ())) or "a word in small letters"
        else:
            high = _HIGHEST.get(name, 1e4)
            is_right = (value is None and default is None) or _is_number(value, high)
            right = f"a number from 0 to {high:g}"
        if not is_right:
            raise ValueError(f"{name} of {control.name!r} is {value!r}; expected {right}")
        if isinstance(value, int | float):
            # As the text holds it: without a sign, and with no more digits.
            value = int(value) if name == "resolution" else round(abs(float(value)), _DIGITS)
        values[name] = value
    if values["start"] > values["end"]:
        raise ValueError(f"{control.name!r} starts at {control.start}, after its end")
    return replace(control, **values)


def _is_number(value: object, high: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= high  # as NaN is not


def _parse(entry: str) -> Control:
    name, *items = entry.split(":", len(DEFAULTS))
    pairs = [item.partition("=") for item in items]
    values = {key: value for key, _, value in pairs}
    if (
        re.fullmatch(LORA_NAME, name) is None
        or len(values) < len(pairs)
        or values.keys() - DEFAULTS
    ):
        raise ValueError(f"{entry!r} is no control such as canny:scale=0.8:end=0.6")
    numbers = {
        key: float(value) if _NUMBER.fullmatch(value) else value
        for key, value in values.items()
        if not isinstance(DEFAULTS[key], str)
    }
    return checked(Control(name, **{**values, **numbers}))


def _format(control: Control) -> str:
    values = {name: getattr(control, name) for name in DEFAULTS}
    changed = {name: value for name, value in values.items() if value != DEFAULTS[name]}
    texts = (
        f"{name}={value if isinstance(value, str) else np.format_float_positional(value, trim='-')}"
        for name, value in changed.items()
    )
    return ":".join([control.name, *texts])
