"""Files with secrets, which an operator may change while the server runs."""

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from serving.folders import stamp_of

log = logging.getLogger(__name__)

# Seconds from the last change of a file until it is read: whoever writes it has finished then.
SETTLED_S = 1.0


class WatchedFile:
    """The entries of a file, which calling this returns; it is read again when it has changed.

    If the file cannot be used any more, what it said before still counts, and the log says so once.

    Args:
        setting: the setting that names the file, for messages.
        path: the file.
        parse: returns the entries of a text; raises `ValueError` if it is wrong.

    Raises:
        ValueError: if the file cannot be used; the message names the setting and the file.
    """

    def __init__(
        self, setting: str, path: Path, parse: Callable[[str], Mapping[str, bytes]]
    ) -> None:
        self._setting = setting
        self._path = path
        self._parse = parse
        self._stamp = stamp_of(path)  # before the file is read, so that no change is missed
        self._entries = self._read()

    def __call__(self) -> Mapping[str, bytes]:
        """Return the entries of the file, except for changes in the last `SETTLED_S` seconds."""
        stamp = stamp_of(self._path)
        is_settled = stamp is None or not 0 <= time.time() - stamp.mtime_ns / 1e9 < SETTLED_S
        if stamp != self._stamp and is_settled:
            self._stamp = stamp
            try:
                self._entries = self._read()
            except ValueError as error:
                log.warning("%s. What it said before still counts", error)
        return self._entries

    def _read(self) -> Mapping[str, bytes]:
        try:
            if entries := self._parse(self._path.read_text(encoding="utf-8")):
                return entries
            raise ValueError("it is empty; write one entry on each line")
        except (OSError, ValueError) as error:
            raise ValueError(f"{self._setting}: {self._path} cannot be used: {error}") from None
