"""The networks' parameters, which all sizes share, and their tensors in a checkpoint."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from jax import Array

from pipeline.checkpoints.weights import PendingWeights, checkpoint_names, checkpoint_shape
from pipeline.runtime.programs import weights


@dataclass(frozen=True, eq=False)
class Slot:
    """The place of a parameter. Two places are equal only if they are the same object.

    Attributes:
        network: the name of its network.
        indices: its place in the list of the network's parameters; of a quantised parameter, those
            of its values and of its scale.
        path: its path in the module.
        names: the names of its tensors in a checkpoint; each is an equal share of the last axis.
        shape: its shape.
        dtype: its dtype, of a quantised parameter that from before.
    """

    network: str
    indices: tuple[int, ...]
    path: tuple[Any, ...]
    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def is_quantized(self) -> bool:
        """Whether the devices have the parameter as whole numbers with scales."""
        return len(self.indices) > 1

    @property
    def bytes(self) -> int:
        """Size of the parameter before it is quantised."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Shape of each of its tensors in a checkpoint."""
        share = *self.shape[:-1], self.shape[-1] // len(self.names)
        return checkpoint_shape(self.path, share) if self.shape else self.shape


class Tensor(NamedTuple):
    """A tensor of a checkpoint: its parameter, and which share of it."""

    slot: Slot
    share: int


class Parameters:
    """The parameters of all networks on the devices.

    Args:
        networks: the networks by name.
        files: the networks in their checkpoint; needed only for networks that are quantised.

    Attributes:
        files: the networks in the checkpoint that they are of, by name.
        networks: the networks by name, with shapes and dtypes in place of their parameters.
        leaves: each network's parameters as the programs take them, by its name. Parameters are
            replaced in these lists.
    """

    def __init__(
        self,
        networks: Mapping[str, nnx.Module],
        files: Mapping[str, PendingWeights[Any]] = MappingProxyType({}),
    ):
        self.files = files
        self._slots: dict[str, list[Slot]] = {}
        self.networks = {name: _without_parameters(network) for name, network in networks.items()}
        self.leaves = weights(networks)

    def beside(self, networks: Mapping[str, nnx.Module], shared: Collection[str]) -> "Parameters":
        """Return the parameters of other networks, and of some of these as they are now."""
        parameters = Parameters(networks)
        names = [name for name in shared if name in self.leaves and name not in networks]
        parameters.networks |= {name: self.networks[name] for name in names}
        parameters.leaves |= {name: [*self.leaves[name]] for name in names}
        return parameters

    def of(self, slot: Slot) -> list[Array]:
        """Return a parameter on the devices."""
        return [self.leaves[slot.network][index] for index in slot.indices]

    def replace(self, slot: Slot, leaves: Sequence[Array]) -> None:
        """Replace a parameter on the devices."""
        network_leaves = self.leaves[slot.network]
        for index, leaf in zip(slot.indices, leaves, strict=True):
            network_leaves[index] = leaf

    def slots(self, network: str) -> list[Slot]:
        """Return the places of a network's parameters, in the order of the programs' list."""
        if network not in self._slots:
            self._slots[network] = _slots(network, self.networks[network])
        return self._slots[network]

    def tensors(self, networks: Collection[str]) -> dict[str, dict[str, Tensor]]:
        """Return the tensors of some networks, by the network's and by their own name."""
        return {
            name: {
                tensor: Tensor(slot, share)
                for slot in self.slots(name)
                for share, tensor in enumerate(slot.names)
            }
            for name in networks
        }


def read_slots(
    files: Mapping[str, PendingWeights[Any]], slots: Sequence[Slot]
) -> Iterator[tuple[Slot, np.ndarray]]:
    """Read parameters from the files of their networks, one after the other, not quantised.

    Raises:
        CheckpointError: if a file cannot be read or was replaced; the message names it.
    """
    for network in dict.fromkeys(slot.network for slot in slots):
        by_path = {slot.path: slot for slot in slots if slot.network == network}
        for path, array in files[network].read(by_path):
            yield by_path[path], array


def _without_parameters(network: nnx.Module) -> nnx.Module:
    graphdef, state = nnx.split(network)
    spec = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
    return nnx.merge(graphdef, spec)


def _slots(name: str, network: nnx.Module) -> list[Slot]:
    state = nnx.state(network)
    leaves, structure = jax.tree.flatten(state)
    numbered = dict(nnx.to_flat_state(jax.tree.unflatten(structure, range(len(leaves)))))
    slots = []
    for path, param in nnx.to_flat_state(state):
        indices = tuple(jax.tree.leaves(numbered[path].get_value()))
        shape_and_dtype = param.shape, np.dtype(param.dtype)
        slots.append(Slot(name, indices, path, checkpoint_names(path), *shape_and_dtype))
    return sorted(slots, key=lambda slot: slot.indices)
