"""The configuration of networks that are not a checkpoint's own.

They are a VAE or a UNet in place of its own, a tiny VAE beside it, and the UNet of a refiner, which
shares the base model's other networks.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.checkpoints.checkpoint import Component
from pipeline.checkpoints.source import fetch_component
from pipeline.errors import CheckpointError
from pipeline.families.family import Config, Network
from pipeline.families.sdxl import SDXL, SDXL_REFINER
from pipeline.families.single_files import TINY_VAE_FILE, fit_network, read_published
from pipeline.models.tiny_vae_config import PUBLISHED, TinyVAEConfig
from pipeline.strict_json import StrictJson

# For each network that can be replaced, the properties that must stay, and the part of the
# checkpoint that depends on them.
FIXED: Mapping[str, Mapping[str, str]] = {
    "vae": dict.fromkeys(
        ("latent_channels", "scale_factor", "scaling_factor", "latents_mean", "latents_std"),
        "latents",
    ),
    "unet": {
        "in_channels": "latents",
        "cross_attention_dim": "text encoders",
        "addition": "text encoders",
    },
    # It has a scale of its own.
    "tiny_vae": {"latent_channels": "latents", "scale_factor": "latents"},
}
NO_DECODER = (
    "the decoder of a tiny VAE is missing; expected tensors named decoder.layers.0.weight and so"
    " on, or 1.weight and so on in a file of a decoder alone"
)
# The family of the refiner, by the base model's.
REFINERS = {SDXL.name: SDXL_REFINER}
DENOISER = "unet"


def read_replacement(
    part: Network, component: Component, replaced_config: Any, checkpoint: Path
) -> Any:
    """Return the configuration of a network, of which a single file holds only the shapes.

    Args:
        part: the network's place in the family; its name is a key of `FIXED`.
        component: the network.
        replaced_config: the configuration of the network that it replaces.
        checkpoint: the checkpoint, for messages.

    Raises:
        CheckpointError: if the network does not fit the checkpoint, or is not supported.
    """
    config = _read(part, component, replaced_config)
    _check_fit(config, replaced_config, FIXED[part.name], component, checkpoint)
    return config


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
    network = _read(part, tiny, PUBLISHED, NO_DECODER)
    _check_fit(network, config.networks["vae"], FIXED[part.name], tiny, checkpoint)
    return network


def read_refiner(base: Config, unet: Component) -> Config:
    """Return the configuration of a refiner with the base model's text encoder, VAE and scheduler.

    Args:
        base: the configuration of the base model.
        unet: the refiner's UNet.

    Raises:
        CheckpointError: if the base model's family has no refiner, or the UNet is not supported or
            does not fit the base model.
    """
    family = REFINERS.get(base.family.name)
    if family is None:
        names = ", ".join(REFINERS)
        raise CheckpointError(
            f"{unet.where}: a {base.family.name} has no refiner; expected a base model of {names}"
        )
    [part] = (part for part in family.networks if part.name == DENOISER)
    network = _read(part, unet, read_published(family, part))
    kinds = {part.name for part in family.all_networks} - {DENOISER}
    shared_networks = {
        name: network
        for name, network in base.networks.items()
        if base.family.network(name).name in kinds
    }
    config = replace(
        base,
        family=family,
        networks={DENOISER: network, **shared_networks},
        force_zeros_for_empty_prompt=False,  # as in the published refiner's `model_index.json`
        tokens=base.tokens[-len(family.text_encoders) :],
        recipe=None,
    )
    try:
        family.check(unet.where, config)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; a refiner must be made for the base model") from None
    return config


def _read(part: Network, component: Component, published_config: Any, fault: str = "") -> Any:
    """Return a network's configuration; the other arguments are those of `fit_network`."""
    if component.config is None:
        with component.open() as tensors:
            return fit_network(part, published_config, component.where, tensors, fault)
    StrictJson(component.config).one_of("_class_name", (part.class_name,))
    return part.read(component.config)


def _check_fit(
    config: Any,
    replaced_config: Any,
    owners: Mapping[str, str],
    component: Component,
    checkpoint: Path,
) -> None:
    """Check that a network fits a checkpoint.

    Args:
        config: the configuration of the network.
        replaced_config: the configuration of the checkpoint's network.
        owners: the properties that must agree, and the part of the checkpoint that needs each.
        component: the network, for messages.
        checkpoint: the checkpoint, for messages.

    Raises:
        CheckpointError: if a property differs.
    """
    for key, owner in owners.items():
        value, right = getattr(config, key), getattr(replaced_config, key)
        if value != right:
            raise CheckpointError(
                f"{component.where}: {key} = {value!r} does not fit the {owner} of {checkpoint};"
                f" expected {right!r}"
            )
