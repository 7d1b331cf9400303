"""The tensors of a file that cannot be used."""

from pipeline.adapters.adapter import Inventory
from pipeline.adapters.recognition import likely
from pipeline.checkpoints.tensors import Tensor, TensorFiles
from pipeline.errors import CheckpointError


class Faults:
    """A collection of tensors that cannot be used, and why; `check` raises one error for all."""

    def __init__(self, tensors: TensorFiles, inventory: Inventory) -> None:
        self._tensors = tensors
        self._inventory = inventory
        self._reasons: dict[str, str] = {}

    def add(self, tensor: Tensor, reason: str) -> None:
        """Note a tensor and the reason, which continues a sentence that begins with its name."""
        self._reasons.setdefault(tensor.name, reason)

    def check(self) -> None:
        """Raise a CheckpointError if tensors were noted; it names the first in the file."""
        if not self._reasons:
            return
        first = next(key for key in self._tensors if key in self._reasons)
        shapes = {key: tensor.shape for key, tensor in self._tensors.items()}
        raise CheckpointError(
            f"{self._tensors.where}: tensor {first!r} {self._reasons[first]}."
            f" {len(self._reasons)} of {len(shapes)} tensors cannot be used."
            f"{likely(shapes, self._inventory)}"
        )
