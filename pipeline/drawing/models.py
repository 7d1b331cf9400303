"""The models that share a pipeline's compiled programs, and descriptions of what they draw."""

import hashlib
import io
from collections.abc import Collection, Mapping
from dataclasses import replace
from threading import Lock
from typing import Any, NamedTuple

import jax

from pipeline.checkpoints.checkpoint import Checkpoint
from pipeline.checkpoints.source import fetch
from pipeline.checkpoints.tensors import read_header
from pipeline.checkpoints.weights import PendingWeights
from pipeline.drawing.planning import Drawer
from pipeline.errors import InputError, UnlikeError
from pipeline.facts import OF_MODEL, Facts, ModelFacts
from pipeline.families import FamilyReader
from pipeline.families.family import Config
from pipeline.images import metadata
from pipeline.request import GUIDANCE_SCALE, NUM_INFERENCE_STEPS, Request, check_name, effective
from pipeline.runtime.compiled import CompiledSampler
from pipeline.runtime.loading import load_tokenizers, match_networks
from pipeline.runtime.models import Model, ModelStore
from pipeline.runtime.programs import cache_key, program_names
from pipeline.schedulers.config import SCHEDULERS
from pipeline.text.loras import is_lora_name
from pipeline.text.tokenizer import Tokenizers, identity

_SAMPLES, _SAMPLE = 64, 2**12  # pieces of a file that its digest covers, and their bytes


class Others(NamedTuple):
    """How a pipeline reads models beside its first one.

    Attributes:
        reader: reads their configuration.
        limit: the most bytes of the host's memory that keep models which are not on the devices.
    """

    reader: FamilyReader
    limit: int


class Models:
    """The models that requests can name. Any thread may call its methods while another draws.

    Args:
        first: the one that the pipeline was loaded with.
        own: its description.
        reader: reads the configuration of others.
        store: keeps the parameters that are not on the devices.
        steps: the number of steps of requests that give none, but for distilled models; None for
            a model's own.
    """

    def __init__(
        self,
        first: Drawer,
        own: ModelFacts,
        reader: FamilyReader,
        store: ModelStore,
        steps: int | None,
    ) -> None:
        self._first = first
        self._own = own
        self._reader = reader
        self._store = store
        self._steps = steps
        self._adding = Lock()
        self._tokenizers: dict[str, Tokenizers] = {}
        # This mapping is replaced, never mutated: one thread may draw while another adds a model.
        self._models: Mapping[str, tuple[Drawer, ModelFacts]] = {}

    @property
    def facts(self) -> tuple[ModelFacts, ...]:
        """Descriptions of the models beside the first one, sorted by name."""
        return tuple(facts for _, (_, facts) in sorted(self._models.items()))

    def drawer(self, name: str, run: CompiledSampler) -> Drawer:
        """Return a model for programs of a size; "" is the first one.

        Raises:
            InputError: if there is no such model; the message lists those that there are.
        """
        drawer = self._known(name)[0] if name else self._first
        return drawer._replace(run=run)

    def add(self, source: str, name: str | None, taken: Collection[str]) -> str:
        """Add a model and return its name, none of those taken; see `SDXLPipeline.add_model`."""
        checkpoint = self._fetch(source)
        name = checkpoint.model if name is None else name
        check_name("a model's", name, is_lora_name, "commas, colons, < and >")
        every = match_networks(checkpoint, self._first.run.parameters.networks)
        files = {network: every[network] for network in self._store.base.files}
        with self._adding:
            if name in (*self._models, *taken):
                raise InputError(
                    f"a model named {name!r} is there already; remove it, or pass another name"
                )
            tokenizers = self._load_tokenizers(checkpoint)
            drawer = self._first._replace(
                config=checkpoint.config, tokenizers=tokenizers, model=Model(name, files)
            )
            steps = self._steps if checkpoint.config.recipe is None else None
            facts = replace(facts_of(name, checkpoint, steps), digest=_digest(files))
            self._models = {**self._models, name: (drawer, facts)}
        return name

    def remove(self, name: str) -> None:
        """Forget a model.

        Raises:
            InputError: if there is no such model; the message lists those that there are.
        """
        with self._adding:
            drawer, _ = self._known(name)
            self._models = {key: entry for key, entry in self._models.items() if key != name}
        self._store.forget(drawer.model)

    def _known(self, name: str) -> tuple[Drawer, ModelFacts]:
        models = self._models
        if name not in models:
            there_are = ", ".join(map(repr, sorted(models))) or "none"
            raise InputError(f"no model named {name!r} was added; there are: {there_are}")
        return models[name]

    def _fetch(self, source: str) -> Checkpoint:
        """Find a checkpoint, and give it the first one's networks that no checkpoint must have.

        Raises:
            CheckpointError: if it is not there or not supported.
            UnlikeError: if it does not fit the programs.
        """
        run, first = self._first.run, self._first.config
        reader, half = self._reader.for_model(source), run.target.dtype.itemsize == 2
        checkpoint = fetch(source, None, reader, prefer_fp16=half)
        if (family := checkpoint.config.family) is not first.family:
            raise self._unlike(source, checkpoint.config)
        networks = {
            **{x: part for x, part in checkpoint.config.networks.items() if family.needs(x)},
            **{x: part for x, part in first.networks.items() if not family.needs(x)},
        }
        # It only says how large pictures are that name no size.
        side = first.networks["unet"].sample_size
        networks["unet"] = replace(networks["unet"], sample_size=side)
        config = replace(checkpoint.config, networks=networks)
        target = replace(run.target, config=config)
        if any(cache_key(x, target) != cache_key(x, run.target) for x in program_names(run.target)):
            raise self._unlike(source, config)
        return replace(checkpoint, config=config)

    def _unlike(self, source: str, config: Config) -> UnlikeError:
        return UnlikeError(
            f"{source}: the programs of {self._own.name} cannot draw with it, because"
            f" {_difference(config, self._first.config)}; name it when the pipeline is loaded"
            " (MODELS)"
        )

    def _load_tokenizers(self, checkpoint: Checkpoint) -> Tokenizers:
        """Load a checkpoint's tokenizers, or return those of a model that has the same."""
        key = repr(identity(checkpoint.folder, checkpoint.config.tokenizers))
        if key not in self._tokenizers:
            cache = self._first.run.room.cache
            self._tokenizers[key] = load_tokenizers(checkpoint, cache)
        return self._tokenizers[key]


def _difference(config: Config, first: Config) -> str:
    """Return what keeps a checkpoint from the programs of another."""
    if config.family is not first.family:
        return f"it is a {config.family.name}, not a {first.family.name}"
    for name, network in first.networks.items():
        other_network = config.networks.get(name)
        for key, right in vars(network).items():
            if (value := getattr(other_network, key, None)) != right:
                return f"its {name} has {key} = {value}, not {right}"
    return f"its prompts have {config.tokens} tokens, not {first.tokens}"


def _digest(files: Mapping[str, PendingWeights[Any]]) -> str:
    """Return a digest of files' headers, their sizes, and samples of their contents.

    Reading all of them would take minutes.
    """
    digest = hashlib.sha256()
    for path in sorted({path for weights in files.values() for path in weights.paths}):
        with path.open("rb") as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
            digest.update(b"%d " % size + read_header(file))
            for i in range(_SAMPLES):
                file.seek(i * size // _SAMPLES)
                digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


def facts_of(name: str, checkpoint: Checkpoint, steps: int | None) -> ModelFacts:
    """Return the description of a model, under its name in requests."""
    config, recipe, timesteps = checkpoint.config, checkpoint.config.recipe, ""
    scheduler, replacements = config.scheduler, checkpoint.replacements
    defaults = {"num_inference_steps": NUM_INFERENCE_STEPS, "guidance_scale": GUIDANCE_SCALE}
    if recipe is not None:
        defaults = {field: recipe.settings[field] for field in defaults}
        if recipe.scheduler == scheduler.name:
            timesteps = recipe.settings["timesteps"]
    defaults |= {name: config.defaults[name] for name in defaults if name in config.defaults}
    if steps is not None:
        defaults["num_inference_steps"] = steps
    return ModelFacts(
        name=name,
        revision=checkpoint.revision,
        unet=replacements["unet"].name if "unet" in replacements else None,
        prediction_type=scheduler.prediction_type,
        scheduler=scheduler.name,
        sigma_schedule=scheduler.sigma_schedule,
        schedulers=tuple(key for key in SCHEDULERS if key in config.schedulers.configs),
        refused_schedulers=tuple(config.schedulers.refused.items()),
        num_train_timesteps=scheduler.num_train_timesteps,
        **defaults,
        guidance_rescale=config.defaults.get("guidance_rescale", 0.0),
        clip_skip=min(config.defaults.get("clip_skip", 0), config.architecture.max_clip_skip),
        distilled=recipe is not None,
        timesteps=timesteps,
        words=checkpoint.words,
    )


def read_facts(
    model_facts: ModelFacts,
    checkpoint: Checkpoint,
    compiled: CompiledSampler,
    screened: bool,
    refiner: str | None,
) -> Facts:
    """Return the facts about a checkpoint that do not change.

    `refiner` is the name of its refiner.
    """
    config, shapes, devices = checkpoint.config, compiled.shapes, compiled.mesh.devices
    replacements = {name: component.name for name, component in checkpoint.replacements.items()}
    quantization = compiled.target.quantization
    version = f"jax {jax.__version__}", compiled.target.dtype.name, quantization
    return Facts(
        **{name: getattr(model_facts, name) for name in OF_MODEL},
        vae=replacements.get("vae"),
        tiny_vae=replacements.get("tiny_vae"),
        refiner=refiner,
        max_clip_skip=config.architecture.max_clip_skip,
        step_cache=compiled.target.step_cache,
        quantization=quantization,
        family=config.family.name,
        safety_checker=config.safety_checker is not None,
        screened=screened,
        needs_mask=config.takes_mask,
        needs_image=config.architecture.needs_image,
        sigma_schedules=config.schedulers.sigma_schedules,
        version=", ".join(filter(None, version)),
        height=shapes.height,
        width=shapes.width,
        images_per_request=shapes.images,
        device=devices.flat[0].device_kind,
        num_devices=devices.size,
    )


def settings_of(facts: Facts, request: Request, i: int, size: tuple[int, int]) -> metadata.Settings:
    """Return the settings of picture i of a request.

    `size` is the width and height of the first run.
    """
    is_own_model = not request.model
    settings = {**effective(request.of_picture(i)), "model": request.model or facts.name}
    return metadata.Settings(
        **settings,
        width=size[0],
        height=size[1],
        revision=facts.revision if is_own_model else None,
        vae=facts.vae,
        unet=facts.unet if is_own_model else None,
        refiner=facts.refiner if request.ends_early else None,
        quantization=facts.quantization,
    )
