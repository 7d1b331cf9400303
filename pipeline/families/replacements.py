"""The configuration of a VAE or a UNet that replaces a checkpoint's own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.checkpoints.checkpoint import Component
from pipeline.errors import CheckpointError
from pipeline.families.family import Network
from pipeline.families.single_files import fit_network
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
}


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
    if component.config is None:
        with component.open() as tensors:
            config = fit_network(part, replaced_config, component.where, tensors)
    else:
        config = read_file(part, component.config)
    check_fit(config, replaced_config, FIXED[part.name], component, checkpoint)
    return config


def read_file(part: Network, file: Path) -> Any:
    """Return the configuration in `config.json` of a network that is not in a checkpoint's folder.

    Raises:
        CheckpointError: if it is of another class, or is not supported.
    """
    StrictJson(file).one_of("_class_name", (part.class_name,))
    return part.read(file)


def check_fit(
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
