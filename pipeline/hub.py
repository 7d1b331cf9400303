"""A checkpoint named by folder or by Hub id, as a local folder that holds all that is needed."""

import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import httpx2
from huggingface_hub import (
    HfApi,
    constants,
    get_cached_repo_tree,
    list_repo_tree,
    resolve_revision,
    snapshot_download,
)
from huggingface_hub.errors import (
    CachedRepoTreeNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    RevisionResolutionError,
)

from pipeline.config import family, names_safety_checker, read_config
from pipeline.errors import CheckpointError
from pipeline.keys import Keys
from pipeline.tensors import choose_weight_files

TEXT_ENCODERS = ("text_encoder", "text_encoder_2")
OTHER_NETWORKS = ("unet", "vae")
CONFIG_FILES = (
    "model_index.json",
    "scheduler/scheduler_config.json",
    *(f"{component}/config.json" for component in TEXT_ENCODERS + OTHER_NETWORKS),
)
LONE_CONFIG = "config.json"  # of a network that is published by itself
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
        folder: where it is.
        model: its name: the Hub id, or a folder's own name.
        revision: the commit on the Hub, None for a folder.
    """

    folder: Path
    model: str
    revision: str | None


class _Wanted(NamedTuple):
    """What to make of a checkpoint; see `fetch`."""

    prefer_fp16: bool
    scheduler: str | None
    safety_checker: bool


def fetch(
    model: str,
    revision: str | None = None,
    prefer_fp16: bool = False,
    scheduler: str | None = None,
    safety_checker: bool = True,
) -> Checkpoint:
    """Finds a checkpoint in diffusers' layout, downloading from the Hub only what is needed.

    The configuration comes first: what cannot run is refused before its weights are fetched.
    Files are kept in the Hub client's cache. What is in there is not asked for again, and where
    the Hub cannot be reached the cache alone will do. `HF_ENDPOINT`, `HF_HOME`, `HF_TOKEN` and
    `HF_HUB_OFFLINE` have their usual meaning.

    Args:
        model: a folder, or an id on the Hub such as `stabilityai/stable-diffusion-xl-base-1.0`.
        revision: a branch, tag or commit on the Hub; None is the main branch.
        prefer_fp16: fetch weights in half precision where they are offered: half the download,
            and enough for networks that run in 16 bits.
        scheduler: takes the place of the checkpoint's own, as in `read_config`.
        safety_checker: False does without the checkpoint's safety checker.

    Raises:
        CheckpointError: there is no such checkpoint or no access to it, it is not complete or
            not supported, or it cannot be downloaded or stored.
    """
    wanted = _Wanted(prefer_fp16, scheduler, safety_checker)
    folder = Path(model)
    with suppress(RuntimeError):  # "~somebody" who does not exist
        folder = folder.expanduser()
    if model and folder.is_dir():
        if revision is not None:
            raise CheckpointError(
                f"{model}: this is a folder, which has no revision {revision!r}; only models on "
                "the Hub have revisions"
            )
        return _from_folder(folder, wanted)
    if folder.is_file():
        raise CheckpointError(f"{model}: is a file; expected a folder in diffusers' layout")
    try:
        return _from_hub(model, revision, wanted)
    except CheckpointError:
        raise
    # The client passes on its own errors and those of its transports, which have no common base.
    except Exception as error:
        if _is_final(error):
            raise CheckpointError(_explanation(model, revision, error)) from error
        return _from_cache(model, revision, wanted, error)


def needed_files(
    names: Collection[str],
    prefer_fp16: bool = False,
    text_encoders: Collection[str] = TEXT_ENCODERS,
    safety_checker: bool = False,
) -> list[str]:
    """Of all files of a checkpoint (paths below its root), those that are needed to run it.

    Raises:
        CheckpointError: a tokenizer or the weights of a network are missing.
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
    for component in (*text_encoders, *OTHER_NETWORKS):
        needed += choose_weight_files(names, component, prefer_fp16)
    if safety_checker:
        needed += SAFETY_CHECKER_FILES
        needed += _safety_checker_weights(names, prefer_fp16)
    return needed


def _safety_checker_weights(names: Collection[str], prefer_fp16: bool) -> list[str]:
    try:
        return choose_weight_files(names, "safety_checker", prefer_fp16)
    except CheckpointError as error:
        raise CheckpointError(f"{error} (or turn the safety checker off)") from None


def _from_folder(folder: Path, wanted: _Wanted) -> Checkpoint:
    _check(folder, str(folder), _list_folder(folder), wanted)
    return Checkpoint(folder, folder.resolve().name, revision=None)


def _from_hub(model: str, revision: str | None, wanted: _Wanted) -> Checkpoint:
    if not re.fullmatch("[0-9a-f]{40}", revision or ""):  # a commit needs no answer
        _check_that_it_answers(model, revision)
    resolved = resolve_revision(model, revision=revision)
    folder = Path(snapshot_download(model, revision=resolved, allow_patterns=[*CONFIG_FILES]))
    if not (folder / "model_index.json").is_file():
        snapshot_download(model, revision=resolved, allow_patterns=[LONE_CONFIG])
    if wanted.safety_checker and names_safety_checker(folder):
        snapshot_download(model, revision=resolved, allow_patterns=[*SAFETY_CHECKER_FILES])
    try:
        names = [file.path for file in get_cached_repo_tree(model, revision=resolved)]
    except CachedRepoTreeNotFoundError:  # in a cache that cannot be written to
        tree = list_repo_tree(model, revision=resolved.resolved, recursive=True)
        names = [entry.path for entry in tree]
    files = _check(folder, model, names, wanted)
    snapshot_download(model, revision=resolved, allow_patterns=files)
    return Checkpoint(folder, model, resolved.resolved)


def _check_that_it_answers(model: str, revision: str | None) -> None:
    """Asks the Hub with a time limit; `resolve_revision` would wait for an answer without end.

    Whatever else is wrong is left to that function, which knows the cache.
    """
    try:
        HfApi().repo_info(model, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except httpx2.TimeoutException as error:
        raise RevisionResolutionError(f"{constants.ENDPOINT} does not answer") from error
    except Exception:
        return


def _from_cache(model: str, revision: str | None, wanted: _Wanted, reason: Exception) -> Checkpoint:
    """What the cache holds, if that is enough to run, in whichever precision it is there."""
    try:
        # Without patterns the client would insist on every file of the repository.
        folder = snapshot_download(
            model, revision=revision, allow_patterns=[], local_files_only=True
        )
    except LocalEntryNotFoundError:
        raise CheckpointError(_explanation(model, revision, reason)) from reason
    try:
        _check(Path(folder), folder, _list_folder(Path(folder)), wanted)
    except CheckpointError as error:
        message = f"{_explanation(model, revision, reason)} What is in the cache: {error}"
        raise CheckpointError(message) from reason
    return Checkpoint(Path(folder), model, Path(folder).name)


def _check(folder: Path, where: str, names: Collection[str], wanted: _Wanted) -> list[str]:
    """The files that are needed, out of `names`; `folder` has the configuration already."""
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
    """What a folder without a checkpoint holds, as far as can be told."""
    try:
        name = Keys(folder / LONE_CONFIG).values["_class_name"]
    except (CheckpointError, KeyError):
        return "a single file with all weights is not supported"
    return f"its {LONE_CONFIG} is that of a lone {name}{family(name)}"


def _list_folder(folder: Path) -> list[str]:
    """Files in a folder and in the folders directly below it."""
    try:
        paths = [*folder.glob("*"), *folder.glob("*/*")]
        return [path.relative_to(folder).as_posix() for path in paths if path.is_file()]
    except OSError as error:
        raise CheckpointError(f"{error.filename or folder}: {error.strerror}") from error


def _is_final(error: Exception) -> bool:
    """Whether the Hub has answered, or the disk has refused, so that the cache is no way out."""
    answered = isinstance(error, HfHubHTTPError) and error.response.status_code < 500
    refused = isinstance(error, OSError) and error.errno is not None
    return answered or refused or isinstance(error, HFValidationError)


def _explanation(model: str, revision: str | None, error: Exception) -> str:
    hub = constants.ENDPOINT
    match error:
        case HFValidationError():
            return f"{model}: no such folder, and not the form of a model's id on the Hub"
        case GatedRepoError():
            return (
                f"{model}: access must be asked for at {hub}/{model}; then set HF_TOKEN to a token "
                "of that account"
            )
        case RepositoryNotFoundError():
            return (
                f"{model}: no such folder, and no such model at {hub} (or no access to it: for a "
                "private one set HF_TOKEN)"
            )
        case RevisionNotFoundError():
            return f"{model}: no revision {revision!r} at {hub}; name a branch, a tag or a commit"
        case HfHubHTTPError() if error.response.status_code in (401, 403):
            status = error.response.status_code
            return f"{model}: {hub} refused access (HTTP {status}); set HF_TOKEN to a valid token"
        case HfHubHTTPError():
            return f"{model}: {hub} answered HTTP {error.response.status_code}; try again later."
        case RevisionResolutionError() | LocalEntryNotFoundError():
            wanted = revision or constants.DEFAULT_REVISION
            return (
                f"{model}: {hub} cannot be reached ({_first_line(error.__cause__ or error)}), and "
                f"revision {wanted!r} is not whole in the cache, {constants.HF_HUB_CACHE}."
            )
        case OSError() if error.errno is not None:
            return (
                f"{model}: {error.filename or constants.HF_HUB_CACHE}: {error.strerror}; the cache "
                "needs room and write access, and HF_HOME can put it elsewhere"
            )
        case _:
            return (
                f"{model}: the download from {hub} broke off ({_first_line(error)}); start again "
                "to go on, files that are whole are kept."
            )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).split("\n")), "") or type(error).__name__
