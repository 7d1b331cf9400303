"""Checkpoints from the Hub, downloaded by its own client into its own cache."""

import glob
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

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

from pipeline.checkpoints.checkpoint import Checkpoint, FetchOptions
from pipeline.checkpoints.folder import (
    INDEX,
    LONE_CONFIG,
    ComponentFiles,
    check,
    checked_checkpoint,
    config_patterns,
    find_component,
    list_folder,
    open_folder,
)
from pipeline.errors import CheckpointError, first_line

T = TypeVar("T")
ANSWERED = "{hub} answered HTTP {status}; try again later."
REFUSED = "{hub} refused access (HTTP {status}); set HF_TOKEN to a valid token"
REFUSED_BY_DISK = (
    "{file}: {strerror}; the cache needs room and write access, and HF_HOME can put it elsewhere"
)
UNREACHED = (
    "{hub} cannot be reached ({reason}), and revision {revision!r} is not complete in the cache,"
    " {cache}."
)
BROKEN_OFF = (
    "the download from {hub} broke off ({reason}); start again to resume it; complete files are"
    " kept."
)
# Explanations of errors of the Hub's client; the first class that fits decides.
EXPLANATIONS: tuple[tuple[type[Exception], str], ...] = (
    (HFValidationError, "no such folder, and not a valid id of a model on the Hub"),
    (
        GatedRepoError,
        "access must be requested at {hub}/{model}; then set HF_TOKEN to a token of that account",
    ),
    (
        RepositoryNotFoundError,
        "no such folder, and no such model at {hub} (or no access to it: for a private one set"
        " HF_TOKEN)",
    ),
    (
        RevisionNotFoundError,
        "no revision {revision!r} at {hub}; name a branch, a tag or a commit",
    ),
    (HfHubHTTPError, ANSWERED),
    (RevisionResolutionError, UNREACHED),
    (LocalEntryNotFoundError, UNREACHED),
)


def download(model: str, revision: str | None, options: FetchOptions) -> Checkpoint:
    """Download the files of a checkpoint that `pipeline.checkpoints.source.fetch` needs.

    Raises:
        CheckpointError: under the conditions that `fetch` lists.
    """
    return _download(
        model,
        revision,
        partial(_from_hub, model, revision, options),
        lambda folder: open_folder(folder, model, folder.name, options),
    )


def download_file(
    model: str, file: str, revision: str | None, *, cached_only: bool = False
) -> tuple[Path, str]:
    """Download one file of a repository, and return its path and the commit.

    Args:
        model: the repository's id.
        file: the file's path in it.
        revision: a branch, tag or commit; None is the main branch.
        cached_only: whether to refuse a file that is not in the cache.

    Raises:
        CheckpointError: if it is not there, or cannot be downloaded or stored.
    """
    name = f"{model}/{file}"

    def from_cache(folder: Path) -> tuple[Path, str]:
        if not (folder / file).is_file():
            raise CheckpointError(f"{name} is not complete")
        return folder / file, folder.name

    def from_hub() -> tuple[Path, str]:
        resolved = _resolve(model, revision)
        patterns = [] if cached_only else [glob.escape(file)]
        folder = Path(snapshot_download(model, revision=resolved, allow_patterns=patterns))
        if (folder / file).is_file():
            return folder / file, resolved.resolved
        if cached_only:
            raise CheckpointError(
                f"{name}: its configuration is in the file itself, which is not in the cache,"
                f" {constants.HF_HUB_CACHE}; download it first"
            )
        raise CheckpointError(
            f"{name}: {model} has no such file at revision"
            f" {revision or constants.DEFAULT_REVISION!r}{_alternatives(_names(model, resolved))}"
        )

    return _download(model, revision, from_hub, from_cache)


def download_component(model: str, network: str, prefer_fp16: bool) -> tuple[Path, ComponentFiles]:
    """Download a network's files, and return the folder that they are below, and their names.

    The arguments are those of `pipeline.checkpoints.source.fetch_component`.

    Raises:
        CheckpointError: if there is no such network, or it cannot be downloaded or stored.
    """

    def from_cache(folder: Path) -> tuple[Path, ComponentFiles]:
        return folder, find_component(list_folder(folder), str(folder), network, prefer_fp16)

    def from_hub() -> tuple[Path, ComponentFiles]:
        resolved = _resolve(model, None)
        snapshot_download(model, revision=resolved, allow_patterns=[])
        files = find_component(_names(model, resolved), model, network, prefer_fp16)
        patterns = [glob.escape(name) for name in (files.config, *files.weights)]
        return Path(snapshot_download(model, revision=resolved, allow_patterns=patterns)), files

    return _download(model, None, from_hub, from_cache)


def _download(
    model: str, revision: str | None, from_hub: Callable[[], T], from_cache: Callable[[Path], T]
) -> T:
    """Return the result of `from_hub`; if the Hub cannot be reached, that of `from_cache`.

    `from_cache` takes the folder of the revision in the cache.

    Raises:
        CheckpointError: if neither has a result.
    """
    try:
        return from_hub()
    except CheckpointError:
        raise
    # The client passes on its own errors and those of its transports, which have no common base.
    except Exception as error:
        if _is_final(error):
            raise CheckpointError(_explanation(model, revision, error)) from error
        explanation = _explanation(model, revision, error)
        try:
            # Without patterns the client would insist on every file of the repository.
            folder = snapshot_download(
                model, revision=revision, allow_patterns=[], local_files_only=True
            )
            return from_cache(Path(folder))
        except LocalEntryNotFoundError:
            raise CheckpointError(explanation) from error
        except CheckpointError as missing:
            raise CheckpointError(f"{explanation} In the cache: {missing}") from error


def _from_hub(model: str, revision: str | None, options: FetchOptions) -> Checkpoint:
    resolved = _resolve(model, revision)
    folder = Path(snapshot_download(model, revision=resolved, allow_patterns=[INDEX]))
    is_whole = (folder / INDEX).is_file()
    patterns = config_patterns(folder, options.reader.unwanted) if is_whole else [LONE_CONFIG]
    snapshot_download(model, revision=resolved, allow_patterns=patterns)
    config, needed = check(folder, model, _names(model, resolved), options)
    snapshot_download(model, revision=resolved, allow_patterns=needed.files)
    return checked_checkpoint(folder, model, resolved.resolved, options, config, needed)


def _resolve(model: str, revision: str | None) -> Any:
    """Return the client's resolved revision."""
    if not re.fullmatch("[0-9a-f]{40}", revision or ""):  # a commit is not looked up
        _check_that_it_answers(model, revision)
    return resolve_revision(model, revision=revision)


def _names(model: str, resolved: Any) -> list[str]:
    """Return the paths of all files at a revision."""
    try:
        return [file.path for file in get_cached_repo_tree(model, revision=resolved)]
    except CachedRepoTreeNotFoundError:  # the cache cannot be written to
        tree = list_repo_tree(model, revision=resolved.resolved, recursive=True)
        return [entry.path for entry in tree]


def _alternatives(names: list[str]) -> str:
    """Return a phrase that lists the safetensors files among the names."""
    files = [name for name in names if name.endswith(".safetensors")]
    return f"; it has {', '.join(files[:8])}" if files else ", and no safetensors file"


def _check_that_it_answers(model: str, revision: str | None) -> None:
    """Ask the Hub with a time limit; `resolve_revision` would wait for an answer for ever.

    Other errors are left to that function, which can fall back on the cache.

    Raises:
        RevisionResolutionError: if the Hub does not answer in time.
    """
    try:
        HfApi().repo_info(model, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except httpx2.TimeoutException as error:
        raise RevisionResolutionError(f"{constants.ENDPOINT} does not answer") from error
    except Exception:
        return


def _is_final(error: Exception) -> bool:
    """Return whether an error is final, so that the cache cannot help.

    It is final if the Hub answered, if the disk refused, or if the id is not valid.
    """
    answered = isinstance(error, HfHubHTTPError) and error.response.status_code < 500
    refused = isinstance(error, OSError) and error.errno is not None
    return answered or refused or isinstance(error, HFValidationError)


def _explanation(model: str, revision: str | None, error: Exception) -> str:
    answered = isinstance(error, HfHubHTTPError)
    fields = {
        "hub": constants.ENDPOINT,
        "cache": constants.HF_HUB_CACHE,
        "model": model,
        "revision": revision or constants.DEFAULT_REVISION,
        "status": error.response.status_code if answered else None,
        "reason": first_line(error.__cause__ or error),
        "file": getattr(error, "filename", None) or constants.HF_HUB_CACHE,
        "strerror": getattr(error, "strerror", None),
    }
    text = next((text for kind, text in EXPLANATIONS if isinstance(error, kind)), BROKEN_OFF)
    if text == BROKEN_OFF and isinstance(error, OSError) and error.errno is not None:
        text = REFUSED_BY_DISK
    if text == ANSWERED and fields["status"] in (401, 403):
        text = REFUSED
    return f"{model}: {text.format_map(fields)}"
