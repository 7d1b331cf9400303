"""A tiny VAE beside a checkpoint: where it comes from, and its configuration."""

from pathlib import Path

from pipeline.checkpoints.checkpoint import Component
from pipeline.checkpoints.source import fetch_component
from pipeline.families.family import Config, Network
from pipeline.families.replacements import check_fit, read_file
from pipeline.families.single_files import TINY_VAE_FILE, fit_network
from pipeline.models.tiny_vae_config import PUBLISHED, TinyVAEConfig

# Properties of the latents that it shares with the checkpoint's VAE; it has a scale of its own.
LATENTS = {"latent_channels": "latents", "scale_factor": "latents"}
NO_DECODER = (
    "the decoder of a tiny VAE is missing; expected tensors named decoder.layers.0.weight and so"
    " on, or 1.weight and so on in a file of a decoder alone"
)


def fetch_tiny_vae(source: str | Path | None, prefer_fp16: bool = False) -> Component | None:
    """Find a tiny VAE, as `fetch_component` finds a VAE; None for None."""
    if source is None:
        return None
    return fetch_component(str(source), "vae", TINY_VAE_FILE, prefer_fp16)


def read_tiny_vae_beside(
    part: Network, tiny: Component, config: Config, checkpoint: Path
) -> TinyVAEConfig:
    """Return the configuration of a tiny VAE, of which a single file holds only the shapes.

    Args:
        part: the tiny VAE's place in the family.
        tiny: the tiny VAE.
        config: the configuration of the checkpoint.
        checkpoint: the checkpoint, for messages.

    Raises:
        CheckpointError: if it is for latents of another shape than the checkpoint's, or not
            supported.
    """
    network = _fit(part, tiny) if tiny.config is None else read_file(part, tiny.config)
    check_fit(network, config.networks["vae"], LATENTS, tiny, checkpoint)
    return network


def _fit(part: Network, tiny: Component) -> TinyVAEConfig:
    with tiny.open() as tensors:
        return fit_network(part, PUBLISHED, tiny.where, tensors, NO_DECODER)
