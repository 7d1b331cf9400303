"""Models and adapters at run time: the networks' parameters are replaced by others, in place.

Another model's parameters take the place of all that differ.

An adapter's changes are added in float32 on the host, to a pristine copy of the parameters, and
rounded to the networks' dtype. The programs take parameters as arguments, so nothing compiles.
Only the parameters that the earlier or the new set of adapters changes are touched. Without
adapters they are the pristine ones again, to the bit. Parameters that are quantised on the devices
are quantised after the changes; their pristine copy is not quantised.

The pristine copy has only parameters that a loaded adapter changes, and is made when they are
first changed. It is in the host's memory, where adapters are merged.
"""

from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from threadpoolctl import ThreadpoolController

from pipeline.adapters.adapter import Adapter, Change, Inventory, LowRank
from pipeline.checkpoints.arrays import empty_arrays, groups
from pipeline.checkpoints.weights import checkpoint_layout, checkpoint_shape, from_checkpoint
from pipeline.errors import DeviceError, InputError
from pipeline.platforms import platform_of, usable_cores
from pipeline.runtime.memory import available_memory, gigabytes
from pipeline.runtime.models import Leaves, Model, ModelStore, leaves_of
from pipeline.runtime.parameters import Parameters, Slot, Tensor, read_slots

CHUNK_BYTES = 2**26  # replaced at once; so much more memory is needed meanwhile
BLOCK_NUMBERS = 2**18  # of a parameter, merged at once


@dataclass(frozen=True)
class Part:
    """The change of one adapter to one share of a parameter."""

    digest: str
    share: int
    strength: float
    change: Change = field(compare=False)


# The changes to parameters; a parameter without changes is not in it.
Parts = dict[Slot, tuple[Part, ...]]
_Selection = tuple[tuple[Adapter, tuple[float, float]], ...]


class Adapters:
    """The model in the parameters, the loaded adapters, and the set of them that is merged.

    `select` must not run while a program runs; any thread may call the rest.

    Args:
        parameters: the parameters to change.
        mesh: the devices on which they are.
        text_encoders: the names of the text encoders; the other networks are `denoisers`.
        denoisers: the names of the networks that predict noise.
        store: the models that can take each other's place; None allows a single one.
        first: the adapters of the model beside which these are, whose parameters they share.
    """

    def __init__(
        self,
        parameters: Parameters,
        mesh: Mesh,
        text_encoders: Iterable[str],
        denoisers: Iterable[str],
        store: ModelStore | None = None,
        first: "Adapters | None" = None,
    ):
        self._parameters = parameters
        self._store = store
        self._first = first
        self._model: Model | None = None if store is None else store.base
        self._encoders = frozenset(text_encoders)
        self._denoisers = tuple(denoisers)
        self._whole = NamedSharding(mesh, P())
        self._accelerated = platform_of(mesh.devices.flat[0]).is_accelerator
        self._lock = Lock()
        # This mapping is replaced, never mutated: one thread may draw while another loads.
        self._loaded: Mapping[str, Adapter] = {}
        self._selected: _Selection | None = ()
        self._merged: dict[Slot, tuple[Part, ...] | None] = {}
        self._pristine: dict[Slot, np.ndarray] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="merge-ahead")
        self._next: _Selection | None = None  # is merged ahead, or was
        self._ahead: dict[tuple[Slot, tuple[Part, ...]], Leaves] = {}
        # The threads here share the work; threads inside each product would only wait for these.
        self._libraries = ThreadpoolController()

    @cached_property
    def _tensors(self) -> dict[str, dict[str, Tensor]]:
        """The tensors that adapters can change, by network and name; a start needs none of them."""
        return self._parameters.tensors([*self._denoisers, *self._encoders])

    @property
    def inventory(self) -> Inventory:
        """The shapes of all tensors that adapters can change."""
        return {
            network: {name: tensor.slot.tensor_shape for name, tensor in tensors.items()}
            for network, tensors in self._tensors.items()
        }

    @property
    def loaded(self) -> Mapping[str, Adapter]:
        """The loaded adapters by name."""
        return self._loaded

    @property
    def hashes(self) -> str | None:
        """The names and hashes of the merged adapters, as AUTOMATIC1111 writes them; or None."""
        merged = (adapter for adapter, _ in self._selected or ())
        return ", ".join(f"{adapter.name}: {adapter.short_hash}" for adapter in merged) or None

    def bytes_of(self, more: Adapter | None = None, networks: Collection[str] = ()) -> int:
        """Return the bytes of the parameters that the loaded adapters, and `more`, change.

        If `networks` are given, only those in these are counted.
        """
        slots = self._touched([*self._loaded.values(), *([] if more is None else [more])])
        return sum(slot.bytes for slot in slots if not networks or slot.network in networks)

    def file_bytes(self, more: Adapter | None = None) -> int:
        """Return the bytes of the loaded adapters' changes, and of those of `more`."""
        adapters = [*self._loaded.values(), *([] if more is None else [more])]
        return sum(map(_size, adapters))

    def device_bytes(self, more: Adapter | None = None, kept: Collection[str] = ()) -> int:
        """Return the bytes of a device's memory that adapters take, with `more` too.

        On a CPU they are those of all devices and of the host, which share one memory. Another
        model keeps the parameters of the networks `kept` as they are without adapters.
        """
        unchanged_bytes = self.bytes_of(more, kept) if kept else 0
        if self._accelerated:
            return unchanged_bytes
        # The pristine copy is that of the other model's first device.
        copies = self._whole.mesh.size - 1
        return self.bytes_of(more) + self.file_bytes(more) + copies * unchanged_bytes

    def check_host(self, more: Adapter) -> None:
        """Raise DeviceError if the host's memory cannot hold the pristine copy with `more`.

        The memory of a CPU's devices is that of the host; see `device_bytes`.
        """
        if not self._accelerated:
            return
        room = available_memory()
        missing_bytes = self.bytes_of(more) - sum(slot.bytes for slot in [*self._pristine])
        if room is not None and missing_bytes > room:
            raise DeviceError(
                "too little memory: the copy of the parameters that it changes needs "
                f"{gigabytes(missing_bytes)} more of this machine's memory, which has "
                f"{gigabytes(room)} left; load fewer LoRAs"
            )

    def add(self, adapter: Adapter) -> None:
        """Add an adapter, whose changes fit `inventory`.

        Raises:
            InputError: if one of this name is loaded already.
        """
        with self._lock:
            self.check_new(adapter.name)
            self._loaded = {**self._loaded, adapter.name: adapter}

    def check_new(self, name: str) -> None:
        """Raise InputError if an adapter of this name is loaded."""
        if name in self._loaded:
            raise InputError(
                f"a LoRA named {name!r} is loaded; unload it first, or pass another name"
            )

    def remove(self, name: str) -> None:
        """Remove an adapter; if it is merged, its changes go when another set is selected.

        Raises:
            InputError: if none of this name is loaded; the message lists those that are.
        """
        with self._lock:
            self._known(name)
            self._loaded = {key: adapter for key, adapter in self._loaded.items() if key != name}
            self._release()

    def check(self, names: Iterable[str]) -> None:
        """Raise InputError if an adapter is not loaded; the message lists those that are."""
        for name in names:
            self._known(name)

    def is_selected(
        self, weights: Mapping[str, tuple[float, float]], model: Model | None = None
    ) -> bool:
        """Return whether a model has this set of adapters, as `select` would merge it now."""
        adapters = self._loaded
        selection = tuple((adapters.get(name), weights[name]) for name in sorted(weights))
        return selection == self._selected and self._has(model)

    def select(
        self, weights: Mapping[str, tuple[float, float]], model: Model | None = None
    ) -> None:
        """Make the parameters those of a model, with a set of adapters merged into them.

        Do nothing if they are so already. After an exception the parameters may be incomplete: call
        `select` again before a program runs. That call repairs them.

        Args:
            weights: the weight in the denoisers and in the text encoders, by the adapter's name.
            model: the model; None for that of the store's base.

        Raises:
            CheckpointError: if a file of the model cannot be read; the message names it.
            InputError: if an adapter is not loaded; the message lists those that are.
        """
        selection = self._chosen(weights)
        if selection != self._next or not self._has(model):
            self._next = None  # what is merged ahead ends
        if not self._has(model):
            self._change(model)
        with self._lock:
            if selection == self._selected:
                return
            self._selected = None
            try:
                self._update(self._parts(selection))
            except BaseException:
                with suppress(Exception):
                    self._update({})
                    self._selected = ()
                raise
            self._selected, self._next = selection, None
            self._ahead.clear()
            self._release()

    def read_ahead(self, model: Model | None, weights: Mapping[str, tuple[float, float]]) -> None:
        """Begin to read a model into the host's memory, or to merge adapters, for a later `select`.

        Adapters are merged if the model is that of the parameters, and there is memory for it.
        """
        if self._store is not None and model is not None and not self._has(model):
            self._store.read_ahead(model)
        elif self._loaded.keys() >= weights.keys():
            selection = self._chosen(weights)
            if weights and selection not in (self._selected, self._next):
                self._next = selection
                self._thread.submit(self._merge_ahead, selection)

    def _merge_ahead(self, selection: _Selection) -> None:
        """Merge a set of adapters into arrays for `select`, until another set is asked for."""
        with self._lock:
            self._ahead.clear()
            all_parts = self._parts(selection)
            new_parts = {
                slot: parts for slot, parts in all_parts.items() if self._merged.get(slot) != parts
            }
            if 2 * sum(slot.bytes for slot in new_parts) > (available_memory() or 0):
                return
            with closing(self._merging(new_parts)) as merging:
                for chunk, arrays in merging:
                    if self._next != selection:
                        return
                    self._ahead |= zip(
                        ((slot, new_parts[slot]) for slot in chunk), arrays, strict=True
                    )

    # --- models

    def _has(self, model: Model | None) -> bool:
        return self._store is None or self._model is (model or self._store.base)

    def _change(self, model: Model | None) -> None:
        """Replace the parameters by those of a model without adapters, but for those it shares."""
        assert self._store is not None
        new_model = model or self._store.base
        copy = self._store.find(new_model)  # it fails before anything has changed
        before = self._store.held(self._model)
        with self._lock:
            slots = [
                slot
                for slot in self._store.slots
                if slot.network in self._replaced
                and (slot in self._merged or not copy or copy[slot] is not before.get(slot))
            ]
            self._model = self._selected = self._next = None
            self._ahead.clear()
            self._merged.clear()
            self._pristine.clear()
            leaves = ((slot, copy[slot]) for slot in slots) if copy else new_model.read(slots)
            for chunk in groups(slots, CHUNK_BYTES):
                self._place(new_model, [next(leaves) for _ in chunk])
            self._parameters.files = {**self._parameters.files, **new_model.files}
            self._model, self._selected = new_model, ()

    @property
    def _replaced(self) -> set[str]:
        """The networks that a change of the model replaces; another model keeps its denoiser."""
        shared_networks = () if self._first is None else self._denoisers
        return self._parameters.networks.keys() - {*shared_networks}

    def _place(self, model: Model, chunk: Iterable[tuple[Slot, Leaves]]) -> None:
        """Copy parameters to the devices, unless the model beside this one has them there."""
        first = self._first
        copies: dict[Slot, Leaves] = {}
        for slot, leaves in chunk:
            if first is not None and first._model is model and slot not in first._merged:
                self._parameters.replace(slot, first._parameters.of(slot))
            else:
                copies[slot] = leaves
        self._put(copies, [*copies.values()])

    # --- which parameters

    def _known(self, name: str) -> Adapter:
        if name not in self._loaded:
            there_are = ", ".join(map(repr, sorted(self._loaded))) or "none"
            raise InputError(f"no LoRA named {name!r} is loaded; loaded are: {there_are}")
        return self._loaded[name]

    def _chosen(self, weights: Mapping[str, tuple[float, float]]) -> _Selection:
        return tuple((self._known(name), weights[name]) for name in sorted(weights))

    def _touched(self, adapters: Iterable[Adapter]) -> set[Slot]:
        """Return the parameters that adapters change."""
        return {
            self._tensors[network][tensor].slot
            for adapter in adapters
            for network, changes in adapter.changes.items()
            for tensor in changes
        }

    def _parts(self, selection: _Selection) -> Parts:
        """Return the changes of weighted adapters, in the order in which they are added."""
        parts: dict[Slot, list[Part]] = {}
        for adapter, (of_denoisers, of_encoders) in selection:
            for network, changes in adapter.changes.items():
                strength = of_encoders if network in self._encoders else of_denoisers
                for name, change in changes.items() if strength else ():
                    slot, share = self._tensors[network][name]
                    part = Part(adapter.digest, share, strength, change)
                    parts.setdefault(slot, []).append(part)
        return {slot: tuple(slot_parts) for slot, slot_parts in parts.items()}

    # --- replacing

    def _update(self, all_parts: Parts) -> None:
        """Replace the parameters whose changes differ from those in `all_parts`."""
        old_parts = self._merged
        changed_slots = [
            slot
            for slot in {**old_parts, **all_parts}
            if old_parts.get(slot, ()) != all_parts.get(slot, ())
        ]
        new_parts = {slot: all_parts.get(slot, ()) for slot in changed_slots}
        with closing(self._merging(new_parts)) as merging:
            for chunk, arrays in merging:
                host_leaves = [*arrays]
                # None means unknown: an interruption may come between any two statements.
                self._merged.update(dict.fromkeys(chunk))
                self._put(chunk, host_leaves)
                for slot in chunk:
                    if parts := all_parts.get(slot):
                        self._merged[slot] = parts
                    else:
                        del self._merged[slot]

    def _put(self, slots: Iterable[Slot], host_leaves: list[Leaves]) -> None:
        """Copy parameters to the devices, in place of those that are there."""
        device_leaves = jax.block_until_ready(jax.device_put(host_leaves, self._whole))
        for slot, leaves in zip(slots, device_leaves, strict=True):
            self._parameters.replace(slot, leaves)

    def _merging(self, parts: Parts) -> Generator[tuple[list[Slot], Iterator[Leaves]], None, None]:
        """Yield groups of parameters, and their arrays with changes as the devices have them.

        The merging of the next group begins before a group is yielded.
        """
        with (
            self._libraries.limit(limits=1, user_api="blas"),
            ThreadPoolExecutor(usable_cores(), thread_name_prefix="merge") as threads,
        ):
            queue: deque[tuple[list[Slot], Iterator[Leaves]]] = deque()
            for chunk in groups(parts, CHUNK_BYTES):
                queue.append((chunk, self._make({slot: parts[slot] for slot in chunk}, threads)))
                if len(queue) > 1:
                    yield queue.popleft()
            yield from queue

    def _make(self, chunk: Parts, threads: ThreadPoolExecutor) -> Iterator[Leaves]:
        """Return parameters with their changes: the pristine ones, or newly merged ones."""
        self._keep_pristine([slot for slot in chunk if slot not in self._pristine])
        pristine = {slot: self._pristine[slot] for slot in chunk}
        changed_slots = [
            slot for slot, parts in chunk.items() if parts and (slot, parts) not in self._ahead
        ]
        merged = dict(zip(changed_slots, empty_arrays(changed_slots), strict=True))

        def make(slot: Slot) -> Leaves:
            if leaves := self._ahead.get((slot, chunk[slot])):
                return leaves
            if slot in merged:
                merge(slot, pristine[slot], chunk[slot], merged[slot])
            return leaves_of(slot, merged.get(slot, pristine[slot]))

        return threads.map(make, chunk)

    def _keep_pristine(self, slots: Sequence[Slot]) -> None:
        """Keep parameters on the host; on a CPU they are those of the first device.

        Quantised parameters are read from the checkpoint again.
        """
        self._pristine |= read_slots(
            self._parameters.files, [slot for slot in slots if slot.is_quantized]
        )
        for slot in slots:
            if not slot.is_quantized:
                [leaf] = self._parameters.of(slot)
                self._pristine[slot] = np.asarray(leaf.addressable_data(0))

    def _release(self) -> None:
        """Forget the pristine copies of parameters that no loaded adapter changes any more."""
        needed_slots = self._touched(self._loaded.values()) | self._merged.keys()
        for slot in self._pristine.keys() - needed_slots:
            del self._pristine[slot]


def _size(adapter: Adapter) -> int:
    try:
        return adapter.file.stat().st_size
    except OSError:  # the file is gone; its content is in memory
        return 0


def merge(slot: Slot, pristine: np.ndarray, parts: Collection[Part], result: np.ndarray) -> None:
    """Write a parameter with changes added, computed in float32, to `result`."""
    width = slot.shape[-1] // len(slot.names)
    for share in range(len(slot.names)):
        columns = np.s_[..., share * width : (share + 1) * width]
        before, after = pristine[columns], result[columns]
        addends = [part for part in parts if part.share == share]
        if slot.path[-1] == "kernel" and all(isinstance(part.change, LowRank) for part in addends):
            _add_products(slot.path, before, addends, after)
            continue
        total = weight = before.astype(np.float32)
        tensor = checkpoint_layout(slot.path, weight)
        for part in addends:
            total = total + from_checkpoint(slot.path, part.change.delta(tensor, part.strength))
        after[...] = total


def _add_products(
    path: tuple[Any, ...], before: np.ndarray, parts: Iterable[Part], after: np.ndarray
) -> None:
    """Write a kernel with products of two matrices added to `after`.

    This goes through blocks of rows that stay in the processor's caches.
    """
    shape, width = checkpoint_shape(path, before.shape), before.shape[-1]
    factors = []
    for part in parts:
        up, down = cast(LowRank, part.change).factors(part.strength)
        kernel = from_checkpoint(path, down.reshape(len(down), *shape[1:]))
        factors.append((kernel.reshape(-1, len(down)), up.T))
    before, after = (array.reshape(-1, width) for array in (before, after))
    rows = max(1, BLOCK_NUMBERS // width)
    total, product = np.empty((2, rows, width), np.float32)
    for start in range(0, len(before), rows):
        block = slice(start, start + rows)
        rows_before = before[block]
        sums, products = total[: len(rows_before)], product[: len(rows_before)]
        sums[...] = rows_before
        for down, up in factors:
            sums += np.matmul(down[block], up, out=products)
        after[block] = sums
