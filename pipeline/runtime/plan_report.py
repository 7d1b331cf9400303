"""The memory that a model needs, as a text: `python -m pipeline --plan`.

Parameters and what the slots hold are those of a device of any kind. The compiler tells what
programs take, for the devices of this machine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.errors import DeviceError
from pipeline.families.family import Config
from pipeline.platforms import network_dtype, worth_a_copy, worth_bfloat16
from pipeline.runtime.compiled import choose_layout, make_mesh
from pipeline.runtime.executable_cache import ExecutableCache
from pipeline.runtime.executables import compile_all, measured
from pipeline.runtime.loading import trace_networks
from pipeline.runtime.memory import gigabytes
from pipeline.runtime.program import Shapes, Target, check_rows, weights
from pipeline.runtime.room import Room, Size, sizes_text
from pipeline.runtime.second_model import SecondModel, models_of

DTYPES = np.dtype(jnp.bfloat16), np.dtype(np.float32)


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
        """Return the plan for a device of any kind, and for those of this machine.

        Args:
            devices: the devices of this machine.
            dtype: the networks' dtype on them; their default where None.
            cache: the cache of programs, into which those that are missing are compiled unless
                parameters and slots alone need too much. With None, nothing is compiled.

        Raises:
            InputError: if the devices cannot share pictures of these sizes.
        """
        single_rooms = [self._room(dtype_choice, devices[:1], 1) for dtype_choice in DTYPES]
        networks = self._traced(DTYPES[-1])
        parameters = sum(leaf.size for leaf in jax.tree.leaves(weights(networks)))
        chosen_dtype = network_dtype(dtype, devices)
        if dtype is None and worth_bfloat16(devices[0], parameters):
            chosen_dtype, _ = DTYPES
        room = self._room(
            chosen_dtype, worth_a_copy(devices, parameters), self.images, self.per_picture, cache
        )
        refusal = None
        try:
            room.check(self.sizes)
            if cache is not None:
                self._compile(room)
            room.check(self.sizes)
        except DeviceError as error:
            refusal = str(error)
        text = "\n".join([*self._anywhere(single_rooms), "", *self._here(room)])
        return Report(text, refusal)

    def _traced(self, dtype: np.dtype[Any], cache: ExecutableCache | None = None) -> dict[str, Any]:
        return trace_networks(self.config, dtype, cache, self.quantization)

    def _room(
        self,
        dtype: np.dtype[Any],
        devices: Sequence[jax.Device],
        images: int,
        per_picture: int = 1,
        cache: ExecutableCache | None = None,
    ) -> Room:
        used = choose_layout(len(devices), images, per_picture).devices
        mesh = make_mesh(devices[:used], images, per_picture)
        for height, _ in self.sizes:
            check_rows(self.config, mesh, height)
        shapes = Shapes(images, *self.sizes[0], self.chunks)
        target = Target(self.config, dtype, mesh, shapes, self.step_cache, self.quantization)
        return Room(models_of(target, self._traced(dtype, cache), self.second, cache), cache)

    def _compile(self, room: Room) -> None:
        """Compile the programs of which nothing is known."""
        for size in self.sizes:
            for model in room.models:
                target, names = model.target.resized(*size), room.unknown(model, size)
                compiled_programs = compile_all(names, target, model.networks, room.cache)
                room.note(
                    target,
                    {name: measured(program) for name, (program, _) in compiled_programs.items()},
                )

    def _anywhere(self, rooms: Sequence[Room]) -> Iterator[str]:
        yield _row("One device of any kind", *(dtype.name for dtype in DTYPES))
        for models in zip(*(room.models for room in rooms), strict=True):
            for network in models[0].parameters:
                bytes_ = (gigabytes(model.parameters[network]) for model in models)
                yield _row(f"  {models[0].name} {network}".replace("   ", "  "), *bytes_)
        for size in self.sizes:
            slot_bytes = (sum(model.slots(size) for model in room.models) for room in rooms)
            yield _row(f"  a picture of {sizes_text([size])}", *map(gigabytes, slot_bytes))

    def _here(self, room: Room) -> Iterator[str]:
        needs, target = room.needs(self.sizes), room.models[0].target
        kind, devices = target.mesh.devices.flat[0].device_kind, target.mesh.size
        yield f"This machine, {kind}: {self.images} pictures on {devices} of them, {target.dtype}"
        yield f"  parameters {gigabytes(needs.parameters)}, slots {gigabytes(needs.slots)}"
        if needs.programs:
            yield _row("  program", "code", "temporaries")
        for name, program in needs.programs.items():
            yield _row(f"  {name}", *map(gigabytes, program))
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


def _row(title: str, *cells: str) -> str:
    return f"{title:34}" + "".join(f"{cell:>13}" for cell in cells)
