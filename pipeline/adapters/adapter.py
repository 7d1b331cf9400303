"""An adapter: changes to a model's tensors, scaled by a strength."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Shape = tuple[int, ...]
# Network -> a tensor's name in diffusers' layout -> its shape there. Networks are named as their
# folders: `unet`, `text_encoder`, `text_encoder_2`.
Inventory = Mapping[str, Mapping[str, Shape]]


class Change(ABC):
    """The change that an adapter makes to one tensor."""

    @abstractmethod
    def delta(self, weight: np.ndarray, strength: float) -> np.ndarray:
        """Return what to add to a tensor, float32 in the checkpoint's layout (O I, O I H W).

        Args:
            weight: the tensor without adapters, float32 in the same layout.
            strength: 0 changes nothing, 1 is the change as it was trained.
        """


@dataclass(frozen=True)
class Adapter:
    """The content of an adapter's file.

    Attributes:
        name: the name that requests use.
        digest: SHA-256 of the file, in hexadecimal digits.
        weights_digest: SHA-256 of the file's bytes behind the header, which AUTOMATIC1111 uses:
            it does not change with the notes in the header.
        metadata: the notes in the header, such as kohya's `ss_*`.
        changes: network -> a tensor's name in diffusers' layout -> its change.
    """

    name: str
    file: Path
    digest: str
    weights_digest: str
    metadata: Mapping[str, str]
    changes: Mapping[str, Mapping[str, Change]]
