"""Checkpoints from the Hub, downloaded by its own client into its own cache."""

import re
from pathlib import Path

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

from pipeline.checkpoints.checkpoint import C, Checkpoint, FetchOptions
from pipeline.checkpoints.folder import (
    INDEX,
    LONE_CONFIG,
    FolderCheckpoint,
    check,
    config_patterns,
    list_folder,
)
from pipeline.errors import CheckpointError


def download(model: str, revision: str | None, options: FetchOptions[C]) -> Checkpoint[C]:
    """Download the files of a checkpoint that `pipeline.checkpoints.source.fetch` needs.

    Raises:
        CheckpointError: under the conditions that `fetch` lists.
    """
    try:
        return _from_hub(model, revision, options)
    except CheckpointError:
        raise
    # The client passes on its own errors and those of its transports, which have no common base.
    except Exception as error:
        if _is_final(error):
            raise CheckpointError(_explanation(model, revision, error)) from error
        return _from_cache(model, revision, options, error)


def _from_hub(model: str, revision: str | None, options: FetchOptions[C]) -> Checkpoint[C]:
    if not re.fullmatch("[0-9a-f]{40}", revision or ""):  # a commit is not looked up
        _check_that_it_answers(model, revision)
    resolved = resolve_revision(model, revision=revision)
    folder = Path(snapshot_download(model, revision=resolved, allow_patterns=[INDEX]))
    is_whole = (folder / INDEX).is_file()
    patterns = config_patterns(folder, options.reader.unwanted) if is_whole else [LONE_CONFIG]
    snapshot_download(model, revision=resolved, allow_patterns=patterns)
    try:
        names = [file.path for file in get_cached_repo_tree(model, revision=resolved)]
    except CachedRepoTreeNotFoundError:  # the cache cannot be written to
        tree = list_repo_tree(model, revision=resolved.resolved, recursive=True)
        names = [entry.path for entry in tree]
    config, needed = check(folder, model, names, options)
    snapshot_download(model, revision=resolved, allow_patterns=needed.files)
    return FolderCheckpoint(folder, model, resolved.resolved, config, needed.weights)


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


def _from_cache(
    model: str, revision: str | None, options: FetchOptions[C], reason: Exception
) -> Checkpoint[C]:
    """Return the checkpoint from the cache, in whichever precision is there.

    Raises:
        CheckpointError: if the cache does not hold a complete checkpoint.
    """
    try:
        # Without patterns the client would insist on every file of the repository.
        folder = Path(
            snapshot_download(model, revision=revision, allow_patterns=[], local_files_only=True)
        )
    except LocalEntryNotFoundError:
        raise CheckpointError(_explanation(model, revision, reason)) from reason
    try:
        config, needed = check(folder, str(folder), list_folder(folder), options)
    except CheckpointError as error:
        message = f"{_explanation(model, revision, reason)} In the cache: {error}"
        raise CheckpointError(message) from reason
    return FolderCheckpoint(folder, model, folder.name, config, needed.weights)


def _is_final(error: Exception) -> bool:
    """Return whether an error is final, so that the cache cannot help.

    It is final if the Hub answered, if the disk refused, or if the id is not valid.
    """
    answered = isinstance(error, HfHubHTTPError) and error.response.status_code < 500
    refused = isinstance(error, OSError) and error.errno is not None
    return answered or refused or isinstance(error, HFValidationError)


def _explanation(model: str, revision: str | None, error: Exception) -> str:
    hub = constants.ENDPOINT
    match error:
        case HFValidationError():
            return f"{model}: no such folder, and not a valid id of a model on the Hub"
        case GatedRepoError():
            return (
                f"{model}: access must be requested at {hub}/{model}; then set HF_TOKEN to a token "
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
                f"revision {wanted!r} is not complete in the cache, {constants.HF_HUB_CACHE}."
            )
        case OSError() if error.errno is not None:
            return (
                f"{model}: {error.filename or constants.HF_HUB_CACHE}: {error.strerror}; the cache "
                "needs room and write access, and HF_HOME can put it elsewhere"
            )
        case _:
            return (
                f"{model}: the download from {hub} broke off ({_first_line(error)}); start again "
                "to resume it; complete files are kept."
            )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).split("\n")), "") or type(error).__name__
