"""The journal of a batch: which of its pictures are drawn, with their settings.

`pictures.jsonl` in the batch's folder begins with a line about the whole batch. A line follows for
each picture, before its file gets its name. A process that is killed may leave half a line at the
end, and lines of pictures without files, which the next one leaves out when it goes on.
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

from pipeline.batch.prompts import Batch, Item
from pipeline.errors import InputError
from pipeline.images.files import write_durably
from pipeline.images.metadata import Settings

NAME = "pictures.jsonl"
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
        self._lines: list[bytes] = []  # of pictures that are drawn or failed
        self._writing = Lock()
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._lock()
            self._read({entry.name for entry in os.scandir(folder)})
            self._compare({"batch": batch.digest})
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let other processes open it."""
        os.close(self._folder)

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
        self._compare(drawn_by)
        header = {"pictures": len(self._batch.items), "batch": self._batch.digest, **drawn_by}
        self._header = self._header or header
        for leftover in self._path.parent.glob(".[0-9]*-[0-9]*.png.part"):
            leftover.unlink()
        write_durably(self._path, b"".join([_line(self._header), *self._lines]))

    def add(self, item: Item, settings: Settings) -> None:
        """Note the picture whose file is about to get its name. Any thread may call this."""
        all_settings = {field.name: getattr(settings, field.name) for field in fields(settings)}
        known_settings = {name: value for name, value in all_settings.items() if value is not None}
        self._append({**_place(item), "file": item.name, **known_settings})

    def add_failed(self, item: Item, reason: str) -> None:
        """Note that a picture cannot be drawn. Any thread may call this."""
        self._append({**_place(item), "error": reason})
        self.failed[item.index] = reason

    def _append(self, values: Mapping[str, Any]) -> None:
        line = _line(values)
        with self._writing, self._path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                if os.write(file.fileno(), line) < len(line):
                    raise OSError(f"{self._path}: the disk is full")
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{self._path} is in use by another process; wait for its end, or name another"
                " folder with --out"
            ) from None

    def _read(self, names: set[str]) -> None:
        """Read all complete lines; keep those of pictures with files, and of those that failed."""
        lines = self._path.read_bytes().splitlines(keepends=True) if NAME in names else []
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                self._take(json.loads(line), line, names)
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise InputError(
                    f"{self._path}:{number}: not a line that this program wrote; remove the line if"
                    " it is not the first, or name another folder with --out"
                ) from error
        picture = next(filter(_PICTURE.fullmatch, sorted(names)), None)
        if picture and self._header is None:
            raise InputError(
                f"{self._path.parent} has pictures such as {picture}, but no {NAME} that lists"
                " them; name another folder with --out"
            )

    def _take(self, values: Any, line: bytes, names: set[str]) -> None:
        if self._header is None:
            self._header = dict(values, batch=values["batch"])
        elif "error" in values:
            self.failed[int(values["index"])] = str(values["error"])
            self._lines.append(line)
        elif values["file"] in names:
            self.drawn.add(int(values["index"]))
            self._lines.append(line)

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


def _line(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values).encode() + b"\n"


def _place(item: Item) -> dict[str, Any]:
    return {"index": item.index, "line": item.line.number}
