"""The configuration of a refiner beside a base model, whose other networks it shares."""

from dataclasses import replace

from pipeline.checkpoints.checkpoint import Component
from pipeline.errors import CheckpointError
from pipeline.families.family import Config
from pipeline.families.replacements import read_file
from pipeline.families.sdxl import SDXL
from pipeline.families.sdxl_refiner import SDXL_REFINER
from pipeline.families.single_files import CONFIGS, KINDS, fit_network

# The family of the refiner, by the base model's.
REFINERS = {SDXL.name: SDXL_REFINER}
DENOISER = "unet"


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
    if unet.config is not None:
        network = read_file(part, unet.config)
    else:
        kind = next(kind for kind in KINDS if kind.family is family)
        published_config = part.read(CONFIGS / kind.folder / part.name / "config.json")
        with unet.open() as tensors:
            network = fit_network(part, published_config, unet.where, tensors)
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
