"""The memory that a model needs, as a text: `python -m pipeline --plan`.

Parameters and what the slots hold are known from their shapes. The compiler tells what programs
take, for the devices of this machine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from pipeline.errors import DeviceError
from pipeline.families.family import Config
from pipeline.platforms import network_dtype, worth_a_copy, worth_bfloat16
from pipeline.runtime.compiled import choose_layout, make_mesh
from pipeline.runtime.executables import ExecutableCache, compile_all, measured_bytes
from pipeline.runtime.loading import trace_networks
from pipeline.runtime.memory import gigabytes
from pipeline.runtime.programs import Shapes, Target, check_rows, weights
from pipeline.runtime.room import Room, Size
from pipeline.runtime.second_model import SecondModel, models_of


class Report(NamedTuple):
    """A plan as a text, and the reason why it does not fit this machine; None if it fits."""

    text: str
    refusal: str | None


@dataclass(frozen=True)
class Plan:
    """A pipeline that is planned, whose weights need not be there.

    Attributes:
        config: the checkpoint's configuration.
        sizes: the sizes of pictures.
        images: pictures per request.
        chunks: the most chunks of a prompt.
        second: the refiner; None without one.
        step_cache: whether the slots hold deep features.
        per_picture: devices that draw a picture together.
        quantization: one of `pipeline.models.quantized.QUANTIZATIONS`, or None.
    """

    config: Config
    sizes: Sequence[Size]
    images: int
    chunks: int = 1
    second: SecondModel | None = None
    step_cache: bool = False
    per_picture: int = 1
    quantization: str | None = None

    def report(
        self,
        devices: Sequence[jax.Device],
        dtype: str | None = None,
        cache: ExecutableCache | None = None,
    ) -> Report:
        """Return the plan for the devices of this machine.

        Args:
            devices: the devices of this machine.
            dtype: the networks' dtype on them; their default where None.
            cache: the cache of programs, into which those that are missing are compiled unless
                parameters and slots alone need too much. With None, nothing is compiled.

        Raises:
            InputError: if the devices cannot share pictures of these sizes.
        """
        chosen_dtype = network_dtype(dtype, devices)
        networks = trace_networks(self.config, chosen_dtype, cache, self.quantization)
        parameters = sum(leaf.size for leaf in jax.tree.leaves(weights(networks)))
        if dtype is None and worth_bfloat16(devices[0], parameters):
            chosen_dtype = network_dtype("bfloat16", devices)
        room = self._room(chosen_dtype, worth_a_copy(devices, parameters), cache)
        refusal = None
        try:
            room.check(self.sizes)
            if cache is not None:
                self._compile(room)
            room.check(self.sizes)
        except DeviceError as error:
            refusal = str(error)
        return Report("\n".join(self._lines(room)), refusal)

    def _room(
        self, dtype: np.dtype[Any], devices: Sequence[jax.Device], cache: ExecutableCache | None
    ) -> Room:
        used = choose_layout(len(devices), self.images, self.per_picture).devices
        mesh = make_mesh(devices[:used], self.images, self.per_picture)
        for height, _ in self.sizes:
            check_rows(self.config, mesh, height)
        shapes = Shapes(self.images, *self.sizes[0], self.chunks)
        target = Target(self.config, dtype, mesh, shapes, self.step_cache, self.quantization)
        networks = trace_networks(self.config, dtype, cache, self.quantization)
        return Room(models_of(target, networks, self.second, cache), cache)

    def _compile(self, room: Room) -> None:
        """Compile the programs of which nothing is known."""
        for size in self.sizes:
            for model in room.models:
                target, names = model.target.resized(*size), room.unknown(model, size)
                executables = compile_all(names, target, model.networks, room.cache)
                room.note(target, measured_bytes(executables))

    def _lines(self, room: Room) -> Iterator[str]:
        needs, target = room.needs(self.sizes), room.models[0].target
        kind, devices = target.mesh.devices.flat[0].device_kind, target.mesh.size
        yield f"{kind}: {self.images} pictures on {devices} of them, {target.dtype}"
        for model in room.models:
            for network, parameter_bytes in model.parameters.items():
                yield _row(f"  {model.name} {network}".replace("   ", "  "), parameter_bytes)
        yield f"  parameters {gigabytes(needs.parameters)}, slots {gigabytes(needs.slots)}"
        if needs.programs:
            yield f"{'  program':34}{'code':>13}{'temporaries':>13}"
        for name, program in needs.programs.items():
            yield _row(f"  {name}", *program)
        if any(room.unknown(model, size) for model in room.models for size in self.sizes):
            yield "  programs are not counted; --cache-dir compiles them into a folder"
        else:
            code, largest = gigabytes(needs.code), gigabytes(needs.temporaries)
            yield f"  all code {code}, largest temporaries {largest}"
        verdict = "is not known"
        if room.memory is not None:
            free_bytes = room.memory - needs.total
            verdict = f"{gigabytes(room.memory)}: {'fits' if free_bytes >= 0 else 'does not fit'}"
        unit = "of this machine" if kind == "cpu" else "of one device"
        yield f"  sum {gigabytes(needs.total)}, memory {unit} {verdict}"


def _row(title: str, *sizes: int) -> str:
    return f"{title:34}" + "".join(f"{gigabytes(size):>13}" for size in sizes)
