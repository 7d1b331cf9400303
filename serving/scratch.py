"""A process's own folder for temporary files, and those that killed processes left behind."""

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
    """A folder that ends with this process; others whose process was killed are removed first.

    Its process keeps a folder locked, so that one without a lock is nobody's: the system drops
    the lock with the process, however that ends.
    """
    for found in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        _remove_if_left(found)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        _lock(folder, fcntl.LOCK_EX)  # and never let go
        if folder.is_dir():  # another process may have been quicker, and removed it
            _made.append(folder)
            return folder


@atexit.register
def remove_made() -> None:
    """Removes this process's own; for who ends it in a way that Python does not hear of."""
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


def _lock(folder: Path, how: int) -> int | None:
    """The open, locked folder; None where it is gone, in use or not one of ours."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        # They are private to their user: what is not was not made here.
        found = os.fstat(opened)
        if found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) == 0o700:
            fcntl.flock(opened, how)
            return opened
    except OSError:
        pass
    os.close(opened)
    return None
