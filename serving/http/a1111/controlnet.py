"""AUTOMATIC1111's ControlNet extension: its units in calls for pictures, and its own answers.

https://github.com/Mikubill/sd-webui-controlnet/wiki/API
"""

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import HTTPException

from pipeline.errors import InputError
from pipeline.facts import ControlFacts, Facts
from pipeline.images.preparing import (
    PREPROCESSORS,
    RESOLUTION,
    Preprocessor,
    Slider,
    detected,
    find_preprocessor,
)
from pipeline.text.controls import (
    A1111_CONTROL_MODES,
    A1111_RESIZE_MODES,
    A1111_TYPES,
    MAX_CONTROLS,
    Control,
    checked,
)
from serving.http import bodies
from serving.http.a1111 import checkpoints
from serving.http.a1111.bodies import DetectBody, UnitBody
from serving.requests import inputs
from serving.requests.inputs import ControlFiles

SCRIPT = "controlnet"  # its name in calls, in any case
_OFF = (False, "false", "False")  # values of a unit's `enabled`; without any it is enabled
_NONE = (None, "", "None")  # values of a unit's `model` without one


def _named(names: Mapping[str, str]) -> dict[str, str]:
    """Return values by the names of modes, in small letters, and by the modes' numbers."""
    numbers = {str(number): value for number, value in enumerate(names.values())}
    return {name.casefold(): value for name, value in names.items()} | numbers


_RESIZE_MODES = _named(A1111_RESIZE_MODES) | {
    "inner fit (scale to fit)": "crop",
    "outer fit (shrink to fit)": "fill",
    "scale to fit (inner fit)": "crop",
    "envelope (outer fit)": "fill",
    "3": "stretch",
}
_CONTROL_MODES = _named(A1111_CONTROL_MODES)
_TYPES = _named(A1111_TYPES)
# The extension's kinds of networks: what their names have, and what one of the union kind follows.
_TAGS = {
    "Canny": ("canny", "hard"),
    "Depth": ("depth", "depth"),
    "Inpaint": ("inpaint", "repaint"),
    "InstructP2P": ("instructp2p|ip2p", ""),
    "Lineart": ("lineart", "hard"),
    "MLSD": ("mlsd", "hard"),
    "NormalMap": ("normal", "normal"),
    "OpenPose": ("openpose|densepose", "openpose"),
    "Recolor": ("recolor", ""),
    "Scribble": ("scribble|sketch", "soft"),
    "Segmentation": ("seg", "segment"),
    "Shuffle": ("shuffle", ""),
    "SoftEdge": ("softedge", "soft"),
    "Tile": ("tile|blur", "tile"),
}


def read_units(
    scripts: Mapping[str, Any], facts: Facts, *, has_image: bool
) -> tuple[tuple[Control, ...], list[str]]:
    """Return the controls that a call's scripts ask for, and the names of what is ignored.

    Args:
        scripts: the call's `alwayson_scripts`.
        facts: those of the model that draws.
        has_image: whether the call has a picture to start from, which a unit without one follows.

    Returns:
        The controls, whose images are `ControlFiles` or None; and the names.

    Raises:
        HTTPException: if there is another script, or a unit names what is not here.
        RequestValidationError: if a unit has a wrong value.
    """
    controls: list[Control] = []
    ignored: list[str] = []
    for script, content in scripts.items():
        units = _units(content) if script.casefold() == SCRIPT else None
        if units is None or (units and not facts.controls):
            raise HTTPException(422, f"always on script {script} not found")
        for i, values in enumerate(units):
            name = f"alwayson_scripts.{script}.args[{i}]"
            if len(controls) == MAX_CONTROLS:
                ignored.append(name)  # there, as many units are read as the page has
                continue
            unit = bodies.validated(UnitBody, values)
            ignored += [f"{name}.{field}" for field in unit.ignored]
            try:
                controls.append(_control(unit, facts, has_image))
            except (InputError, ValueError) as error:
                raise HTTPException(422, f"ControlNet: {error}") from error
    return tuple(controls), ignored


def _units(script: Any) -> list[dict[str, Any]]:
    """Return the units of a script that are enabled; what is no unit there is skipped."""
    args = script.get("args") if isinstance(script, dict) else script
    units = args if isinstance(args, list) else [args]
    return [unit for unit in units if isinstance(unit, dict) and unit.get("enabled") not in _OFF]


def _control(unit: UnitBody, facts: Facts, has_image: bool) -> Control:
    """Return the control of a unit.

    Raises:
        InputError: if there is no such preprocessor.
        ValueError: if another value cannot be used.
    """
    if unit.model in _NONE:
        raise ValueError("You have not selected any ControlNet Model.")
    digests = {control.name: control.digest for control in facts.controls}
    if (name := checkpoints.match(unit.model or "", digests)) is None:
        names = ", ".join(map(_title, facts.controls))
        raise ValueError(f"model not found: {unit.model}; there are: {names}")
    preprocessor = find_preprocessor((unit.module or "none").casefold())
    if unit.image is None and not has_image:
        raise ValueError("controlnet is enabled but no input image is given")
    resize_mode = _chosen("resize_mode", unit.resize_mode, "crop and resize", _RESIZE_MODES)
    resolution = 0
    if preprocessor.reads != "original" and not unit.pixel_perfect:
        resolution = _resolution(unit.processor_res)
    thresholds = _thresholds(preprocessor, unit.threshold_a, unit.threshold_b)
    return checked(
        Control(
            name,
            unit.image and ControlFiles(unit.image, unit.mask, preprocessor.takes_mask),
            scale=1.0 if unit.weight is None else unit.weight,
            start=unit.guidance_start or 0.0,
            end=1.0 if unit.guidance_end is None else unit.guidance_end,
            type=_chosen("union_control_type", unit.union_control_type, "unknown", _TYPES),
            preprocessor=preprocessor.name,
            resolution=resolution,
            threshold_a=thresholds[0],
            threshold_b=thresholds[1],
            # A picture to start from is fitted already.
            resize_mode="crop" if unit.image is None else resize_mode,
            control_mode=_chosen("control_mode", unit.control_mode, "balanced", _CONTROL_MODES),
        )
    )


def _chosen(field: str, text: str | None, default: str, choices: Mapping[str, str]) -> str:
    """Return what a text stands for, in any case.

    Raises:
        ValueError: if it is none of the choices.
    """
    folded = (text or default).casefold()
    if folded not in choices:
        names = ", ".join(map(repr, choices))
        raise ValueError(f"{field} is {text!r}; expected one of {names}, in any case")
    return choices[folded]


def _thresholds(
    preprocessor: Preprocessor, *values: float | None
) -> tuple[float | None, float | None]:
    """Return the values that a preprocessor takes; None for its defaults."""
    first, second, *_ = *map(_within, preprocessor.sliders, values), None, None
    return first, second


def _resolution(value: float | None) -> int:
    return int(_within(RESOLUTION, value) or RESOLUTION.default)


def _within(slider: Slider, value: float | None) -> float | None:
    """Return a slider's value, or None for one out of range, which stands for the default."""
    is_right = value is not None and slider.minimum <= value <= slider.maximum
    return value if is_right and value != slider.default else None


def controls_of(facts: Facts) -> list[ControlFacts]:
    """Return the networks of all models."""
    all_facts = facts, *facts.others
    return [control for model_facts in all_facts for control in model_facts.controls]


def _title(control: ControlFacts) -> str:
    return f"{control.name} [{control.digest}]"


async def detect(body: DetectBody, address: str) -> dict[str, Any]:
    """Return the answer to a call for maps.

    Raises:
        HTTPException: if there is no such preprocessor, or a picture is missing or does not fit.
        RequestError: if a picture cannot be used, or too many are being opened.
    """
    name = body.controlnet_module or "none"
    maps: list[str] = []
    try:
        preprocessor = find_preprocessor(name.casefold())
        if not (images := body.controlnet_input_images):
            raise InputError("No image selected")
        masks = (body.controlnet_masks or []) if preprocessor.takes_mask else [None] * len(images)
        if len(masks) != len(images):
            raise InputError(f"Preprocessor {name} requires `controlnet_masks` param.")
        work = partial(
            detected,
            preprocessor,
            resolution=_resolution(body.controlnet_processor_res),
            thresholds=_thresholds(
                preprocessor, body.controlnet_threshold_a, body.controlnet_threshold_b
            ),
        )
        for image, mask in zip(images, masks, strict=True):
            files = ControlFiles(image, mask, preprocessor.takes_mask)
            file = await inputs.shared().detected(address, files, work)
            maps.append(base64.b64encode(file).decode())
    except InputError as error:
        raise HTTPException(422, str(error)) from error
    return {"info": "Success", "images": maps}


def _listed() -> list[Preprocessor]:
    """Return the preprocessors in the extension's order: none, then the highest priority first."""
    return sorted(
        PREPROCESSORS.values(),
        key=lambda listed: (listed.name == "none", listed.priority, listed.label or listed.name),
        reverse=True,
    )


def modules(alias_names: bool) -> dict[str, Any]:
    """Return the preprocessors, under their labels if `alias_names`, and their sliders."""
    details = {
        (preprocessor.label if alias_names else "") or preprocessor.name: {
            "model_free": False,
            "sliders": [_slider(slider) for slider in _sliders(preprocessor)],
        }
        for preprocessor in _listed()
    }
    return {"module_list": [*details], "module_detail": details}


def _sliders(preprocessor: Preprocessor) -> tuple[Slider, ...]:
    return (RESOLUTION,) * preprocessor.has_resolution + preprocessor.sliders


def _slider(slider: Slider) -> dict[str, Any]:
    return {
        "name": slider.name,
        "value": slider.default,
        "min": slider.minimum,
        "max": slider.maximum,
        "step": slider.step,
    }


def _control_types(controls: Sequence[ControlFacts]) -> dict[str, Any]:
    """Return the preprocessors and networks of each kind, and which come first."""
    listed_preprocessors = _listed()
    types = {"All": _control_type(listed_preprocessors, [*map(_title, controls)])}
    types["All"] |= {"default_option": "none", "default_model": "None"}
    for tag, (pattern, kind) in _TAGS.items():
        preprocessors = [
            preprocessor
            for preprocessor in listed_preprocessors
            if tag in preprocessor.tags or preprocessor.name == "none"
        ]
        titles = [
            _title(control)
            for control in controls
            if kind in control.types or re.search(pattern, control.name.casefold())
        ]
        types[tag] = _control_type(preprocessors, titles)
    return types


def _control_type(preprocessors: Sequence[Preprocessor], titles: Sequence[str]) -> dict[str, Any]:
    labels = [preprocessor.label or preprocessor.name for preprocessor in preprocessors]
    newest = (title for title in titles if "11" in title.partition("[")[0])  # ControlNet 1.1
    return {
        "module_list": labels,
        "model_list": ["None", *titles],
        "default_option": labels[:2][-1],
        "default_model": next(newest, [*titles, "None"][0]),
    }


# What the extension's own routes answer without parameters.
LISTS: dict[str, Callable[[Facts], Any]] = {
    "version": lambda _: {"version": 3},
    "model_list": lambda facts: {"model_list": [*map(_title, controls_of(facts))]},
    "control_types": lambda facts: {"control_types": _control_types(controls_of(facts))},
    "settings": lambda _: {
        "control_net_unit_count": MAX_CONTROLS,
        "control_net_max_models_num": MAX_CONTROLS,  # its name in older versions
    },
}
