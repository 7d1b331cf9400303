"""Finished pictures, as files that Gradio serves."""

import asyncio
import logging
import re
import secrets
import shutil
import threading
import time
import unicodedata
from collections import Counter, OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from serving.generator import ErrorKind, RequestError
from serving.messages import Code, Message
from ui.gradio_compat.context import current_request, upload_folder

log = logging.getLogger(__name__)

# Bytes on disk, of all addresses and of one. Beyond these limits the oldest files are removed: of
# the address over its own limit, or of the one that has most.
MOST_BYTES, MOST_BYTES_EACH = 2**33, 2**31


class _Disk:
    """The saved folders, oldest first, with the address that each was drawn for and its size."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folders: OrderedDict[Path, tuple[str, int]] = OrderedDict()
        self._used: Counter[str] = Counter()

    def add(self, folder: Path, address: str, size: int) -> None:
        """Note a new folder, and remove the oldest until all limits hold."""
        with self._lock:
            self._folders[folder] = address, size
            self._used[address] += size
            while self._used[address] > MOST_BYTES_EACH:
                self._remove_oldest(address)
            while self._used.total() > MOST_BYTES:
                self._remove_oldest(self._used.most_common(1)[0][0])

    def forget_missing(self) -> None:
        """Stop counting the folders that are gone."""
        with self._lock:
            for folder in [path for path in self._folders if not path.is_dir()]:
                self._forget(folder)

    def _remove_oldest(self, address: str) -> None:
        oldest_folder = next(
            folder for folder, (owner, _) in self._folders.items() if owner == address
        )
        shutil.rmtree(oldest_folder, ignore_errors=True)
        self._forget(oldest_folder)

    def _forget(self, folder: Path) -> None:
        address, size = self._folders.pop(folder)
        self._used[address] -= size
        if not self._used[address]:
            del self._used[address]


_disk = _Disk()


def save(pictures: Mapping[str, bytes]) -> list[Path]:
    """Write files, by name, into a new folder that Gradio serves, until `remove_old` removes it.

    The folder's name cannot be guessed, because anybody who knows a file's address can read it.

    Raises:
        RequestError: if a file cannot be written; then none is kept.
    """
    folder = upload_folder() / secrets.token_urlsafe(16)
    paths = [folder / name for name in pictures]
    try:
        folder.mkdir(parents=True)
        for path, content in zip(paths, pictures.values(), strict=True):
            path.write_bytes(content)
    except OSError as error:
        log.error("Pictures cannot be written to %s: %s", folder.parent, error.strerror)
        shutil.rmtree(folder, ignore_errors=True)
        raise RequestError(Message(Code.NO_ROOM), ErrorKind.FAILED) from error
    _disk.add(folder, _address(), sum(map(len, pictures.values())))
    return paths


def _address() -> str:
    """Return the client's address of the call that Gradio is answering, or "" without a call."""
    request = current_request()
    return request.client.host if request is not None and request.client else ""


async def remove_old(kept_s: float, every_s: float) -> None:
    """Remove, every `every_s` seconds, the folders saved or uploaded more than `kept_s` ago.

    Gradio itself would leave the files of pictures that programs asked for.
    """
    while True:
        await asyncio.sleep(every_s)
        await asyncio.to_thread(_remove_older, time.time() - kept_s)


def _remove_older(before: float) -> None:
    for folder in upload_folder().glob("*/"):
        with suppress(OSError):
            if folder.stat().st_mtime < before:
                shutil.rmtree(folder)
    _disk.forget_missing()


def name(prompt: str, seed: int, variation: int | None = None) -> str:
    """Return a safe file name that differs between pictures, and between variations of one."""
    return f"{_slug(prompt)}-{seed}{'' if variation is None else f'-{variation}'}.png"


def _slug(prompt: str, length: int = 60) -> str:
    ascii_only = unicodedata.normalize("NFKD", prompt).encode("ascii", "ignore").decode()
    hyphenated = re.sub(r"[^a-z0-9]+", "-", ascii_only.lower()).strip("-")
    return hyphenated[:length].rstrip("-") or "picture"
