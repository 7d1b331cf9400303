"""The interface of a checkpoint: a configuration, and tensors by name for each network."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.checkpoints.tensors import Tensor, TensorFiles

if TYPE_CHECKING:
    from pipeline.families.family import Config
    from pipeline.families.reader import FamilyReader


@dataclass(frozen=True)
class Section:
    """A network's tensors in a file that holds several networks.

    Attributes:
        prefixes: the prefixes that their names may have; the first that is there is the one.
        rename: returns them by their names in diffusers' layout, from the names behind the prefix.
        unused: pattern of names behind the prefix of tensors that no picture depends on.
        kinds: the kinds of files that have it, as in `pipeline.checkpoints.contents`; empty for a
            network that is looked for only in files whose kind is known.
    """

    prefixes: tuple[str, ...]
    rename: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = dict
    unused: re.Pattern[str] | None = None
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recognised:
    """A single file that a family recognised.

    Attributes:
        config: its configuration.
        folder: the folder of its tokenizers, which the file does not hold.
        sections: its networks' tensors, by the network's name.
    """

    config: "Config"
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


@dataclass(frozen=True)
class FetchOptions:
    """The options of `pipeline.checkpoints.source.fetch`, which describes them."""

    reader: "FamilyReader"
    prefer_fp16: bool
    weights: bool = True
    ema: bool = False


@dataclass(frozen=True)
class Checkpoint(ABC):
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
    config: "Config"
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
