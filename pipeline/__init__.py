"""Stable Diffusion XL in Flax: text to pictures on TPU, GPU or CPU."""

import sys
from pkgutil import resolve_name
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

# Every program imports this first. Later a module of Unix would be missing, such as fcntl.
if sys.platform == "win32":
    sys.exit(
        "This program runs on Linux and macOS. On Windows, use WSL:"
        " https://learn.microsoft.com/windows/wsl/install"
    )

# Imported on first use: a program that only reads the settings in a picture needs no JAX.
_LATER = {
    "BUNDLED": ".default_model:BUNDLED",
    "Control": ".text.controls:Control",
    "Result": ".drawing.drawing:Result",
    "SDXLPipeline": ".pipeline:SDXLPipeline",
    "metadata": ".images.metadata:",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return resolve_name(__name__ + _LATER[name])
