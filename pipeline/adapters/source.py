"""Finding of an adapter's file: here, alone in a folder, or on the Hub."""

from pathlib import Path

from pipeline.checkpoints.single_file import SUFFIX
from pipeline.checkpoints.source import file_on_hub, local_path
from pipeline.errors import CheckpointError


def find_adapter(source: str | Path) -> Path:
    """Return an adapter's file; one on the Hub is downloaded to the cache of the Hub's client.

    Args:
        source: a file; a folder with a single `.safetensors` file; or a file on the Hub, such as
            `owner/name/file.safetensors`.

    Raises:
        CheckpointError: if it is not there, or cannot be downloaded.
    """
    path, on_hub = local_path(str(source)), file_on_hub(str(source))
    if path.is_dir():
        return _only_file(path)
    if path.exists():
        return path
    if on_hub is None or not on_hub.path.endswith(SUFFIX):
        raise CheckpointError(
            f"{source}: no such file or folder; on the Hub it would be owner/name/file{SUFFIX}"
        )
    # Imported here because the Hub's client takes time to import, and a file does not need it.
    from pipeline.checkpoints.hub import download_file

    file, _ = download_file(*on_hub, None)
    return file


def _only_file(folder: Path) -> Path:
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() == SUFFIX)
    if len(files) == 1:
        return files[0]
    names = ", ".join(path.name for path in files[:3]) or "none"
    ellipsis = ", ..." if len(files) > 3 else ""
    raise CheckpointError(f"{folder}: expected one {SUFFIX} file in it; found {names}{ellipsis}")
