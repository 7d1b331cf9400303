"""The refiner: a second model, whose stage draws the last steps of the base model's pictures.

It has a denoiser of its own and shares the rest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import jax
from flax import nnx

from pipeline.checkpoints.checkpoint import Component
from pipeline.checkpoints.source import fetch_component
from pipeline.checkpoints.weights import match_weights
from pipeline.drawing.drawing import Stage
from pipeline.drawing.planning import Drawer, StagePlan, make_stage
from pipeline.errors import InputError
from pipeline.families.family import Architecture, Config, image_size
from pipeline.families.reader import DENOISER, read_refiner
from pipeline.families.single_files import UNET_FILE
from pipeline.runtime.adapters import Adapters
from pipeline.runtime.compiled import CompiledSampler, compile_sampler, place_on
from pipeline.runtime.executables import ExecutableCache
from pipeline.runtime.loading import load_networks, trace_networks
from pipeline.runtime.models import ModelStore
from pipeline.runtime.programs import PROGRAMS, Entry, Target, check_rows, program_names
from pipeline.runtime.room import Model
from pipeline.text.embeddings import Embeddings, Placement
from pipeline.text.tokenizer import Tokenizers


@dataclass(frozen=True)
class SecondModel:
    """A second model to load.

    Attributes:
        name: its name for users.
        config: its configuration, whose other networks are the first model's.
        denoiser: the network that predicts its noise; it has this name in the family.
    """

    name: str
    config: Config
    denoiser: Component

    @property
    def own(self) -> str:
        """The name of the network of its own."""
        [name] = self.config.architecture.predict.networks
        return name


def find_refiner(
    source: str, base: Config, size: tuple[int, int], prefer_fp16: bool
) -> SecondModel:
    """Find the UNet of a refiner, and read its configuration.

    Args:
        source: a folder, an id on the Hub, or a single file, of a refiner or of its UNet.
        base: the base model's configuration.
        size: the height and width of the pictures.
        prefer_fp16: as in `fetch`.

    Raises:
        CheckpointError: if it is not there, not supported, or does not fit the base model.
        InputError: if it cannot draw pictures of this size.
    """
    unet = fetch_component(source, DENOISER, UNET_FILE, prefer_fp16)
    config = read_refiner(base, unet)
    _check_size(config, *size)
    return SecondModel(unet.name, config, unet)


def _check_size(config: Config, height: int, width: int) -> None:
    try:
        image_size(config, height, width)
    except InputError as error:
        raise InputError(f"the refiner cannot draw pictures of this size: {error}") from None


def models_of(
    target: Target,
    networks: Mapping[str, nnx.Module],
    second: SecondModel | None = None,
    cache: ExecutableCache | None = None,
) -> list[Model]:
    """Return what the memory has to hold: a model, and the second one beside it.

    `networks` are the first model's by name; shapes suffice in place of their parameters.
    """
    first = Model("", target, networks, [*networks], program_names(target))
    if second is None:
        return [first]
    second_target = replace(target, config=second.config, quantization=None, controls=False)
    shared_names = _shared_names(target.config.architecture, second)
    programs = [name for name in program_names(second_target) if name not in shared_names]
    second_networks = trace_networks(second.config, target.dtype, cache)
    return [first, Model("refiner", second_target, second_networks, [second.own], programs)]


def load_second_model(run: CompiledSampler, second: SecondModel) -> CompiledSampler:
    """Load a second model for the devices and the size of the first one.

    The two share the programs that run the same networks, and the parameters of all networks but
    the denoiser as they are now: LoRAs that are merged into the first model later do not change
    these. The second model's denoiser is never quantised.

    Raises:
        DeviceError: if the memory cannot hold both.
    """
    room = run.room
    model = room.models[-1]
    target, networks = model.target, model.networks
    denoiser_weights = match_weights(networks[second.own], second.denoiser.open)
    denoisers = load_networks({second.own: denoiser_weights}, place_on(target.mesh))
    parameters = run.parameters.beside(denoisers, [*second.config.networks])
    return compile_sampler(target, parameters, room, _shared(run, second))


def _shared(first: CompiledSampler, second: SecondModel) -> dict[str, jax.stages.Compiled]:
    """Return the first model's programs that run the same networks of both models."""
    names = _shared_names(first.target.config.architecture, second)
    return {name: executable for name, executable in first.executables.items() if name in names}


def _shared_names(first: Architecture, second: SecondModel) -> set[str]:
    """Return the names of the programs that run the same networks of both models."""

    def is_shared(program: Entry) -> bool:
        of_first, of_second = (
            program.networks(architecture) for architecture in (first, second.config.architecture)
        )
        return of_first == of_second and second.own not in of_second

    return {name for name, program in PROGRAMS.items() if is_shared(program)}


class Refiner:
    """A refiner beside a base model, compiled for the same sizes of pictures.

    Args:
        source: the refiner, as it was loaded.
        run: its programs of the first size.
        base: the base model's configuration.
        store: the models whose text encoders and VAE it uses.
        first: the base model's adapters. It has none of its own.

    Attributes:
        run: its programs of the first size.
        text_encoders: the names of those that it shares with the base model.
    """

    def __init__(
        self,
        source: SecondModel,
        run: CompiledSampler,
        base: Config,
        store: ModelStore,
        first: Adapters,
    ) -> None:
        self.run = run
        self._source = source
        self.text_encoders = tuple(source.config.text_encoders)
        places = [[*base.text_encoders].index(name) for name in self.text_encoders]
        self._encoders: Sequence[int] = places  # the places of its text encoders in the base model
        self._adapters = Adapters(run.parameters, run.mesh, (), [source.own], store, first)
        self._by_size = {(run.shapes.height, run.shapes.width): run}

    def check_size(self, height: int, width: int) -> None:
        """Raise InputError for a size of pictures that the refiner cannot draw."""
        _check_size(self._source.config, height, width)
        check_rows(self._source.config, self.run.mesh, height)

    def add_size(self, base: CompiledSampler) -> None:
        """Compile for the size of the base model's programs."""
        size = base.shapes.height, base.shapes.width
        run = self.run.resized(*size, _shared(base, self._source))
        self._by_size = {**self._by_size, size: run}

    def of_size(self, base: CompiledSampler) -> CompiledSampler:
        """Return the programs for the size of the base model's."""
        return self._by_size[base.shapes.height, base.shapes.width]

    def stage(self, plan: StagePlan, base: Drawer, embeddings: Embeddings) -> Stage:
        """Return the stage that goes on from the latents of the base model's.

        The base model lends its text encoders and its VAE. LoRAs change the base model alone. If
        the pictures start from others with masks, the refiner keeps the same parts of them.
        """
        request, origin = plan.request, plan.origin
        refiner_plan = replace(
            plan,
            request=replace(request, loras="", denoising_end=None),
            parts=plan.parts[1:],
            controls=(),
            before=plan.before + plan.parts[1].skipped - plan.parts[0].skipped,
            origin=None if origin is None or origin.masks is None else origin,
        )
        tokenizers = Tokenizers(tuple(base.tokenizers.each[i] for i in self._encoders))
        run = self.of_size(base.run)
        drawer = base._replace(
            config=self._source.config, tokenizers=tokenizers, run=run, adapters=self._adapters
        )
        placement = Placement(embeddings.for_encoders(self._encoders))
        return make_stage(refiner_plan, drawer, placement)
