"""Files that are complete or absent, whenever the process or the machine stops."""

import os
from pathlib import Path

_PART = ".part"


def write_durably(path: Path, content: bytes) -> None:
    """Write a file that has its name only once it is complete and on the disk.

    One process at a time may write to a path.

    Raises:
        OSError: if it cannot be written; the message names it.
    """
    part = path.with_name(f".{path.name}{_PART}")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        reason = f"the file cannot be written: {error.strerror or error}"
        raise OSError(error.errno, reason, str(path)) from error


def part_of(name: str) -> str | None:
    """Return the name of the file that a leftover was to become; None if it is no leftover."""
    is_part = name.startswith(".") and name.endswith(_PART)
    return name[1:].removesuffix(_PART) if is_part else None


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
