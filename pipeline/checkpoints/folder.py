"""The files of a checkpoint, or of a single network, in diffusers' layout."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pipeline.checkpoints.checkpoint import Checkpoint, Component, FetchOptions
from pipeline.checkpoints.tensors import TensorFiles, choose_weight_files, open_tensors
from pipeline.checkpoints.word_list import WORDS, read_words
from pipeline.errors import CheckpointError
from pipeline.strict_json import StrictJson

if TYPE_CHECKING:
    from pipeline.families.family import Config

INDEX = "model_index.json"
LONE_CONFIG = "config.json"  # the configuration of a network published by itself
TOKENIZER_FILES = (
    "vocab.json",
    "merges.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)


@dataclass(frozen=True)
class FolderCheckpoint(Checkpoint):
    """A checkpoint in diffusers' layout: a folder with a folder for each component.

    Attributes:
        weights: for each network the weight files to read, as paths below `folder`, which
            `tensors.choose_weight_files` chose. Other weight files are ignored.
    """

    weights: Mapping[str, Sequence[str]]

    def own_tensors(self, network: str) -> TensorFiles:
        return open_tensors(self.folder / network, self.weights[network])


class Needed(NamedTuple):
    """The files that are needed beside the configuration, as paths below a checkpoint's root.

    Attributes:
        files: all these files.
        weights: the weight files of each network, as in `FolderCheckpoint`.
    """

    files: list[str]
    weights: dict[str, list[str]]


def config_patterns(folder: Path, unwanted_components: Collection[str] = ()) -> list[str]:
    """Return patterns of the configuration files of all components in `model_index.json`.

    Args:
        folder: the checkpoint's folder. An index that cannot be read gives no patterns.
        unwanted_components: components to leave out.
    """
    try:
        index = StrictJson(folder / INDEX).values
    except CheckpointError:
        return []
    return [
        f"{component}/*config.json"
        for component, names in index.items()
        if isinstance(names, list) and None not in names and component not in unwanted_components
    ]


def needed_files(
    names: Collection[str],
    parts: "Config",
    prefer_fp16: bool = False,
    replacements: Collection[str] = (),
) -> Needed:
    """Choose the needed files among all files of a checkpoint, given as paths below its root.

    Networks in `replacements` come from elsewhere.

    Raises:
        CheckpointError: if a tokenizer or the weights of a network are missing.
    """
    tokenizers = [_tokenizer_files(names, component) for component in parts.tokenizers]
    weights = {
        network: _weight_files(names, network, prefer_fp16, parts.hints.get(network))
        for network in parts.networks
        if network not in replacements
    }
    words = [WORDS] if WORDS in names else []
    return Needed([*words, *chain.from_iterable((*tokenizers, *weights.values()))], weights)


def _tokenizer_files(names: Collection[str], component: str) -> list[str]:
    files = [f"{component}/{name}" for name in TOKENIZER_FILES if f"{component}/{name}" in names]
    vocabulary = {f"{component}/vocab.json", f"{component}/merges.txt"}
    if not vocabulary <= set(files) and f"{component}/tokenizer.json" not in files:
        raise CheckpointError(
            f"{component}/ has no tokenizer; expected vocab.json and merges.txt, or tokenizer.json"
        )
    return files


def _weight_files(
    names: Collection[str], network: str, prefer_fp16: bool, hint: str | None
) -> list[str]:
    try:
        return choose_weight_files(names, network, prefer_fp16)
    except CheckpointError as error:
        raise CheckpointError(f"{error} ({hint})" if hint else str(error)) from None


def check(
    folder: Path, where: str, names: Collection[str], options: FetchOptions
) -> tuple["Config", Needed]:
    """Return a checkpoint's configuration, which is in `folder`, and its needed files.

    Raises:
        CheckpointError: if the checkpoint is incomplete or not supported. The message names it
            as `where`.
    """
    if INDEX not in names:
        raise CheckpointError(
            f"{where}: no checkpoint in diffusers' layout, which has a model_index.json; "
            + _what_else(folder, options)
        )
    config = options.reader.read(folder)
    if not options.weights:
        return config, Needed([], {})
    replacements = options.reader.replacements
    try:
        return config, needed_files(names, config, options.prefer_fp16, replacements)
    except CheckpointError as error:
        raise CheckpointError(f"{where}: {error}") from None


def open_folder(
    folder: Path, model: str, revision: str | None, options: FetchOptions
) -> FolderCheckpoint:
    """Return the checkpoint in a folder, which has all needed files.

    Raises:
        CheckpointError: under the conditions of `check`.
    """
    checked = check(folder, str(folder), list_folder(folder), options)
    return checked_checkpoint(folder, model, revision, options, *checked)


def checked_checkpoint(
    folder: Path,
    model: str,
    revision: str | None,
    options: FetchOptions,
    config: "Config",
    needed: Needed,
) -> FolderCheckpoint:
    """Return the checkpoint in a folder that `check` has found to be complete."""
    return FolderCheckpoint(
        folder,
        model,
        revision,
        config,
        needed.weights,
        replacements=options.reader.replacements,
        words=read_words(folder),
    )


def _what_else(folder: Path, options: FetchOptions) -> str:
    """Describe the contents of a folder that holds no checkpoint, for an error message."""
    try:
        name = StrictJson(folder / LONE_CONFIG).values["_class_name"]
    except (CheckpointError, KeyError):
        return "a single file with all weights is named itself: name the .safetensors file in it"
    return f"its {LONE_CONFIG} is that of a lone {name}{options.reader.describe(name)}"


class ComponentFiles(NamedTuple):
    """The files of a network, as paths below a root.

    Attributes:
        folder: the network's folder, "" for the root itself.
        weights: its weight files; see `choose_weight_files`.
    """

    folder: str
    weights: list[str]

    @property
    def config(self) -> str:
        """The network's configuration."""
        return str(Path(self.folder, LONE_CONFIG))

    def component(self, root: Path, name: str) -> Component:
        """Return the network, which has this name for users."""
        folder = root / self.folder
        return Component(
            name, folder, root / self.config, partial(open_tensors, folder, self.weights)
        )


def find_component(
    names: Collection[str], where: str, network: str, prefer_fp16: bool = False
) -> ComponentFiles:
    """Find a network among the files of a root: its own, or that of a whole checkpoint.

    Args:
        names: all files, as paths below the root.
        where: the root, for messages.
        network: the network's folder in a checkpoint, such as `vae`.
        prefer_fp16: whether to choose the fp16 variant where both are complete.

    Raises:
        CheckpointError: if the network is not there, or has no safetensors weights.
    """
    folder = "" if LONE_CONFIG in names else network
    if str(Path(folder, LONE_CONFIG)) not in names:
        raise CheckpointError(
            f"{where}: holds no {network}; expected a {LONE_CONFIG} or {network}/{LONE_CONFIG} with"
            " weights beside it, or else the name of a .safetensors file"
        )
    paths = [name if folder else f"{network}/{name}" for name in names]
    try:
        weight_files = choose_weight_files(paths, network, prefer_fp16)
    except CheckpointError as error:
        raise CheckpointError(f"{where}: {error}") from None
    return ComponentFiles(
        folder, [name if folder else name.removeprefix(f"{network}/") for name in weight_files]
    )


def list_folder(folder: Path) -> list[str]:
    """Return the files in a folder and in the folders directly below it."""
    try:
        paths = [*folder.glob("*"), *folder.glob("*/*")]
        return [path.relative_to(folder).as_posix() for path in paths if path.is_file()]
    except OSError as error:
        raise CheckpointError(f"{error.filename or folder}: {error.strerror}") from error


def count_parameters(checkpoint: Checkpoint) -> int:
    """Return the number of parameters in the weight files; only their headers are read.

    Raises:
        CheckpointError: if a file is damaged or cannot be read.
    """
    total = 0
    for network in checkpoint.config.networks:
        with checkpoint.tensors(network) as tensors:
            total += sum(math.prod(tensor.shape) for tensor in tensors.values())
    return total
