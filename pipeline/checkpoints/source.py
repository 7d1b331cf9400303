"""Fetching of a checkpoint, from a folder or the Hub, as a local folder with all needed files."""

from contextlib import suppress
from pathlib import Path

from pipeline.checkpoints.checkpoint import C, Checkpoint, FetchOptions, Reader
from pipeline.checkpoints.folder import FolderCheckpoint, check, list_folder
from pipeline.errors import CheckpointError


def fetch(
    model: str,
    revision: str | None,
    reader: Reader[C],
    prefer_fp16: bool = False,
    weights: bool = True,
) -> Checkpoint[C]:
    """Find a checkpoint in diffusers' layout; from the Hub, download only the needed files.

    The configuration is downloaded first, so that a checkpoint that cannot run is refused before
    its weights are downloaded. Files are stored in the Hub client's cache and not downloaded
    again. If the Hub cannot be reached, the cache is used. `HF_ENDPOINT`, `HF_HOME`, `HF_TOKEN`
    and `HF_HUB_OFFLINE` have their usual meaning.

    Args:
        model: a folder, or an id on the Hub such as `stabilityai/stable-diffusion-xl-base-1.0`.
        revision: a branch, tag or commit on the Hub; None is the main branch.
        reader: reads the configuration, which decides which other files are needed.
        prefer_fp16: whether to prefer weights in half precision: half the download, and enough
            for networks that run in 16 bits. The preference applies to a local folder as well.
        weights: False fetches the configuration alone.

    Raises:
        CheckpointError: if there is no such checkpoint or no access to it, if it is incomplete or
            not supported, or if it cannot be downloaded or stored.
    """
    options = FetchOptions(reader, prefer_fp16, weights)
    folder = Path(model)
    with suppress(RuntimeError):  # "~name" of an unknown user
        folder = folder.expanduser()
    if model and folder.is_dir():
        if revision is not None:
            raise CheckpointError(
                f"{model}: this is a folder, which has no revision {revision!r}; only models on "
                "the Hub have revisions"
            )
        config, needed = check(folder, str(folder), list_folder(folder), options)
        return FolderCheckpoint(folder, folder.resolve().name, None, config, needed.weights)
    if folder.is_file():
        raise CheckpointError(f"{model}: is a file; expected a folder in diffusers' layout")
    # Imported here because the Hub's client takes time to import, and a folder does not need it.
    from pipeline.checkpoints.hub import download

    return download(model, revision, options)
