"""Ahead-of-time compilation of the sampler's programs, and their loading from the cache.

The cache keeps beside each executable how much of the devices' memory it takes.
"""

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import jax
from flax import nnx

from pipeline.runtime.executable_cache import ExecutableCache, where
from pipeline.runtime.program import Target
from pipeline.runtime.programs import Programs, cache_key, program_names

log = logging.getLogger(__name__)


class ProgramBytes(NamedTuple):
    """The memory that a program takes of each device, by the compiler's own analysis.

    Attributes:
        code: bytes of its code.
        temporaries: bytes of the arrays that only a run of it needs, and of its results.
    """

    code: int
    temporaries: int


class CachedExecutable(NamedTuple):
    """An executable from the cache, and the seconds that it took to load."""

    executable: jax.stages.Compiled
    seconds: float


@dataclass(frozen=True)
class Executables:
    """All executables of a target, which run with any parameters of its networks.

    Attributes:
        by_name: the executables by program name.
        load_seconds: how long each took to load from the cache, by program name.
        compile_seconds: how long each took to compile, by program name.
    """

    by_name: Mapping[str, jax.stages.Compiled]
    load_seconds: Mapping[str, float] = field(default_factory=dict)
    compile_seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> dict[str, float]:
        """How long each took to load or compile, by program name; shared ones are left out."""
        return {**self.load_seconds, **self.compile_seconds}

    @property
    def bytes(self) -> dict[str, ProgramBytes]:
        """How much memory each takes, by program name; shared ones are left out."""
        return {name: measured(self.by_name[name]) for name in self.seconds}


def measured(executable: jax.stages.Compiled) -> ProgramBytes:
    """Return what an executable takes of the memory; zeros where the backend does not say."""
    analysis = executable.memory_analysis()
    if analysis is None:
        return ProgramBytes(0, 0)
    results = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return ProgramBytes(
        analysis.generated_code_size_in_bytes, analysis.temp_size_in_bytes + results
    )


def known_bytes(name: str, target: Target, cache: ExecutableCache | None) -> ProgramBytes | None:
    """Return what a program takes, by the cache; None if it was never compiled into it."""
    return None if cache is None else cache.get(*_bytes_key(name, target))


def _bytes_key(name: str, target: Target) -> tuple[str, object]:
    return f"{name}_bytes", (cache_key(name, target), *where([*target.mesh.devices.flat]))


def load_cached(
    target: Target, cache: ExecutableCache | None, without: Collection[str] = ()
) -> dict[str, CachedExecutable]:
    """Load the executables of a target that are in the cache, by program name.

    No network is needed, so the rest of a checkpoint can be read meanwhile. Programs named in
    `without` are left out.
    """
    if cache is None:
        return {}

    def load(name: str) -> CachedExecutable | None:
        start = time.perf_counter()
        executable = cache.load(name, cache_key(name, target), list(target.mesh.devices.flat))
        seconds = time.perf_counter() - start
        return None if executable is None else CachedExecutable(executable, seconds)

    names = [name for name in program_names(target) if name not in without]
    with ThreadPoolExecutor(len(names), thread_name_prefix="load") as threads:
        results = zip(names, threads.map(load, names), strict=True)
        return {name: executable for name, executable in results if executable is not None}


def compile_missing(
    target: Target,
    networks: Mapping[str, nnx.Module],
    cache: ExecutableCache | None = None,
    cached: Mapping[str, CachedExecutable] = MappingProxyType({}),
    shared: Mapping[str, jax.stages.Compiled] = MappingProxyType({}),
) -> Executables:
    """Compile the programs of a target that are neither cached nor shared, in parallel.

    Args:
        target: what to compile for.
        networks: the networks by name; shapes and dtypes suffice in place of their parameters.
        cache: stores the compiled executables; None stores nothing.
        cached: the result of `load_cached` for the same target.
        shared: executables for another size that serve this one too, by program name.
    """
    executables = {**shared, **{name: program.executable for name, program in cached.items()}}
    for name, program in cached.items():
        log.info("loaded %s in %.1f s", name, program.seconds)
    names = [name for name in program_names(target) if name not in executables]
    compiled = compile_all(names, target, networks, cache)
    return Executables(
        by_name=executables | {name: executable for name, (executable, _) in compiled.items()},
        load_seconds={name: program.seconds for name, program in cached.items()},
        compile_seconds={name: seconds for name, (_, seconds) in compiled.items()},
    )


def compile_all(
    names: Sequence[str],
    target: Target,
    networks: Mapping[str, nnx.Module],
    cache: ExecutableCache | None,
) -> dict[str, tuple[jax.stages.Compiled, float]]:
    """Compile programs, started in this order; return the executables and their seconds.

    The arguments are those of `compile_missing`.
    """
    if not names:
        return {}
    builder = Programs(target, networks)
    # They are built before the threads start, so that shared parts are traced once.
    programs = {name: builder[name] for name in names}

    def run(name: str) -> tuple[jax.stages.Compiled, float]:
        start = time.perf_counter()
        executable = programs[name].compile()
        seconds = time.perf_counter() - start
        log.info("compiled %s in %.1f s", name, seconds)
        if cache is not None:
            devices = list(target.mesh.devices.flat)
            cache.store(name, cache_key(name, target), devices, executable)
            cache.put(*_bytes_key(name, target), measured(executable))
        return executable, seconds

    with ThreadPoolExecutor(len(names), thread_name_prefix="compile") as threads:
        return dict(zip(names, threads.map(run, names), strict=True))
