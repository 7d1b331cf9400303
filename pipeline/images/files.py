"""Files that are complete or absent, whenever the process or the machine stops."""

import os
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """Write a file that has its name only once it is complete and on the disk.

    One process at a time may write to a path.

    Raises:
        OSError: if it cannot be written; the message names it.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        part.unlink(missing_ok=True)
        reason = f"the file cannot be written: {error.strerror or error}"
        raise OSError(error.errno, reason, str(path)) from error
