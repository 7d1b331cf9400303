"""The configuration of full-size SDXL base, without its weights."""

import tempfile
from dataclasses import replace
from pathlib import Path

from pipeline.families import read_config
from pipeline.families.family import Config
from pipeline.models.controlnet_config import ControlNetConfig
from pipeline.models.unet_config import UNetConfig
from pipeline.models.vae_config import PUBLISHED
from tools.published_configs import SDXL_BASE, write


def read_published() -> Config:
    """Return the published checkpoint's configuration."""
    with tempfile.TemporaryDirectory() as folder:
        return read_config(write(Path(folder), SDXL_BASE))


def read_with_tiny_vae() -> Config:
    """Return the same with the published tiny VAE, TAESDXL, beside the checkpoint."""
    config = read_published()
    return replace(config, networks={**config.networks, "tiny_vae": PUBLISHED})


def controlnet_of(unet: UNetConfig) -> ControlNetConfig:
    """Return the configuration of the ControlNet that has all of a UNet's first half."""
    return ControlNetConfig(**unet.encoder, hint_channels=(16, 32, 96, 256))
