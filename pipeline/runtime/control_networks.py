"""Networks that guide the denoiser, and which of them are on the devices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

import jax
from flax import nnx

from pipeline.checkpoints.weights import DevicePut, PendingWeights
from pipeline.errors import CheckpointError, ControlError, DeviceError, InputError
from pipeline.runtime.memory import gigabytes
from pipeline.runtime.room import Room

if TYPE_CHECKING:
    from jax import Array


@dataclass(eq=False)
class ControlNetwork:
    """A network that guides the denoiser, equal only to itself.

    Attributes:
        name: its name in requests.
        config: its configuration; networks of one configuration share their programs.
        files: its parameters in its files.
        digest: the start of a digest of its file.
        leaves: its parameters on the devices, as the programs take them; None elsewhere.
    """

    name: str
    config: Any
    files: PendingWeights[Any]
    digest: str
    leaves: list[Array] | None = None

    @property
    def bytes(self) -> int:
        """The bytes of its parameters on a device."""
        leaves = jax.tree.leaves(nnx.state(self.files.module))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


class Controls:
    """The loaded networks, of which as many are on the devices as there is memory for.

    The least recently used one makes room for another. `acquire` must be called by the thread that
    draws; any thread may call the rest.

    Args:
        place: copies a parameter to the devices.
        room: the memory of a device.
    """

    def __init__(self, place: DevicePut, room: Room) -> None:
        self._place = place
        self._room = room
        self._lock = Lock()
        # This mapping is replaced, never mutated: one thread may draw while another loads.
        self._loaded: Mapping[str, ControlNetwork] = {}
        self._reading: dict[ControlNetwork, Future[list[Array]]] = {}
        self._resident: dict[ControlNetwork, None] = {}  # the latest one used is last
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="controls")

    @property
    def loaded(self) -> Mapping[str, ControlNetwork]:
        """The networks by name."""
        return self._loaded

    def add(self, network: ControlNetwork) -> None:
        """Add a network.

        Raises:
            InputError: if one of this name is loaded already.
        """
        with self._lock:
            self.check_new(network.name)
            self._loaded = {**self._loaded, network.name: network}

    def check_new(self, name: str) -> None:
        """Raise InputError if a network of this name is loaded."""
        if name in self._loaded:
            raise InputError(f"a control named {name!r} is loaded; pass another name")

    def remove(self, name: str) -> None:
        """Forget a network; pictures that follow it are drawn to their end.

        Raises:
            InputError: if none of this name is loaded; the message lists those that are.
        """
        with self._lock:
            self.of_name(name)
            self._loaded = {key: value for key, value in self._loaded.items() if key != name}

    def of_name(self, name: str) -> ControlNetwork:
        """Return a network.

        Raises:
            InputError: if it is not loaded; the message lists those that are.
        """
        if name not in self._loaded:
            there_are = ", ".join(map(repr, sorted(self._loaded))) or "none (CONTROL_DIR)"
            raise InputError(f"no control named {name!r} is loaded; loaded are: {there_are}")
        return self._loaded[name]

    def acquire(
        self, networks: Collection[ControlNetwork], in_use: Iterable[ControlNetwork], wait: bool
    ) -> bool:
        """Begin to copy networks to the devices; return whether they are all there.

        Args:
            networks: the networks that a picture follows.
            in_use: those that pictures in slots follow, which stay.
            wait: whether to wait until they are there, because there is nothing else to do.

        Raises:
            ControlError: if a file cannot be read; the message names it.
            DeviceError: if the memory cannot hold them even without all others.
        """
        self._take_in(networks, wait)  # those of cancelled pictures can make room then
        missing = [network for network in networks if network not in self._resident]
        if not {*missing} <= self._reading.keys():
            if not self._make_room(missing, {*in_use, *networks}):
                if wait:
                    raise DeviceError(self._too_large(networks))
                return False
            for network in missing:
                if network not in self._reading:
                    self._reading[network] = self._thread.submit(self._read, network)
            self._take_in(networks, wait)
        is_there = all(network in self._resident for network in networks)
        for network in networks if is_there else ():
            self._resident[network] = self._resident.pop(network)  # the latest one used
        return is_there

    def _take_in(self, networks: Collection[ControlNetwork], wait: bool) -> None:
        """Note which networks were copied; a failure counts for those in `networks` alone."""
        for network in [*self._reading]:
            if wait or self._reading[network].done():
                reading = self._reading.pop(network)
                if network in networks or reading.exception() is None:
                    network.leaves = reading.result()
                    self._resident[network] = None

    def _read(self, network: ControlNetwork) -> list[Array]:
        try:
            return jax.tree.leaves(nnx.state(network.files.load(self._place)))
        except CheckpointError as error:
            raise ControlError(network.name, error) from error

    def _make_room(
        self, missing: Collection[ControlNetwork], kept: Collection[ControlNetwork]
    ) -> bool:
        """Remove networks from the devices until others fit; return whether they do."""
        if self._room.memory is None:
            return True
        limit = self._room.memory - self._room.needs().total

        def needed() -> int:
            there = {*self._resident, *self._reading, *missing}
            return self._room.copies * sum(network.bytes for network in there)

        idle = [network for network in self._resident if network not in kept]
        while needed() > limit and idle:
            oldest = idle.pop(0)
            del self._resident[oldest]
            oldest.leaves = None
        return needed() <= limit

    def _too_large(self, networks: Collection[ControlNetwork]) -> str:
        size = gigabytes(self._room.copies * sum(network.bytes for network in networks))
        names = ", ".join(repr(network.name) for network in networks)
        return f"too little memory for {names}, which need {size}; name fewer controls"
