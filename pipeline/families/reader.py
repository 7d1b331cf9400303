"""Reading of a checkpoint's configuration, as its model family's record describes it.

Networks that are not the checkpoint's own are a VAE or a UNet in place of its own, a tiny VAE
beside it, and the UNet of a refiner, which shares the base model's other networks.

Each reader takes the supported keys one by one. An unknown key, or a value that this package does
not implement, is an error that names the file, the key and the value. Keys that a file may leave
out default to the values of diffusers' and transformers' own classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline.checkpoints.checkpoint import Component, Recognised
from pipeline.checkpoints.source import fetch_component
from pipeline.checkpoints.tensors import TensorFiles
from pipeline.errors import CheckpointError
from pipeline.families.family import Config, Family, Network
from pipeline.families.latent_unet import CONTROL
from pipeline.families.model_defaults import ModelDefaults, read_defaults
from pipeline.families.sdxl import SDXL, SDXL_REFINER
from pipeline.families.single_files import (
    CONFIGS,
    TINY_VAE_FILE,
    fit_config,
    fit_network,
    read_published,
    recognise_file,
    scheduler_settings,
)
from pipeline.families.stable_diffusion import SD_1, SD_2
from pipeline.models.vae_config import PUBLISHED
from pipeline.schedulers.choice import read_schedulers
from pipeline.schedulers.config import CLASS_NAMES
from pipeline.schedulers.recipes import LATENT_CONSISTENCY, Recipe, find_model_recipe
from pipeline.strict_json import StrictJson
from pipeline.text.tokenizer import read_length

FAMILIES = (SDXL, SDXL_REFINER, SD_1, SD_2)
# Unsupported kinds of model. The keys are parts of the class names of their pipelines.
OTHER_FAMILIES = {
    "StableDiffusion3": "Stable Diffusion 3",
    "Flux": "FLUX",
    "ControlNet": "a ControlNet",
    "Inpaint": "an inpainting model",
    "Img2Img": "an image-to-image model",
    "InstructPix2Pix": "an image-editing model",
    "Upscale": "an upscaler",
    "Depth2Img": "a depth-to-image model",
}
TOKENIZERS = ("CLIPTokenizer", "CLIPTokenizerFast")
# Folders of a checkpoint that only the safety checker needs.
SAFETY_CHECKER = ("safety_checker", "feature_extractor")
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
    CONTROL: dict.fromkeys(("block_out_channels", "layers_per_block", "addition"), "UNet"),
}
NO_DECODER = (
    "the decoder of a tiny VAE is missing; expected tensors named decoder.layers.0.weight and so"
    " on, or 1.weight and so on in a file of a decoder alone"
)
# The family of the refiner, by the base model's.
REFINERS = {SDXL.name: SDXL_REFINER}
DENOISER = "unet"


@dataclass(frozen=True)
class FamilyReader:
    """A reader of configuration for `pipeline.checkpoints.source.fetch`.

    Attributes:
        scheduler: a key of `SCHEDULERS` that replaces the checkpoint's own scheduler.
        safety_checker: False leaves out the checkpoint's safety checker.
        vae: a VAE that replaces the checkpoint's own.
        unet: the same for a UNet.
        tiny_vae: a tiny VAE to use beside it.
        recipe: the settings of a distilled model; see `for_model`.
        defaults: the settings in the file beside the model.
    """

    scheduler: str | None = None
    safety_checker: bool = True
    vae: Component | None = None
    unet: Component | None = None
    tiny_vae: Component | None = None
    recipe: Recipe | None = None
    defaults: ModelDefaults = field(default_factory=ModelDefaults)

    def for_model(self, model: str) -> "FamilyReader":
        """Return the reader with the recipe of a model or of its UNet, and the model's defaults.

        Raises:
            CheckpointError: if the file with the defaults cannot be used.
        """
        names = [model] if self.unet is None else [self.unet.name]
        return replace(self, recipe=find_model_recipe(names), defaults=read_defaults(model))

    @property
    def unwanted(self) -> tuple[str, ...]:
        """Folders of the components to leave out."""
        return () if self.safety_checker else SAFETY_CHECKER

    @property
    def replacements(self) -> dict[str, Component]:
        """Networks that are not the checkpoint's own, by name."""
        components = {"vae": self.vae, "unet": self.unet, "tiny_vae": self.tiny_vae}
        return {name: component for name, component in components.items() if component is not None}

    def describe(self, class_name: object) -> str:
        """Return a phrase that says what an unsupported class is, or "" if it is unknown.

        The phrase continues the sentence of an error message.
        """
        family_names = (name for part, name in OTHER_FAMILIES.items() if part in str(class_name))
        return next((f"; this is {name}" for name in family_names), "")

    def read(self, folder: Path) -> Config:
        """Read every configuration of a checkpoint in diffusers' layout.

        Raises:
            CheckpointError: if a setting is not supported; the message names file, key and value.
        """
        config = self._with_tiny_vae(self._read(folder), folder)
        config.family.check(folder / "unet/config.json", config)
        reader = self._by_contents(config)
        if reader is None:
            return config
        # The checkpoint's own scheduler was made for its own UNet.
        return replace(config, recipe=reader.recipe) if self.unet is None else reader.read(folder)

    def recognise(self, tensors: TensorFiles) -> Recognised:
        """Return the configuration of a single file, from its tensors.

        Raises:
            CheckpointError: if it is of no kind that is supported, or a network is missing.
        """
        kind = recognise_file(tensors)
        folder, replacements = CONFIGS / kind.folder, self.replacements
        sections = {name: part for name, part in kind.sections.items() if name not in replacements}
        config = fit_config(self._read(folder, scheduler_settings(tensors)), tensors, sections)
        config = self._with_tiny_vae(config, tensors.where)
        config.family.check(tensors.where, config)
        reader = self._by_contents(config)
        if reader is not None:
            return reader.recognise(tensors)
        return Recognised(config, folder, kind.sections)

    def _by_contents(self, config: Config) -> "FamilyReader | None":
        """Return a reader with the recipe that a UNet shows without its name, if there is one."""
        if self.recipe is not None or not config.architecture.embeds_guidance:
            return None
        return replace(self, recipe=LATENT_CONSISTENCY[config.family.name])

    def _read(
        self, folder: Path, scheduler_settings: Mapping[str, Any] = MappingProxyType({})
    ) -> Config:
        """Read the configuration in a folder; `scheduler_settings` replace the file's."""
        index = StrictJson(folder / "model_index.json")
        family = self._recognise(folder, index)
        scheduler, networks, force_zeros = self._read_index(index, family)
        recipe = self.recipe if self.recipe and self.recipe.family == family.name else None
        marked_settings = self._unet_settings() or scheduler_settings
        forced_settings = {**family.forced_scheduler_settings, **marked_settings}
        return Config(
            family=family,
            networks={part.name: self._read_network(folder, part, family) for part in networks},
            schedulers=read_schedulers(
                folder / "scheduler/scheduler_config.json",
                scheduler,
                self.scheduler
                or self.defaults.settings.get("scheduler")
                or (recipe.scheduler if recipe else None),
                {
                    **forced_settings,
                    **(recipe.scheduler_settings if recipe else {}),
                    **self.defaults.scheduler,
                },
                family.aligned_sigmas,
            ),
            tokens=tuple(read_length(folder / str(x.tokenizer)) for x in family.text_encoders),
            force_zeros_for_empty_prompt=force_zeros,
            recipe=recipe,
            defaults=self.defaults.settings,
        )

    def _unet_settings(self) -> dict[str, Any]:
        """Return the settings of the scheduler that the file of another UNet says; empty if none.

        A UNet that says nothing is drawn as the checkpoint's own.
        """
        if self.unet is None or self.unet.config is not None:
            return {}
        with self.unet.open() as tensors:
            return scheduler_settings(tensors.beside)

    def _with_tiny_vae(self, config: Config, where: Path) -> Config:
        if self.tiny_vae is None:
            return config
        part = config.family.network("tiny_vae")
        network = _read_component(part, self.tiny_vae, PUBLISHED, NO_DECODER)
        check_fit(network, config.networks["vae"], FIXED[part.name], self.tiny_vae, where)
        return replace(config, networks={**config.networks, part.name: network})

    def _read_network(self, folder: Path, part: Network, family: Family) -> Any:
        replacement = self.replacements.get(part.name)
        if replacement is None:
            try:
                return part.read(folder / part.name / "config.json")
            except CheckpointError as error:
                raise CheckpointError(
                    f"{error} ({part.hint})" if part.hint else str(error)
                ) from None
        config_file = folder / part.name / "config.json"
        is_there = config_file.is_file()
        replaced = part.read(config_file) if is_there else read_published(family, part)
        config = _read_component(part, replacement, replaced)
        check_fit(config, replaced, FIXED[part.name], replacement, folder)
        return config

    def _recognise(self, folder: Path, index: StrictJson) -> Family:
        name = index.values.get("_class_name")
        of_class = [family for family in FAMILIES if name in family.class_names]
        if not of_class:
            names = dict.fromkeys(repr(name) for family in FAMILIES for name in family.class_names)
            raise index.error("_class_name", name, " or ".join(names) + self.describe(name))
        return next(family for family in of_class if family.recognise(folder))

    def _read_index(self, keys: StrictJson, family: Family) -> tuple[str, list[Network], bool]:
        """Return the scheduler's class, the networks in use, and whether to force zeros."""
        required_networks = (*family.text_encoders, *family.networks)
        for part in required_networks:
            _check_component(keys, part.name, (part.class_name,))
            if part.tokenizer is not None:
                _check_component(keys, part.tokenizer, TOKENIZERS)
        scheduler = keys.take("scheduler", list)
        if len(scheduler) != 2 or (self.scheduler is None and scheduler[1] not in CLASS_NAMES):
            raise keys.error("scheduler", scheduler, f"one of {', '.join(CLASS_NAMES)}")
        keys.one_of("image_encoder", ([None, None],))
        force_zeros = family.zeros_for_empty_prompt and keys.take(
            "force_zeros_for_empty_prompt", bool, True
        )
        present_networks = [
            part
            for part in family.optional
            if keys.values.get(part.name, [None, None]) != [None, None]
        ]
        for part in present_networks:
            _check_component(keys, part.name, (part.class_name,))
        absent = [part.name for part in family.optional if part not in present_networks]
        keys.finish("feature_extractor", *family.ignored, *absent)
        optional_networks = [part for part in present_networks if part.name not in self.unwanted]
        return scheduler[1], [*required_networks, *optional_networks], force_zeros


def _check_component(keys: StrictJson, component: str, class_names: tuple[str, ...]) -> None:
    value = keys.take(component, list)
    if len(value) != 2 or value[1] not in class_names:
        raise keys.error(component, value, f"the class {class_names[0]!r}")


def read_config(
    folder: Path, scheduler: str | None = None, *, safety_checker: bool = True
) -> Config:
    """Read the configuration of a checkpoint in a folder; see `FamilyReader`."""
    return FamilyReader(scheduler, safety_checker).read(folder)


def fetch_tiny_vae(source: str | Path | None, prefer_fp16: bool = False) -> Component | None:
    """Find a tiny VAE, as `fetch_component` finds a VAE; None for None."""
    if source is None:
        return None
    return fetch_component(str(source), "vae", TINY_VAE_FILE, prefer_fp16)


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
    network = _read_component(part, unet, read_published(family, part))
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


def _read_component(
    part: Network, component: Component, published_config: Any, fault: str = ""
) -> Any:
    """Return a network's configuration; the other arguments are those of `fit_network`."""
    if component.config is None:
        with component.open() as tensors:
            return fit_network(part, published_config, component.where, tensors, fault)
    StrictJson(component.config).one_of("_class_name", (part.class_name,))
    return part.read(component.config)


def check_fit(
    config: Any,
    replaced_config: Any,
    owners: Mapping[str, str],
    component: Component,
    checkpoint: Path | str,
) -> None:
    """Check that a network fits a checkpoint.

    Args:
        config: the configuration of the network.
        replaced_config: the configuration of the checkpoint's network.
        owners: the properties that must agree, and the part of the checkpoint that needs each.
        component: the network, for messages.
        checkpoint: the checkpoint or its name, for messages.

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
