"""Reading of a checkpoint's configuration, as its model family's record describes it.

Each reader takes the supported keys one by one. An unknown key, or a value that this package does
not implement, is an error that names the file, the key and the value. Keys that a file may leave
out default to the values of diffusers' and transformers' own classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline.checkpoints.checkpoint import Component, Recognised
from pipeline.checkpoints.tensors import TensorFiles
from pipeline.errors import CheckpointError
from pipeline.families.family import Config, Family, Network
from pipeline.families.replacements import read_replacement, read_tiny_vae_beside
from pipeline.families.sdxl import SDXL, SDXL_REFINER
from pipeline.families.single_files import (
    CONFIGS,
    fit_config,
    read_published,
    recognise_file,
    scheduler_settings,
)
from pipeline.families.stable_diffusion import SD_1, SD_2
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
# Readers of networks that are used beside a checkpoint, by the names in `Family.apart`.
BESIDE: Mapping[str, Callable[[Network, Component, Config, Path], Any]] = {
    "tiny_vae": read_tiny_vae_beside
}
TOKENIZERS = ("CLIPTokenizer", "CLIPTokenizerFast")
# Folders of a checkpoint that only the safety checker needs.
SAFETY_CHECKER = ("safety_checker", "feature_extractor")


@dataclass(frozen=True)
class FamilyReader:
    """A reader of configuration for `pipeline.checkpoints.source.fetch`.

    Attributes:
        scheduler: a key of `SCHEDULERS` that replaces the checkpoint's own scheduler.
        safety_checker: False leaves out the checkpoint's safety checker.
        vae: a VAE that replaces the checkpoint's own.
        unet: the same for a UNet.
        beside: networks to use beside it, by name; see `Family.apart`. None stands for none.
        recipe: the settings of a distilled model; see `for_model`.
    """

    scheduler: str | None = None
    safety_checker: bool = True
    vae: Component | None = None
    unet: Component | None = None
    beside: Mapping[str, Component | None] = field(default_factory=dict)
    recipe: Recipe | None = None

    def for_model(self, model: str) -> "FamilyReader":
        """Return the reader with the recipe of a model or of its UNet, if their names have one."""
        names = [model] if self.unet is None else [self.unet.name]
        return replace(self, recipe=find_model_recipe(names))

    @property
    def unwanted(self) -> tuple[str, ...]:
        """Folders of the components to leave out."""
        return () if self.safety_checker else SAFETY_CHECKER

    @property
    def replacements(self) -> dict[str, Component]:
        """Networks that are not the checkpoint's own, by name."""
        components = {"vae": self.vae, "unet": self.unet, **self.beside}
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
        config = self._with_networks_beside(self._read(folder), folder)
        config.family.check(folder / "unet/config.json", config)
        reader = self._by_contents(config)
        if reader is None:
            return config
        # The checkpoint's own scheduler was made for its own UNet.
        return replace(config, recipe=reader.recipe) if self.unet is None else reader.read(folder)

    def recognise(self, tensors: TensorFiles) -> Recognised[Config]:
        """Return the configuration of a single file, from its tensors.

        Raises:
            CheckpointError: if it is of no kind that is supported, or a network is missing.
        """
        kind = recognise_file(tensors)
        folder, replacements = CONFIGS / kind.folder, self.replacements
        sections = {name: part for name, part in kind.sections.items() if name not in replacements}
        config = fit_config(self._read(folder, scheduler_settings(tensors)), tensors, sections)
        config = self._with_networks_beside(config, tensors.where)
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
        forced_settings = {**family.forced_scheduler_settings, **scheduler_settings}
        return Config(
            family=family,
            networks={part.name: self._read_network(folder, part, family) for part in networks},
            schedulers=read_schedulers(
                folder / "scheduler/scheduler_config.json",
                scheduler,
                self.scheduler or (recipe.scheduler if recipe else None),
                forced_settings | (recipe.scheduler_settings if recipe else {}),
                family.aligned_sigmas,
            ),
            tokens=tuple(read_length(folder / str(x.tokenizer)) for x in family.text_encoders),
            force_zeros_for_empty_prompt=force_zeros,
            recipe=recipe,
        )

    def _with_networks_beside(self, config: Config, where: Path) -> Config:
        networks = dict(config.networks)
        for name, component in self.replacements.items():
            if name in self.beside:
                network = config.family.network(name)
                networks[name] = BESIDE[network.name](network, component, config, where)
        return replace(config, networks=networks)

    def _read_network(self, folder: Path, part: Network, family: Family) -> Any:
        replacement = self.replacements.get(part.name)
        if replacement is None:
            return _read_network(folder, part)
        config_file = folder / part.name / "config.json"
        is_there = config_file.is_file()
        replaced = part.read(config_file) if is_there else read_published(family, part)
        return read_replacement(part, replacement, replaced, folder)

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


def _read_network(folder: Path, part: Network) -> Any:
    try:
        return part.read(folder / part.name / "config.json")
    except CheckpointError as error:
        raise CheckpointError(f"{error} ({part.hint})" if part.hint else str(error)) from None


def read_config(
    folder: Path, scheduler: str | None = None, *, safety_checker: bool = True
) -> Config:
    """Read the configuration of a checkpoint in a folder; see `FamilyReader`."""
    return FamilyReader(scheduler, safety_checker).read(folder)
