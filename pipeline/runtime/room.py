"""The room that a pipeline needs in a device's memory, and the refusal where there is too little.

Parameters and what the slots hold are known from their shapes, before anything is compiled. The
compiler tells what a program takes, now or at an earlier start with the same cache.
Programs run one at a time, so that only the largest temporaries count.

All bytes are those of one device. The devices of a CPU share one memory: there the bytes are those
of all devices, which have one copy of the code.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from flax import nnx

from pipeline.adapters.adapter import Adapter
from pipeline.errors import DeviceError
from pipeline.platforms import platform_of
from pipeline.runtime.executables import ExecutableCache, ProgramBytes, bytes_key, get_or_create
from pipeline.runtime.memory import device_memory, gigabytes
from pipeline.runtime.programs import PROGRAMS, Programs, Target, cache_key, weights
from pipeline.text.controls import MAX_CONTROLS

Size = tuple[int, int]  # height and width in pixels


@dataclass(frozen=True)
class Model:
    """A model in memory.

    Attributes:
        name: its name in messages; "" for the first one.
        target: what its programs are compiled for; in other sizes likewise.
        networks: its networks by name; shapes and dtypes suffice in place of their parameters.
        loaded: the names of those that no model before it has loaded.
        programs: the names of the programs that it shares with no model before it.
    """

    name: str
    target: Target
    networks: Mapping[str, nnx.Module]
    loaded: Collection[str]
    programs: Collection[str]

    @cached_property
    def parameters(self) -> dict[str, int]:
        """The bytes of each network's parameters on a device, by the network's name."""
        all_leaves = weights({name: self.networks[name] for name in self.loaded})
        return {
            name: sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
            for name, leaves in all_leaves.items()
        }

    def slots(self, size: Size, cache: ExecutableCache | None = None) -> int:
        """Return the bytes that the slots hold on a device in a size of pictures."""
        target = self.target.resized(*size)
        specs = [target.state_spec, target.kept_spec, target.deep_spec]
        if target.controls:
            specs += [target.residuals_spec, (target.hints_spec,) * MAX_CONTROLS]
        slot_bytes = _bytes(specs)
        key = cache_key("condition", target)
        return slot_bytes + get_or_create(cache, "prompts", key, lambda: self._prompts)

    @cached_property
    def _prompts(self) -> int:
        """The bytes that the slots hold of prompts, which are those of every size."""
        return _bytes(Programs(self.target, self.networks).prompts_spec)


@dataclass(frozen=True)
class Needs:
    """The bytes that a pipeline needs.

    Attributes:
        sizes: the sizes of pictures.
        parameters: those of all networks.
        slots: what the slots of all sizes hold.
        loras: what the LoRAs take.
        programs: what the programs take, as far as it is known, by their names in messages.
    """

    sizes: Sequence[Size]
    parameters: int
    slots: int
    loras: int
    programs: Mapping[str, ProgramBytes]

    @property
    def code(self) -> int:
        """Bytes of all programs' code."""
        return sum(program.code for program in self.programs.values())

    @property
    def largest(self) -> str | None:
        """The program with the largest temporaries; None if none is known."""
        programs = self.programs
        return max(programs, key=lambda name: programs[name].temporaries, default=None)

    @property
    def temporaries(self) -> int:
        """Bytes of the largest temporaries."""
        return 0 if self.largest is None else self.programs[self.largest].temporaries

    @property
    def total(self) -> int:
        """Bytes in total."""
        return self.parameters + self.slots + self.loras + self.code + self.temporaries


class Room:
    """The memory of a device, and what a pipeline needs of it.

    Args:
        models: the models; the second one has slots and programs of its own beside the first.
        cache: the cache that keeps what programs take; None keeps nothing.

    Attributes:
        models: the models.
        cache: the cache.
        memory: the bytes that JAX could use when this was made; None if not known.
        sizes: the sizes of pictures, which are counted from the start.
        loras: returns the bytes that the loaded LoRAs take together with one more, if given.
    """

    def __init__(self, models: Sequence[Model], cache: ExecutableCache | None = None) -> None:
        target = models[0].target
        device = target.mesh.devices.flat[0]
        self.models = models
        self.cache = cache
        self.memory = device_memory(device)
        self.sizes: tuple[Size, ...] = ((target.shapes.height, target.shapes.width),)
        self.loras: Callable[[Adapter | None], int] = lambda _: 0
        self.copies = 1 if platform_of(device).is_accelerator else target.mesh.size
        # This mapping is replaced, never mutated: one thread may look while another compiles.
        self._measured: Mapping[str, ProgramBytes] = {}

    def note(self, target: Target, programs: Mapping[str, ProgramBytes]) -> None:
        """Note what programs of a target take, by name."""
        [model] = (model for model in self.models if model.target.config is target.config)
        size = target.shapes.height, target.shapes.width
        measurements = {
            _named(model, name, size): program_bytes for name, program_bytes in programs.items()
        }
        self._measured = {**self._measured, **measurements}

    def admit(self, target: Target, programs: Mapping[str, ProgramBytes]) -> None:
        """Note what programs of a target take, and refuse its size if that is too much.

        Raises:
            DeviceError: as from `check`.
        """
        self.note(target, programs)
        self.check([(target.shapes.height, target.shapes.width)])

    def unknown(self, model: Model, size: Size) -> list[str]:
        """Return the names of a model's programs of a size of which nothing is known yet."""
        return [name for name in model.programs if self._program(model, name, size) is None]

    def needs(self, sizes: Iterable[Size] = (), more: Adapter | None = None) -> Needs:
        """Return what is known to be needed, with further sizes and one more LoRA."""
        all_sizes = [*dict.fromkeys([*self.sizes, *sizes])]
        measurements = {
            _named(model, name, size): self._program(model, name, size)
            for model in self.models
            for size in all_sizes
            for name in model.programs
        }
        programs = {
            name: measurement._replace(temporaries=self.copies * measurement.temporaries)
            for name, measurement in measurements.items()
            if measurement is not None
        }
        parameters = sum(sum(model.parameters.values()) for model in self.models)
        slots = sum(model.slots(size, self.cache) for model in self.models for size in all_sizes)
        return Needs(
            all_sizes, self.copies * parameters, self.copies * slots, self.loras(more), programs
        )

    def check(self, sizes: Iterable[Size] = (), more: Adapter | None = None) -> None:
        """Refuse what the memory cannot hold, with further sizes and one more LoRA.

        Raises:
            DeviceError: if more is needed than there is. The message says what to leave out.
        """
        needs = self.needs(sizes, more)
        if self.memory is None or needs.total <= self.memory:
            return
        target = self.models[0].target
        kind = target.mesh.devices.flat[0].device_kind
        where = "this machine" if kind == "cpu" else f"one {kind}"
        copies = f" in {self.copies} copies" if self.copies > 1 else ""
        parts = [
            f"{gigabytes(needs.parameters)} of parameters{copies}",
            f"{gigabytes(needs.slots)} in the slots",
        ]
        if needs.loras:
            parts.append(f"{gigabytes(needs.loras)} for LoRAs")
        if needs.largest is not None:
            parts.append(f"{gigabytes(needs.code)} of code")
            parts.append(f"{gigabytes(needs.temporaries)} while {needs.largest} runs")
        raise DeviceError(
            f"too little memory: {sizes_text(needs.sizes)}, {target.shapes.images} pictures per"
            f" request, needs at least {gigabytes(needs.total)} of the {gigabytes(self.memory)} of"
            f" {where}: {', '.join(parts)}; {self._advice(needs)}"
        )

    def _advice(self, needs: Needs) -> str:
        """Return what to leave out of a pipeline that needs too much."""
        assert self.memory is not None
        images, can_hold = self.models[0].target.shapes.images, needs.parameters < self.memory
        ways = {
            "load fewer LoRAs": can_hold and needs.loras > 0,
            "leave out the refiner (REFINER_ID)": len(self.models) > 1,
            "draw on fewer devices": self.copies > 1,
            f"leave out the size {sizes_text(needs.sizes[-1:])}": can_hold and len(needs.sizes) > 1,
            "draw fewer pictures per request": can_hold and images > 1,
        }
        remedies = [way for way, helps in ways.items() if helps]
        return " or ".join(remedies or ["use a smaller model, or a device with more memory"])

    def _program(self, model: Model, name: str, size: Size) -> ProgramBytes | None:
        measurement = self._measured.get(_named(model, name, size))
        if measurement is None and self.cache is not None:
            return self.cache.get(*bytes_key(name, model.target.resized(*size)))
        return measurement


def sizes_text(sizes: Iterable[Size]) -> str:
    """Return sizes as WIDTHxHEIGHT, separated by commas."""
    return ", ".join(f"{width}x{height}" for height, width in sizes)


def _named(model: Model, program: str, size: Size) -> str:
    """Return a program's name in messages; one without a size serves all."""
    of_size = f" of {sizes_text([size])}" if PROGRAMS[program].sized else ""
    return f"{model.name} {program}{of_size}".lstrip()


def _bytes(specs: Any) -> int:
    """Return the bytes of arrays on a device, from their shapes and shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(specs)
    )
