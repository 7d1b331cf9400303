"""Stable Diffusion XL in Flax: text to pictures on TPU, GPU or CPU."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipeline.errors import (
    Cancelled,
    CheckpointError,
    DeviceError,
    InputError,
    NotFiniteError,
    ScreenError,
)

if TYPE_CHECKING:
    from pipeline.default_model import BUNDLED
    from pipeline.drawing.drawing import Result
    from pipeline.images import metadata
    from pipeline.pipeline import SDXLPipeline
    from pipeline.text.controls import Control

__all__ = [
    "BUNDLED",
    "Cancelled",
    "CheckpointError",
    "Control",
    "DeviceError",
    "InputError",
    "NotFiniteError",
    "Result",
    "SDXLPipeline",
    "ScreenError",
    "metadata",
]

# Imported on first use: a program that only reads the settings in a picture needs no JAX.
_LATER = {
    "BUNDLED": ".default_model",
    "Control": ".text.controls",
    "Result": ".drawing.drawing",
    "SDXLPipeline": ".pipeline",
}


def __getattr__(name: str) -> Any:
    if name == "metadata":
        return import_module(".images.metadata", __name__)
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name], __name__), name)
