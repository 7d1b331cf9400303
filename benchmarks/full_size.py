"""The configuration of full-size SDXL base, without its weights."""

import tempfile
from pathlib import Path

from pipeline.families import read_config
from pipeline.families.family import Config
from tools.published_configs import SDXL_BASE, write


def read_published() -> Config:
    """Return the published checkpoint's configuration."""
    with tempfile.TemporaryDirectory() as folder:
        return read_config(write(Path(folder), SDXL_BASE))
