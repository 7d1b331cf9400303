"""The interface of a checkpoint: a configuration, and tensors by name for each network."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from pipeline.checkpoints.tensors import Tensor, TensorFiles


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


@dataclass(frozen=True)
class Section:
    """A network's tensors in a file that holds several networks.

    Attributes:
        prefixes: the prefixes that their names may have; the first that is there is the one.
        rename: returns them by their names in diffusers' layout, from the names behind the prefix.
        unused: pattern of names behind the prefix of tensors that no picture depends on.
    """

    prefixes: tuple[str, ...]
    rename: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = dict
    unused: re.Pattern[str] | None = None


@dataclass(frozen=True)
class Recognised(Generic[C_co]):
    """A single file that a family recognised.

    Attributes:
        config: its configuration.
        folder: the folder of its tokenizers, which the file does not hold.
        sections: its networks' tensors, by the network's name.
    """

    config: C_co
    folder: Path
    sections: Mapping[str, Section]


@dataclass(frozen=True)
class Component:
    """A network that was published by itself.

    Attributes:
        name: its name for users, a Hub id or the name of its folder or file.
        where: its folder or file, for messages.
        config: its `config.json`; None for a single file, which has none.
        open: opens its tensors, by their names in diffusers' layout.
    """

    name: str
    where: Path
    config: Path | None
    open: Callable[[], TensorFiles]


class Reader(Protocol[C_co]):
    """A reader of checkpoints' configuration that recognises the model families."""

    @property
    def unwanted(self) -> Collection[str]:
        """Folders of the components of a checkpoint to leave out."""
        ...

    @property
    def replacements(self) -> Mapping[str, Component]:
        """Networks that are not the checkpoint's own, by name."""
        ...

    def read(self, folder: Path) -> C_co:
        """Read the configuration from a folder in diffusers' layout.

        Raises:
            CheckpointError: if a setting is not supported; the message names file, key and value.
        """
        ...

    def recognise(self, tensors: TensorFiles) -> Recognised[C_co]:
        """Find out from the tensors of a single file which kind of model it holds.

        Raises:
            CheckpointError: if the kind is unknown or not supported, or a network is missing.
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
    ema: bool = False


@dataclass(frozen=True)
class Checkpoint(ABC, Generic[C]):
    """A complete checkpoint on this machine.

    Attributes:
        folder: the path of the folder that holds its tokenizers.
        model: its name: the Hub id, or the own name of the folder or file.
        revision: the commit on the Hub; None for a folder or a file.
        config: its configuration.
        replacements: networks in place of its own or beside them, by name.
        words: its word list; empty if it brings none.
    """

    folder: Path
    model: str
    revision: str | None
    config: C
    replacements: Mapping[str, Component] = field(default_factory=dict, kw_only=True)
    words: tuple[str, ...] = field(default=(), kw_only=True)

    def tensors(self, network: str) -> TensorFiles:
        """Open the tensors of a network by name; use the result in a `with` statement.

        Raises:
            CheckpointError: if a file is damaged or cannot be read.
        """
        replacement = self.replacements.get(network)
        return self.own_tensors(network) if replacement is None else replacement.open()

    @abstractmethod
    def own_tensors(self, network: str) -> TensorFiles:
        """Do what `tensors` does, for a network that is not replaced."""
