"""A second model beside the first one: it has a denoiser of its own and shares the rest."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from pipeline.checkpoints import weights
from pipeline.checkpoints.checkpoint import Component
from pipeline.families.family import Config
from pipeline.runtime.compiled import CompiledSampler, place_on
from pipeline.runtime.executable_cache import ExecutableCache
from pipeline.runtime.executables import compile_missing, load_cached
from pipeline.runtime.loading import load_networks, measure_networks, trace_networks
from pipeline.runtime.model_size import ModelSize
from pipeline.runtime.programs import PROGRAMS


@dataclass(frozen=True)
class Beside:
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
        [name] = self.config.family.predict.networks
        return name


def measure_beside(
    second: Beside, dtype: np.dtype[Any], cache: ExecutableCache | None = None
) -> ModelSize:
    """Return the sizes of a second model's networks in a dtype."""
    networks = trace_networks(second.config, dtype, cache)
    return measure_networks(second.config, networks, dtype, cache)


def load_beside(
    run: CompiledSampler, second: Beside, cache: ExecutableCache | None
) -> CompiledSampler:
    """Load a second model for the devices and the size of the first one.

    The two share the programs that run the same networks, and the parameters of all networks but
    the denoiser as they are now: LoRAs that are merged into the first model later do not change
    these. The second model's denoiser is never quantised.
    """
    target = replace(run.target, config=second.config, quantization=None)
    networks = trace_networks(second.config, target.dtype, cache)
    found = weights.match_weights(networks[second.own], second.denoiser.open)
    loaded = load_networks({second.own: found}, place_on(target.mesh))
    shared = _shared(run, second)
    cached = load_cached(target, cache, without=shared)
    executables = compile_missing(target, networks, cache, cached, shared)
    parameters = run.parameters.beside(loaded, [*second.config.networks])
    return CompiledSampler(target, executables, parameters, cache)


def resized_beside(run: CompiledSampler, first: CompiledSampler, second: Beside) -> CompiledSampler:
    """Return a second model for the size of `first`, whose programs it shares."""
    return run.resized(first.shapes.height, first.shapes.width, _shared(first, second))


def _shared(first: CompiledSampler, second: Beside) -> dict[str, jax.stages.Compiled]:
    """Return the first model's programs that run the same networks of both models."""
    families = first.target.config.family, second.config.family

    def is_shared(program: str) -> bool:
        of_first, of_second = (PROGRAMS[program].networks(family) for family in families)
        return of_first == of_second and second.own not in of_second

    return {name: each for name, each in first.executables.items() if is_shared(name)}
