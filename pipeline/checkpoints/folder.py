"""The files of a checkpoint in diffusers' layout, and the check that all of them are there."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from pipeline.checkpoints.tensors import choose_weight_files, open_tensors
from pipeline.errors import CheckpointError
from pipeline.models.config import family, read_config
from pipeline.strict_json import StrictJson

TEXT_ENCODERS = ("text_encoder", "text_encoder_2")
OTHER_NETWORKS = ("unet", "vae")
CONFIG_FILES = (
    "model_index.json",
    "scheduler/scheduler_config.json",
    *(f"{component}/config.json" for component in TEXT_ENCODERS + OTHER_NETWORKS),
)
LONE_CONFIG = "config.json"  # the configuration of a network published by itself
SAFETY_CHECKER_FILES = ("safety_checker/config.json", "feature_extractor/preprocessor_config.json")
TOKENIZER_FILES = (
    "vocab.json",
    "merges.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on this machine.

    Attributes:
        folder: the path of its folder.
        model: its name: the Hub id, or the folder's own name.
        revision: the commit on the Hub; None for a folder.
        weights: for each network the weight files to read, as paths below `folder`, which
            `tensors.choose_weight_files` chose. Other weight files are ignored.
    """

    folder: Path
    model: str
    revision: str | None
    weights: Mapping[str, Sequence[str]]


class Needed(NamedTuple):
    """The files of a checkpoint that are needed to run it, as paths below its root.

    Attributes:
        files: all needed files.
        weights: the weight files of each network, as in `Checkpoint`.
    """

    files: list[str]
    weights: dict[str, list[str]]


class FetchOptions(NamedTuple):
    """The options of `pipeline.checkpoints.source.fetch`, which describes them."""

    prefer_fp16: bool
    scheduler: str | None
    safety_checker: bool


def needed_files(
    names: Collection[str],
    prefer_fp16: bool = False,
    text_encoders: Collection[str] = TEXT_ENCODERS,
    safety_checker: bool = False,
) -> Needed:
    """Choose the needed files among all files of a checkpoint, given as paths below its root.

    Raises:
        CheckpointError: if a tokenizer or the weights of a network are missing.
    """
    absent = set(TEXT_ENCODERS) - set(text_encoders)
    needed = [file for file in CONFIG_FILES if file.split("/")[0] not in absent]
    for component in (name.replace("text_encoder", "tokenizer") for name in text_encoders):
        files = [
            f"{component}/{name}" for name in TOKENIZER_FILES if f"{component}/{name}" in names
        ]
        vocabulary = {f"{component}/vocab.json", f"{component}/merges.txt"}
        if not vocabulary <= set(files) and f"{component}/tokenizer.json" not in files:
            raise CheckpointError(
                f"{component}/ has no tokenizer; expected vocab.json and merges.txt, or "
                "tokenizer.json"
            )
        needed += files
    weights = {
        component: choose_weight_files(names, component, prefer_fp16)
        for component in (*text_encoders, *OTHER_NETWORKS)
    }
    if safety_checker:
        needed += SAFETY_CHECKER_FILES
        weights["safety_checker"] = _safety_checker_weights(names, prefer_fp16)
    return Needed([*needed, *chain.from_iterable(weights.values())], weights)


def _safety_checker_weights(names: Collection[str], prefer_fp16: bool) -> list[str]:
    try:
        return choose_weight_files(names, "safety_checker", prefer_fp16)
    except CheckpointError as error:
        raise CheckpointError(f"{error} (or turn the safety checker off)") from None


def check(folder: Path, where: str, names: Collection[str], wanted: FetchOptions) -> Needed:
    """Return the needed files among `names`; `folder` must already have the configuration.

    Raises:
        CheckpointError: if the checkpoint is incomplete or not supported. The message names it
            as `where`.
    """
    if "model_index.json" not in names:
        raise CheckpointError(
            f"{where}: no checkpoint in diffusers' layout, which has a model_index.json; "
            + _what_else(folder)
        )
    config = read_config(folder, wanted.scheduler, safety_checker=wanted.safety_checker)
    checked = config.safety_checker is not None
    try:
        return needed_files(names, wanted.prefer_fp16, config.text_encoders, checked)
    except CheckpointError as error:
        raise CheckpointError(f"{where}: {error}") from None


def _what_else(folder: Path) -> str:
    """Describe the contents of a folder that holds no checkpoint, for an error message."""
    try:
        name = StrictJson(folder / LONE_CONFIG).values["_class_name"]
    except (CheckpointError, KeyError):
        return "a single file with all weights is not supported"
    return f"its {LONE_CONFIG} is that of a lone {name}{family(name)}"


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
    for network, files in checkpoint.weights.items():
        with open_tensors(checkpoint.folder / network, files) as tensors:
            total += sum(math.prod(tensor.shape) for tensor in tensors.values())
    return total
