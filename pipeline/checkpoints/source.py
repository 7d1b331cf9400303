"""A checkpoint named by folder or by Hub id, as a local folder that holds all that is needed."""

from contextlib import suppress
from pathlib import Path

from pipeline.checkpoints.folder import Checkpoint, Wanted, check, list_folder
from pipeline.errors import CheckpointError


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
        prefer_fp16: use weights in half precision where they are offered: half the download,
            and enough for networks that run in 16 bits. A folder with both precisions is read in
            the same one that would be downloaded.
        scheduler: takes the place of the checkpoint's own, as in `read_config`.
        safety_checker: False does without the checkpoint's safety checker.

    Raises:
        CheckpointError: there is no such checkpoint or no access to it, it is not complete or
            not supported, or it cannot be downloaded or stored.
    """
    wanted = Wanted(prefer_fp16, scheduler, safety_checker)
    folder = Path(model)
    with suppress(RuntimeError):  # "~somebody" who does not exist
        folder = folder.expanduser()
    if model and folder.is_dir():
        if revision is not None:
            raise CheckpointError(
                f"{model}: this is a folder, which has no revision {revision!r}; only models on "
                "the Hub have revisions"
            )
        needed = check(folder, str(folder), list_folder(folder), wanted)
        return Checkpoint(folder, folder.resolve().name, None, needed.weights)
    if folder.is_file():
        raise CheckpointError(f"{model}: is a file; expected a folder in diffusers' layout")
    # Here, because the Hub's client takes time to import, and a folder needs none.
    from pipeline.checkpoints.hub import download

    return download(model, revision, wanted)
