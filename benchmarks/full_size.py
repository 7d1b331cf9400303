"""The configuration of full-size SDXL base, without its weights."""

import tempfile
from pathlib import Path

from pipeline.models.config import Config, read_config
from tools.published_configs import SDXL_BASE, write


def read_published() -> Config:
    """Return the published checkpoint's configuration."""
    with tempfile.TemporaryDirectory() as folder:
        return read_config(write(Path(folder), SDXL_BASE))
