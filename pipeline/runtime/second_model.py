"""A second model beside the first one: it has a denoiser of its own and shares the rest."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import jax
from flax import nnx

from pipeline.checkpoints import weights
from pipeline.checkpoints.checkpoint import Component
from pipeline.families.family import Architecture, Config
from pipeline.runtime.compiled import CompiledSampler, compile_sampler, place_on
from pipeline.runtime.executables import (
    ExecutableCache,
)
from pipeline.runtime.loading import load_networks, trace_networks
from pipeline.runtime.programs import PROGRAMS, Entry, Target, program_names
from pipeline.runtime.room import Model


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
    second_target = replace(target, config=second.config, quantization=None)
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
    denoiser_weights = weights.match_weights(networks[second.own], second.denoiser.open)
    denoisers = load_networks({second.own: denoiser_weights}, place_on(target.mesh))
    parameters = run.parameters.beside(denoisers, [*second.config.networks])
    return compile_sampler(target, parameters, room, _shared(run, second))


def resized_second_model(
    run: CompiledSampler, first: CompiledSampler, second: SecondModel
) -> CompiledSampler:
    """Return a second model for the size of `first`, whose programs it shares."""
    return run.resized(first.shapes.height, first.shapes.width, _shared(first, second))


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
