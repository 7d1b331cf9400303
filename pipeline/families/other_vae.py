"""The configuration of a VAE that replaces a checkpoint's own."""

from pathlib import Path

from pipeline.checkpoints.checkpoint import Component
from pipeline.errors import CheckpointError
from pipeline.families.family import Network
from pipeline.families.single_files import fit_network
from pipeline.models.vae_config import VAEConfig
from pipeline.strict_json import StrictJson

# Properties of the latents, which the UNet was trained on.
LATENTS = ("latent_channels", "scale_factor", "scaling_factor", "latents_mean", "latents_std")


def read_other_vae(part: Network, other: Component, own: VAEConfig, checkpoint: Path) -> VAEConfig:
    """Return the configuration of a VAE, of which a single file holds only the shapes.

    Args:
        part: the VAE's place in the family.
        other: the VAE.
        own: the configuration of the VAE that it replaces.
        checkpoint: the checkpoint, for messages.

    Raises:
        CheckpointError: if the VAE is for other latents than the checkpoint's, or not supported.
    """
    config = _read(part, other, own)
    for key in LATENTS:
        value, right = getattr(config, key), getattr(own, key)
        if value != right:
            raise CheckpointError(
                f"{other.where}: {key} = {value!r} does not fit the latents of {checkpoint};"
                f" expected {right!r}"
            )
    return config


def _read(part: Network, other: Component, own: VAEConfig) -> VAEConfig:
    if other.config is None:
        with other.open() as tensors:
            return fit_network(part, own, other.where, tensors)
    StrictJson(other.config).one_of("_class_name", (part.class_name,))
    return part.read(other.config)
