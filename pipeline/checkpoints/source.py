"""Fetching of a checkpoint, from a folder, a file or the Hub, with all needed files local."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pipeline.checkpoints.checkpoint import Checkpoint, Component, FetchOptions, Section
from pipeline.checkpoints.folder import find_component, list_folder, open_folder
from pipeline.checkpoints.single_file import (
    OTHER_FORMATS,
    SUFFIX,
    check_is_safetensors,
    open_section,
    open_single_file,
)
from pipeline.errors import CheckpointError

if TYPE_CHECKING:
    from pipeline.families.reader import FamilyReader


class HubFile(NamedTuple):
    """A file in a repository on the Hub."""

    repository: str
    path: str


def fetch(
    model: str,
    revision: str | None,
    reader: "FamilyReader",
    prefer_fp16: bool = False,
    weights: bool = True,
    ema: bool = False,
) -> Checkpoint:
    """Find a checkpoint; from the Hub, download only the needed files.

    The configuration is downloaded first, so that a checkpoint that cannot run is refused before
    its weights are downloaded. Files are stored in the Hub client's cache and not downloaded
    again. If the Hub cannot be reached, the cache is used. `HF_ENDPOINT`, `HF_HOME`, `HF_TOKEN`
    and `HF_HUB_OFFLINE` have their usual meaning.

    Args:
        model: a folder in diffusers' layout, an id on the Hub such as
            `stabilityai/stable-diffusion-xl-base-1.0`, a single file such as `model.safetensors`,
            or one on the Hub such as `owner/name/model.safetensors`.
        revision: a branch, tag or commit on the Hub; None is the main branch.
        reader: reads the configuration, which decides which other files are needed.
        prefer_fp16: whether to prefer weights in half precision: half the download, and enough
            for networks that run in 16 bits. The preference applies to a local folder as well.
        weights: False fetches the configuration alone. A single file has no configuration beside
            its tensors, so it must be there.
        ema: whether to take the moving average of the UNet's weights, which some single files have.

    Raises:
        CheckpointError: if there is no such checkpoint or no access to it, if it is incomplete or
            not supported, or if it cannot be downloaded or stored.
    """
    options = FetchOptions(reader, prefer_fp16, weights, ema)
    path = local_path(model)
    on_hub = file_on_hub(model)
    if path.exists() and model:
        if revision is not None:
            raise CheckpointError(
                f"{model}: this is a {'file' if path.is_file() else 'folder'}, which has no"
                f" revision {revision!r}; only models on the Hub have revisions"
            )
        if path.is_file():
            check_is_safetensors(str(path))
            return open_single_file(path, path.stem, None, options)
    elif on_hub is not None:
        check_is_safetensors(on_hub.path)
        # Imported here because the Hub's client takes time to import, and others do not need it.
        from pipeline.checkpoints.hub import download_file

        file, commit = download_file(*on_hub, revision, cached_only=not weights)
        return open_single_file(file, model, commit, options)
    if ema:
        raise CheckpointError(
            f"{model}: only single files hold a moving average beside the weights; load it without"
            " ema"
        )
    if model and path.is_dir():
        return open_folder(path, path.resolve().name, None, options)
    _check_not_a_file(model)
    from pipeline.checkpoints.hub import download

    return download(model, revision, options)


def fetch_component(
    source: str, network: str, section: Section, prefer_fp16: bool = False
) -> Component:
    """Find a network that was published by itself, or with a checkpoint.

    Args:
        source: a folder, an id on the Hub, or a single file there or here. A folder and a
            repository have the network's `config.json`, or the network's own folder.
        network: the name of that folder, such as `vae`.
        section: the network's tensors in a single file.
        prefer_fp16: as in `fetch`.

    Raises:
        CheckpointError: if it is not there, cannot be downloaded, or has no safetensors weights.
    """
    path, on_hub, file = local_path(source), file_on_hub(source), None
    if source and path.is_dir():
        files = find_component(list_folder(path), str(path), network, prefer_fp16)
        return files.component(path, path.resolve().name)
    if source and path.is_file():
        check_is_safetensors(str(path))
        file, source = path, path.name
    else:
        from pipeline.checkpoints import hub

        if on_hub is None:
            _check_not_a_file(source)
            folder, files = hub.download_component(source, network, prefer_fp16)
            return files.component(folder, source)
        check_is_safetensors(on_hub.path)
        file, _ = hub.download_file(*on_hub, None)
    return Component(source, file, None, partial(open_section, file, section))


def local_path(model: str) -> Path:
    """Return the path on this machine that a name means."""
    with suppress(RuntimeError):  # "~name" of an unknown user
        return Path(model).expanduser()
    return Path(model)


def file_on_hub(model: str) -> HubFile | None:
    """Return the file on the Hub that a name such as `owner/name/folder/file.safetensors` means."""
    owner, name, *path = [*model.split("/"), "", ""][: max(2, model.count("/") + 1)]
    whole = path and not {"", ".", ".."} & {owner, name, *path} and not owner.startswith("~")
    if whole and model.lower().endswith((SUFFIX, *OTHER_FORMATS)):
        return HubFile(f"{owner}/{name}", "/".join(path))
    return None


def _check_not_a_file(model: str) -> None:
    """Refuse the name of a file that is neither here nor, by its form, on the Hub."""
    if model.lower().endswith((SUFFIX, *OTHER_FORMATS)):
        raise CheckpointError(
            f"{model}: no such file; on the Hub it would be owner/name/file{SUFFIX}"
        )
