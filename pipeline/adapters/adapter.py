"""An adapter: changes to a model's tensors, scaled by a strength.

Changes are computed in float32. Their factors stay in the file's dtype until they are used.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

Shape = tuple[int, ...]
# Network -> a tensor's name in diffusers' layout -> its shape there. Networks are named as their
# folders: `unet`, `text_encoder`, `text_encoder_2`.
Inventory = Mapping[str, Mapping[str, Shape]]
# All float16 numbers in float32, in the order of their bits.
_OF_FLOAT16 = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
_HASH = re.compile(r"[0-9a-fA-F]{12}")
EPSILON = float(np.finfo(np.float32).eps)


class Change(ABC):
    """The change that an adapter makes to one tensor."""

    @abstractmethod
    def delta(self, weight: np.ndarray, strength: float) -> np.ndarray:
        """Return what to add to a tensor, float32 in the checkpoint's layout (O I, O I H W).

        Args:
            weight: the tensor without adapters, float32 in the same layout.
            strength: 0 changes nothing, 1 is the change as it was trained.
        """


class Factored(Change):
    """A change that does not depend on the tensor's values."""

    @abstractmethod
    def product(self, shape: Shape, scale: float) -> np.ndarray:
        """Return a new float32 array of a shape: the product of the factors, times `scale`.

        Its order in memory is any.
        """

    def delta(self, weight: np.ndarray, strength: float) -> np.ndarray:
        return self.product(weight.shape, strength)


@dataclass(frozen=True, eq=False)
class Difference(Factored):
    """A change that is stored in full, times `scale`."""

    values: np.ndarray
    scale: float = 1.0

    def product(self, shape: Shape, scale: float) -> np.ndarray:
        result = self.values.astype(np.float32).reshape(shape)
        result *= np.float32(self.scale * scale)
        return result


@dataclass(frozen=True, eq=False)
class LowRank(Factored):
    """LoRA (Hu et al. 2021) and, for convolutions, LoCon: `scale * up @ down`.

    A convolution's up is a 1x1 convolution, so that the product of the matrices is the kernel of
    down followed by up.

    Attributes:
        up: `[out, rank]`.
        down: `[rank, inputs]`; a convolution's inputs are its channels times its kernel.
    """

    up: np.ndarray
    down: np.ndarray
    scale: float = 1.0

    def factors(self, scale: float) -> tuple[np.ndarray, np.ndarray]:
        """Return up times the scales, and down, float32."""
        return _scaled(self.up, self.scale * scale), _float32(self.down)

    def product(self, shape: Shape, scale: float) -> np.ndarray:
        up, down = self.factors(scale)
        # In this order the outputs lie side by side, as in the networks' parameters.
        return (down.T @ up.T).T.reshape(shape)


@dataclass(frozen=True, eq=False)
class Tucker(Factored):
    """A low-rank convolution in three parts: 1x1, the core with the kernel, 1x1.

    Attributes:
        up: `[out, rank]`.
        core: `[rank, rank, kernel]`.
        down: `[rank, in]`.
    """

    up: np.ndarray
    core: np.ndarray
    down: np.ndarray
    scale: float = 1.0

    def product(self, shape: Shape, scale: float) -> np.ndarray:
        rank, inner, kernel = self.core.shape
        up, down = _scaled(self.up, self.scale * scale), _float32(self.down)
        core = _float32(self.core).reshape(rank, inner * kernel)
        half = (core.T @ up.T).reshape(inner, kernel * len(up))
        full = (down.T @ half).reshape(-1, kernel, len(up))  # [in, kernel, out]
        return full.transpose(2, 0, 1).reshape(shape)


@dataclass(frozen=True, eq=False)
class Hadamard(Factored):
    """LoHa (Hyeon-Woo et al. 2021): the elementwise product of two low-rank products."""

    first: Factored
    second: Factored
    scale: float

    def product(self, shape: Shape, scale: float) -> np.ndarray:
        result = self.first.product(shape, self.scale * scale)
        result *= self.second.product(shape, 1.0)
        return result


@dataclass(frozen=True, eq=False)
class Kronecker(Factored):
    """LoKr (Yeh et al. 2023): the Kronecker product of a small matrix and a larger factor.

    Attributes:
        left: `[out / a, in / b]`.
        right: the factor of shape `[a, b, *kernel]`.
    """

    left: np.ndarray
    right: Factored
    scale: float

    def product(self, shape: Shape, scale: float) -> np.ndarray:
        rows, columns = self.left.shape
        inner = (shape[0] // rows, shape[1] // columns, *shape[2:])
        right = self.right.product(inner, 1.0).reshape(inner[0], -1)
        left = _scaled(self.left, self.scale * scale)
        full = left.T[:, None, :, None] * right.T[None, :, None, :]
        return full.reshape(-1, shape[0]).T.reshape(shape)


@dataclass(frozen=True, eq=False)
class Decomposed(Change):
    """DoRA (Liu et al. 2024): a changed tensor whose rows or columns get a trained norm.

    At strength 1 the result is the same as in LyCORIS and PEFT. Other strengths interpolate
    linearly between the tensor and the result at strength 1, as in AUTOMATIC1111 and ComfyUI.

    Attributes:
        change: the change of direction.
        magnitude: the norm of each row (`axis` 0) or each column (`axis` 1).
    """

    change: Factored
    magnitude: np.ndarray
    axis: int

    def delta(self, weight: np.ndarray, strength: float) -> np.ndarray:
        result = self.change.product(weight.shape, 1.0)
        result += weight
        other_axes = tuple(axis for axis in range(weight.ndim) if axis != self.axis)
        squares = np.einsum(
            result, [*range(weight.ndim)], result, [*range(weight.ndim)], [self.axis]
        )
        factor = _float32(self.magnitude) / (np.sqrt(squares) + EPSILON)
        result *= np.expand_dims(factor, other_axes)
        result -= weight
        result *= np.float32(strength)
        return result


@dataclass(frozen=True, eq=False)
class Replacement(Change):
    """New values; strengths below 1 interpolate."""

    values: np.ndarray

    def delta(self, weight: np.ndarray, strength: float) -> np.ndarray:
        result = self.values.astype(np.float32).reshape(weight.shape)
        result -= weight
        result *= np.float32(strength)
        return result


def _float32(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.float16:  # a table is quicker than NumPy's conversion
        return np.take(_OF_FLOAT16, array.view(np.uint16), mode="clip")
    return np.asarray(array, np.float32)


def _scaled(array: np.ndarray, scale: float) -> np.ndarray:
    return _float32(array) * np.float32(scale)


@dataclass(frozen=True, eq=False)
class Adapter:
    """The content of an adapter's file; equal only to itself.

    Attributes:
        name: the name that requests use.
        digest: SHA-256 of the file, in hexadecimal digits.
        weights_digest: SHA-256 of the file's bytes behind the header, which AUTOMATIC1111 uses:
            it does not change with the notes in the header.
        metadata: the notes in the header, such as kohya's `ss_*`.
        changes: network -> a tensor's name in diffusers' layout -> its change.
        bundles: the tensors of embeddings in the file, by the embedding's name and by theirs.
    """

    name: str
    file: Path
    digest: str
    weights_digest: str
    metadata: Mapping[str, str]
    changes: Mapping[str, Mapping[str, Change]]
    bundles: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)

    @property
    def short_hash(self) -> str:
        """The 12 digits by which AUTOMATIC1111 knows the file.

        sd-scripts notes the hash when it writes a file, and tools that change the header keep it.
        """
        written_hash = self.metadata.get("sshs_model_hash", "")
        digest = written_hash if _HASH.match(written_hash) else self.weights_digest
        return digest[:12].lower()
