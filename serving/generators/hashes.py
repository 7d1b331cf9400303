"""SHA-256 digests of large files, by which other programs know a model."""

import hashlib
import json
import logging
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from serving.folders import File

log = logging.getLogger(__name__)

_MOST = 2**22  # bytes of the file that keeps digests


class Hashes:
    """Digests of files, which a thread computes one after the other; of a path, the latest one's.

    Args:
        file: a file that keeps them for the next start; None for none.
    """

    def __init__(self, file: Path | None) -> None:
        self._kept = file
        self._known: dict[str, str] = _read(file)
        self._asked: set[str] = set()
        self._waiting: SimpleQueue[tuple[str, Path]] = SimpleQueue()
        # A daemon: nothing waits for it when the server ends.
        Thread(target=self._compute, name="hashes", daemon=True).start()

    def of(self, file: File) -> str:
        """Return the digest of a file in hexadecimal digits; "" until it is computed."""
        key = " ".join(map(str, (file.path, *file.stamp)))
        if key not in self._known and key not in self._asked:
            self._asked.add(key)
            self._waiting.put((key, file.path))
        return self._known.get(key, "")

    def _compute(self) -> None:
        while True:
            key, path = self._waiting.get()
            try:
                with path.open("rb") as file:
                    file_digest = hashlib.file_digest(file, "sha256").hexdigest()
                self._known = {
                    known_key: digest
                    for known_key, digest in (*self._known.items(), (key, file_digest))
                    if known_key == key or known_key.rsplit(" ", 3)[0] != str(path)
                }
                if self._kept is not None:
                    part = self._kept.with_suffix(".part")
                    part.write_text(json.dumps(self._known))
                    part.replace(self._kept)
            except OSError as error:
                log.warning("The hash of %s is not known: %s", path.name, error)


def _read(file: Path | None) -> dict[str, str]:
    """Return the digests in a file; none if there is no such file, or it is damaged."""
    with suppress(OSError, TypeError, ValueError, RecursionError):
        if file is not None and file.stat().st_size <= _MOST:
            digests: Any = json.loads(file.read_text())
            return {key: value for key, value in dict(digests).items() if isinstance(value, str)}
    return {}
