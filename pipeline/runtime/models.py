"""Models whose parameters take each other's place, and the store of them in the host's memory."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

import jax
import numpy as np

from pipeline.checkpoints.weights import PendingWeights
from pipeline.kernels.int8 import quantize_kernel
from pipeline.runtime.parameters import Parameters, Slot, read_slots

_SAMPLE = 2**10  # bytes that tell most arrays apart

# A parameter as the devices have it: an array, or whole numbers and their scale.
Leaves = Sequence[np.ndarray]
Held = Mapping[Slot, Leaves]


@dataclass(frozen=True, eq=False)
class Model:
    """A checkpoint whose parameters can take the place of another's; equal only to itself.

    Attributes:
        name: its name in requests; "" for the one that the pipeline was loaded with.
        files: the parameters that are its own, in its files, by the networks' names.
    """

    name: str
    files: Mapping[str, PendingWeights[Any]]

    def read(self, slots: Sequence[Slot]) -> Iterator[tuple[Slot, Leaves]]:
        """Read parameters from the files, one after the other.

        Raises:
            CheckpointError: if a file cannot be read or was replaced; the message names it.
        """
        for slot, array in read_slots(self.files, slots):
            yield slot, leaves_of(slot, array)


def leaves_of(slot: Slot, array: np.ndarray) -> Leaves:
    """Return a parameter as the devices have it."""
    return jax.tree.leaves(quantize_kernel(array)) if slot.is_quantized else [array]


class ModelStore:
    """Parameters of models in the host's memory, the least recently used first out.

    Arrays that are equal in several models exist once. Any thread may call it.

    Args:
        base: the model that the pipeline was loaded with.
        parameters: the places of its parameters.
        limit: the most bytes of all models; one that does not fit is read from its files each time.

    Attributes:
        base: the model that the pipeline was loaded with.
        limit: the most bytes of all models.
    """

    def __init__(self, base: Model, parameters: Parameters, limit: int) -> None:
        self.base = base
        self.limit = limit
        self._parameters = parameters
        self._lock = Lock()
        self._held: OrderedDict[Model, Held] = OrderedDict()  # the latest one used is last
        self._reading: dict[Model, Future[Held]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="models")

    @cached_property
    def slots(self) -> list[Slot]:
        """The places of the parameters that a model has of its own, network by network."""
        return [slot for network in self.base.files for slot in self._parameters.slots(network)]

    def held(self, model: Model | None) -> Held:
        """Return the parameters of a model that are held; empty for a model that is not."""
        return {} if model is None else self._held.get(model, {})

    def read_ahead(self, model: Model) -> Future[Held] | None:
        """Begin to read a model; return None if it is held already.

        The result is empty if the model does not fit.
        """
        with self._lock:
            if model in self._held:
                return None
            if model not in self._reading:
                self._reading[model] = self._thread.submit(self._read, model)
            return self._reading[model]

    def find(self, model: Model) -> Held:
        """Return the parameters of a model once they are held; empty if they do not fit.

        Raises:
            CheckpointError: if a file cannot be read or was replaced; the message names it.
        """
        if reading := self.read_ahead(model):
            return reading.result()
        with self._lock:
            if model in self._held:
                self._held.move_to_end(model)
            return self.held(model)

    def forget(self, model: Model) -> None:
        """Forget a model; what the devices have of it stays."""
        with self._lock:
            self._held.pop(model, None)
            self._reading.pop(model, None)

    @cached_property
    def _needed(self) -> int:
        """The bytes of a model."""
        return sum(slot.bytes for slot in self.slots)

    def _read(self, model: Model) -> Held:
        try:
            if self._needed > self.limit:
                return {}
            held_models = self._make_room()
            model_leaves = {
                slot: _shared(leaves, [held_leaves[slot] for held_leaves in held_models])
                for slot, leaves in model.read(self.slots)
            }
            with self._lock:
                if model in self._reading:  # it was not forgotten meanwhile
                    self._held[model] = model_leaves
            return model_leaves
        finally:
            with self._lock:
                self._reading.pop(model, None)

    def _make_room(self) -> list[Held]:
        """Drop models until another one fits; return those that stay."""
        with self._lock:
            while self._held and (len(self._held) + 1) * self._needed > self.limit:
                self._held.popitem(last=False)
            return [*self._held.values()]


def _shared(leaves: Leaves, candidates: Sequence[Leaves]) -> Leaves:
    """Return the candidate that is equal to `leaves`, or `leaves` themselves without one."""
    equal = (candidate for candidate in candidates if all(map(_is_equal, leaves, candidate)))
    return next(equal, leaves)


def _is_equal(array: np.ndarray, other_array: np.ndarray) -> bool:
    """Return whether the bits are equal; the first ones tell most arrays apart."""
    bits, other_bits = (
        np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (array, other_array)
    )
    return all(np.array_equal(bits[part], other_bits[part]) for part in (np.s_[:_SAMPLE], np.s_[:]))
