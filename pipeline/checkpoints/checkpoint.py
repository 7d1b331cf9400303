"""The interface of a checkpoint: a configuration, and tensors by name for each network."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from pipeline.checkpoints.tensors import TensorFiles


class Parts(Protocol):
    """The parts of a checkpoint that its configuration asks for."""

    @property
    def networks(self) -> Collection[str]:
        """Names of the networks, which in diffusers' layout are the names of their folders."""
        ...

    @property
    def tokenizers(self) -> Collection[str]:
        """Names of the tokenizers' folders."""
        ...

    @property
    def hints(self) -> Mapping[str, str]:
        """Advice to add to the error about a missing network, by the network's name."""
        ...


C = TypeVar("C", bound=Parts)
C_co = TypeVar("C_co", bound=Parts, covariant=True)


class Reader(Protocol[C_co]):
    """A reader of checkpoints' configuration that recognises the model families."""

    @property
    def unwanted(self) -> Collection[str]:
        """Folders of the components of a checkpoint to leave out."""
        ...

    def read(self, folder: Path) -> C_co:
        """Read the configuration from a folder in diffusers' layout.

        Raises:
            CheckpointError: if a setting is not supported; the message names file, key and value.
        """
        ...

    def describe(self, class_name: object) -> str:
        """Return a phrase that names an unsupported class of diffusers, or "" if it is unknown.

        The phrase continues the sentence of an error message.
        """
        ...


@dataclass(frozen=True)
class FetchOptions(Generic[C]):
    """The options of `pipeline.checkpoints.source.fetch`, which describes them."""

    reader: Reader[C]
    prefer_fp16: bool
    weights: bool = True


@dataclass(frozen=True)
class Checkpoint(ABC, Generic[C]):
    """A complete checkpoint on this machine.

    Attributes:
        folder: the path of the folder that holds its tokenizers.
        model: its name: the Hub id, or the folder's own name.
        revision: the commit on the Hub; None for a folder.
        config: its configuration.
    """

    folder: Path
    model: str
    revision: str | None
    config: C

    @abstractmethod
    def tensors(self, network: str) -> TensorFiles:
        """Open the tensors of a network by name; use the result in a `with` statement.

        Raises:
            CheckpointError: if a file is damaged or cannot be read.
        """
