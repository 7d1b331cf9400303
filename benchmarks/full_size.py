"""SDXL base at full size without its weights."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flax import nnx
from jax.typing import DTypeLike

from pipeline.compiled import Networks
from pipeline.config import Config, read_config
from pipeline.loading import blueprints
from tests.published import SDXL_BASE, write


def read_published() -> Config:
    """Of the published checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        return read_config(write(Path(folder), SDXL_BASE))


def empty_networks(config: Config, dtype: DTypeLike) -> Networks:
    """Shapes in place of their parameters."""

    def empty(make: Callable[[DTypeLike], nnx.Module]) -> Any:
        return nnx.eval_shape(lambda: make(dtype))

    return Networks.named({name: empty(make) for name, make in blueprints(config).items()})
