"""How a model is drawn by default, from the text file beside it.

The file has the model's name and the suffix .toml, such as pony.toml beside pony.safetensors.
"""

import reprlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import CheckpointError
from pipeline.request import SETTINGS, with_own_names
from pipeline.schedulers.config import FLOW_CLASS, SIGMA_KEYS

_MAX_BYTES = 4096  # dotted keys take quadratic memory
_MAX_SHIFT = 100
# The settings of requests that the file may have, by their keys.
_OF_REQUESTS = {
    SETTINGS[name].link: SETTINGS[name]
    for name in (
        *("guidance_scale", "num_inference_steps", "scheduler"),
        *("sigma_schedule", "guidance_rescale", "clip_skip"),
    )
}
# The settings of the scheduler that each `prediction` stands for.
_PREDICTIONS: Mapping[str, Mapping[str, Any]] = {
    "epsilon": {"prediction_type": "epsilon"},
    "v": {"prediction_type": "v_prediction"},
    "flow": {"_class_name": FLOW_CLASS.name},
}
# Settings of the scheduler, by their keys.
_OF_SCHEDULER = {"zero_terminal_snr": "rescale_betas_zero_snr", "shift": "shift"}
_KEYS = (*_OF_REQUESTS, "prediction", *_OF_SCHEDULER)


@dataclass(frozen=True)
class ModelDefaults:
    """The defaults of a model, where they differ from those of its checkpoint.

    Attributes:
        settings: those of requests, by name.
        scheduler: keys of `scheduler_config.json` with their values.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    scheduler: Mapping[str, Any] = field(default_factory=dict)


def read_defaults(model: str) -> ModelDefaults:
    """Read the file beside a model: a single file or a folder; without one there are no defaults.

    Raises:
        CheckpointError: if the file cannot be used; the message names it and the key.
    """
    path = Path(model)
    file = path.with_name(f"{path.name.removesuffix('.safetensors')}.toml")
    if not path.exists() or not file.is_file():
        return ModelDefaults()
    try:
        with file.open("rb") as opened:
            content = opened.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES} bytes")
        values = with_own_names(tomllib.loads(content.decode("utf-8-sig")))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: cannot be read as TOML: {error}") from error
    for key, value in values.items():
        if expected := _expected(key, value, values):
            raise CheckpointError(
                f"{file}: {key} = {reprlib.repr(value)} is not possible; expected {expected}"
            )
    settings = {x.name: x.checked(values[key]) for key, x in _OF_REQUESTS.items() if key in values}
    sigma_schedule = settings.pop("sigma_schedule", None)
    return ModelDefaults(
        settings,
        {
            **_PREDICTIONS.get(values.get("prediction", ""), {}),
            **{name: values[key] for key, name in _OF_SCHEDULER.items() if key in values},
            **{key: True for key, name in SIGMA_KEYS.items() if name == sigma_schedule},
        },
    )


def _expected(key: str, value: Any, values: Mapping[str, Any]) -> str:
    """Return what would be right for a key of the file, or "" if its value is possible."""
    if setting := _OF_REQUESTS.get(key):
        fault = setting.fault(value)
        return setting.expected(fault.code) if fault else ""
    possible = {
        "prediction": (value in [*_PREDICTIONS], " or ".join(map(repr, _PREDICTIONS))),
        "zero_terminal_snr": (isinstance(value, bool), "true or false"),
        "shift": (
            type(value) in (int, float)
            and 0 < value <= _MAX_SHIFT
            and values.get("prediction") == "flow",
            f"a number above 0, at most {_MAX_SHIFT}, beside prediction = 'flow'",
        ),
    }
    is_possible, expected = possible.get(key, (False, f"one of the keys {', '.join(_KEYS)}"))
    return "" if is_possible else expected
