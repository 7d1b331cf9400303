"""Stable Diffusion XL in Flax: text to pictures on TPU, GPU or CPU."""

from pipeline.default_model import BUNDLED
from pipeline.errors import Cancelled, CheckpointError, DeviceError, InputError
from pipeline.pipeline import Result, SDXLPipeline

__all__ = [
    "BUNDLED",
    "Cancelled",
    "CheckpointError",
    "DeviceError",
    "InputError",
    "Result",
    "SDXLPipeline",
]
