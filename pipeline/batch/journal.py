"""The journal of a batch: which of its pictures are drawn, with their settings.

`pictures.jsonl` in the batch's folder begins with a line about the whole batch. A line follows for
each picture, once its file is on the disk. A process that is killed may leave half a line at the
end, which the next one removes, and a picture without a line, which the next one takes over.
"""

import fcntl
import json
import os
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from threading import Lock
from typing import Any, Self

from pipeline.batch.files import part_of, sync_folder
from pipeline.batch.prompts import Batch, Item
from pipeline.errors import InputError, MetadataError
from pipeline.images import metadata
from pipeline.images.metadata import Settings

NAME = "pictures.jsonl"
_FORMAT = 1
# Names of keys of the first line, in messages.
_TITLES = {"batch": "prompts or settings", "version": "version of JAX or dtype"}
_PICTURE = re.compile(r"\d{6}-\d{1,10}\.png")


class Journal:
    """The journal of a batch in its folder; no other process can open it meanwhile.

    Args:
        folder: the folder, which exists.
        batch: the batch.

    Attributes:
        drawn: the indices of the pictures whose files are complete.
        failed: why each of the pictures that cannot be drawn failed, by index.

    Raises:
        InputError: if the folder belongs to another batch, or another process draws into it, or
            the journal is damaged.
        OSError: if it cannot be read or written.
    """

    def __init__(self, folder: Path, batch: Batch):
        self.drawn: set[int] = set()
        self.failed: dict[int, str] = {}
        self._path = folder / NAME
        self._batch = batch
        self._header: dict[str, Any] | None = None
        self._writing = Lock()
        self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            self._lock()
            self._size = self._read()
            self._compare({"batch": batch.digest})
            self._look_into(folder)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let other processes open it."""
        os.close(self._file)

    @property
    def left(self) -> list[Item]:
        """The pictures that are neither drawn nor failed."""
        over = self.drawn | self.failed.keys()
        return [item for item in self._batch.items if item.index not in over]

    def begin(self, drawn_by: Mapping[str, Any]) -> None:
        """Note what draws the pictures, or compare it with what has drawn the earlier ones.

        Raises:
            InputError: if it differs.
        """
        if self._header is not None:
            return self._compare(drawn_by)
        header = {"format": _FORMAT, "pictures": len(self._batch.items)}
        self._header = {**header, "batch": self._batch.digest, **drawn_by}
        self._append(self._header)
        sync_folder(self._path.parent)
        return None

    def add(self, item: Item, settings: Settings) -> None:
        """Note that the file of a picture is complete. Any thread may call this."""
        all_settings = {field.name: getattr(settings, field.name) for field in fields(settings)}
        known_settings = {name: value for name, value in all_settings.items() if value is not None}
        self._append({**_place(item), "file": item.name, **known_settings})
        self.drawn.add(item.index)

    def add_failed(self, item: Item, reason: str) -> None:
        """Note that a picture cannot be drawn. Any thread may call this."""
        self._append({**_place(item), "error": reason})
        self.failed[item.index] = reason

    def _append(self, values: Mapping[str, Any]) -> None:
        line = json.dumps(values).encode() + b"\n"
        with self._writing:
            try:
                count = os.write(self._file, line)
                if count < len(line):
                    raise OSError(f"{self._path}: the disk is full")
                os.fsync(self._file)
            except OSError:
                os.ftruncate(self._file, self._size)
                raise
            self._size += len(line)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{self._path} is in use by another process; wait for its end, or name another"
                " folder with --out"
            ) from None

    def _read(self) -> int:
        """Read all complete lines, remove the end of an incomplete one, and return the size."""
        size = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    os.ftruncate(self._file, size)
                    os.fsync(self._file)
                    break
                self._take(number, line)
                size += len(line)
        return size

    def _take(self, number: int, line: bytes) -> None:
        try:
            values = json.loads(line)
            if number == 1:
                _check_header(values)
                self._header = values
            elif "error" in values:
                self.failed[int(values["index"])] = str(values["error"])
            else:
                self.drawn.add(int(values["index"]))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError(
                f"{self._path}:{number}: not a line that this program wrote; remove the line if it"
                " is not the first, or name another folder with --out"
            ) from error

    def _compare(self, header: Mapping[str, Any]) -> None:
        """Raise InputError if the batch of the journal is another one."""
        if self._header is None:
            return
        differences = [
            _TITLES.get(key, key) for key in header if header[key] != self._header.get(key)
        ]
        if differences:
            raise InputError(
                f"{self._path} belongs to another batch, with other {', '.join(differences)}; give"
                " the same prompts, settings and model to go on with it, or name another folder"
                " with --out"
            )

    def _look_into(self, folder: Path) -> None:
        """Find the files of pictures, take over those without a line, and remove leftovers."""
        names = {entry.name for entry in os.scandir(folder)}
        if self._header is None:
            if picture := next(filter(_PICTURE.fullmatch, sorted(names)), None):
                raise InputError(
                    f"{folder} has pictures such as {picture}, but no {NAME} that lists them; name"
                    " another folder with --out"
                )
            return
        for name in names:
            if _PICTURE.fullmatch(part_of(name) or ""):
                (folder / name).unlink(missing_ok=True)
        noted_indices = self.drawn
        self.drawn = {item.index for item in self._batch.items if item.name in names}
        for item in self._batch.items:
            if item.index in self.drawn - noted_indices:
                self._take_over(item, folder / item.name)

    def _take_over(self, item: Item, file: Path) -> None:
        try:
            settings = metadata.read(file)
        except MetadataError:
            settings = None
        if settings is None:
            raise InputError(
                f"{file} is not a picture of this batch; remove it, or name another folder with"
                " --out"
            )
        self.add(item, settings)


def _check_header(values: Any) -> None:
    if values["format"] != _FORMAT:
        raise ValueError("a journal of another format")


def _place(item: Item) -> dict[str, Any]:
    return {"index": item.index, "line": item.line.number}
