"""The configuration of a VAE that replaces a checkpoint's own, and of a tiny one beside it."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from pipeline.checkpoints.checkpoint import Component
from pipeline.checkpoints.source import fetch_component
from pipeline.checkpoints.weights import modern_name
from pipeline.errors import CheckpointError
from pipeline.families.family import Network
from pipeline.families.single_files import TINY_VAE_FILE, fit_network
from pipeline.models.tiny_vae_config import PUBLISHED, TinyVAEConfig
from pipeline.models.vae_config import VAEConfig
from pipeline.strict_json import StrictJson

# Properties of the latents, which the UNet was trained on. A tiny VAE has its own scale.
TINY_LATENTS = ("latent_channels", "scale_factor")
LATENTS = (*TINY_LATENTS, "scaling_factor", "latents_mean", "latents_std")


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
    if other.config is None:
        with other.open() as tensors:
            config = fit_network(part, own, other.where, tensors)
    else:
        config = _read(part, other.config)
    _check_latents(config, other, own, checkpoint, LATENTS)
    return config


def fetch_tiny_vae(source: str | Path | None, prefer_fp16: bool = False) -> Component | None:
    """Find a tiny VAE, as `fetch_component` finds a VAE; None for None."""
    if source is None:
        return None
    return fetch_component(str(source), "vae", TINY_VAE_FILE, prefer_fp16)


def read_tiny_vae_beside(
    part: Network, tiny: Component, own: VAEConfig, checkpoint: Path
) -> TinyVAEConfig:
    """Return the configuration of a tiny VAE; the arguments are those of `read_other_vae`.

    Raises:
        CheckpointError: if it is for latents of another shape than the checkpoint's, or not
            supported.
    """
    config = _fit_tiny(part, tiny) if tiny.config is None else _read(part, tiny.config)
    _check_latents(config, tiny, own, checkpoint, TINY_LATENTS)
    return config


def _fit_tiny(part: Network, tiny: Component) -> TinyVAEConfig:
    assert part.fit is not None
    with tiny.open() as tensors:
        shapes = {modern_name(name): tensor.shape for name, tensor in tensors.items()}
    try:
        return part.fit(PUBLISHED, shapes)
    except (LookupError, ValueError) as error:
        raise CheckpointError(
            f"{tiny.where}: the decoder of a tiny VAE is missing ({error}); expected tensors named"
            " decoder.layers.0.weight and so on, or 1.weight and so on in a file of a decoder alone"
        ) from error


def _read(part: Network, file: Path) -> Any:
    StrictJson(file).one_of("_class_name", (part.class_name,))
    return part.read(file)


def _check_latents(
    config: Any, other: Component, own: VAEConfig, checkpoint: Path, keys: Collection[str]
) -> None:
    for key in keys:
        value, right = getattr(config, key), getattr(own, key)
        if value != right:
            raise CheckpointError(
                f"{other.where}: {key} = {value!r} does not fit the latents of {checkpoint};"
                f" expected {right!r}"
            )
