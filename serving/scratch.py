"""A process's folder for temporary files, and removal of folders that killed processes left."""

import atexit
import fcntl
import logging
import os
import shutil
import stat
import tempfile
from pathlib import Path

log = logging.getLogger(__name__)

_PREFIX = "sdxl-page-"
_made: list[Path] = []


def make_folder() -> Path:
    """Make a folder that is removed when this process ends; first remove those of killed processes.

    Each process keeps its folder locked. The system drops the lock when the process ends, however
    it ends, so a folder without a lock belongs to no process.
    """
    for left_folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        _remove_if_left(left_folder)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        _lock(folder, fcntl.LOCK_EX)  # held until the process ends
        if folder.is_dir():  # another process may have removed it before the lock
            _made.append(folder)
            return folder


@atexit.register
def remove_made() -> None:
    """Remove this process's folders; call it before `os._exit`, which skips `atexit`."""
    for folder in _made:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_if_left(folder: Path) -> None:
    lock = _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if lock is None:
        return
    try:
        shutil.rmtree(folder, ignore_errors=True)
        log.info("Removed %s, which a killed process left behind", folder)
    finally:
        os.close(lock)


def _lock(folder: Path, operation: int) -> int | None:
    """Open and lock a folder; return None if it is gone, in use or not made by this program."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        # `mkdtemp` makes folders that are private to their user, so any other is not ours.
        status = os.fstat(descriptor)
        if status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == 0o700:
            fcntl.flock(descriptor, operation)
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None
