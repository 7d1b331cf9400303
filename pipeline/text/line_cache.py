"""Lines of text files, which are read once for each version of a file."""

import sys
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from pipeline.file_versions import Version


class _Entry(NamedTuple):
    version: Version
    lines: tuple[str, ...]
    bytes: int


class LineCache:
    """The lines of the files that were used last. Any thread may call it.

    Args:
        most_bytes: limit of the memory of all lines.
        most_files: limit of the number of files.
    """

    def __init__(self, most_bytes: int = 2**27, most_files: int = 10_000) -> None:
        self._most_bytes = most_bytes
        self._most_files = most_files
        self._lock = Lock()
        self._entries: OrderedDict[Path, _Entry] = OrderedDict()  # the one used last is last
        self._bytes = 0

    def lines(self, file: Path, version: Version) -> tuple[str, ...]:
        """Return a file's lines without blank ones and those that begin with #.

        A file that holds NUL is no text, and has no lines.

        Args:
            file: the file.
            version: its present version.

        Raises:
            OSError: if it cannot be read.
            ValueError: if it is not in UTF-8.
        """
        with self._lock:
            entry = self._entries.pop(file, None)
            if entry is None or entry.version != version:
                self._bytes -= entry.bytes if entry else 0
                lines = _read(file, version.size)
                size = sys.getsizeof(lines) + sum(map(sys.getsizeof, lines))
                entry = _Entry(version, lines, size)
                self._bytes += size
            self._entries[file] = entry
            while self._bytes > self._most_bytes or len(self._entries) > self._most_files:
                self._bytes -= self._entries.popitem(last=False)[1].bytes
            return entry.lines


def _read(file: Path, size: int) -> tuple[str, ...]:
    with file.open("rb") as stream:
        text = stream.read(size).decode("utf-8-sig")
    if "\0" in text:
        return ()
    lines = map(str.strip, text.splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))
