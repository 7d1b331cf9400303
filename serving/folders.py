"""A folder of `.safetensors` files, or of folders, that may change while the server runs."""

import logging
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeAlias

from pipeline.checkpoints.tensors import PICKLE_SUFFIXES, described_size, open_file, read_header
from pipeline.errors import CheckpointError

log = logging.getLogger(__name__)

SUFFIX = ".safetensors"
# Between two looks at the folder. A look reads the names and the sizes of all files.
RESCAN_S = 1.0
# A file that was written to within this time may still be growing.
SETTLED_S = 1.0
# Looks at a file that lacks bytes and does not change, after which nobody is copying it any more.
LOOKS = 10
MOST_FILES = 1000  # more would make the description of the model too long for its readers
_DEEPEST = 8  # levels of sub-folders
_UNREAD = (*PICKLE_SUFFIXES, ".gguf")  # endings of models in formats that are never opened
_MOST_NAMED = 10  # files in a line of the log

Entry: TypeAlias = "os.DirEntry[str]"


class Stamp(NamedTuple):
    """Values that tell two versions of a file, or of a folder, apart without reading it."""

    inode: int
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class File:
    """A complete file, and the version of it that was seen.

    Attributes:
        path: its path; opening it leads nowhere else than into the folder.
        stamp: the version.
        beside: the files beside it that describe it, by what follows its name: ".txt" and so on.
    """

    path: Path
    stamp: Stamp
    beside: Mapping[str, "File"] = field(default_factory=dict)

    @property
    def version(self) -> tuple[Path, Stamp]:
        """The path and the stamp, which differ between two versions of the file."""
        return self.path, self.stamp


@dataclass(frozen=True)
class Listing:
    """The files of a folder at one moment.

    Attributes:
        files: the file of each name.
        doubled: the paths, relative to the folder, of files that share a name. Such a name is not
            among `files`.
    """

    files: Mapping[str, File] = field(default_factory=dict)
    doubled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Folder:
    """The files of a folder and its sub-folders by name, which is a file's name without suffix.

    Files that are incomplete, hidden, or links to somewhere outside the folder are left out. Any
    thread may call its methods.

    Args:
        path: the folder, which may be missing at times.
        setting: the setting that names it, for the log.
        is_name: whether a name can be used.
        beside: endings of the files beside each file that describe it.
        clock: the time in seconds since the epoch, as files have it.
        index: the name of a file whose folder counts as one file, with all that is in it; "" for
            none.
    """

    def __init__(
        self,
        path: Path,
        setting: str,
        is_name: Callable[[str], bool] = lambda _: True,
        beside: Sequence[str] = (),
        clock: Callable[[], float] = time.time,
        index: str = "",
    ) -> None:
        self._index = index
        self._root = path.resolve()
        self._setting = setting
        self._is_name = is_name
        self._beside = beside
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_at: float | None = None
        self._seen: dict[Path, Stamp] = {}
        self._whole: dict[tuple[Path, Stamp], bool] = {}
        self._looks: Counter[tuple[Path, Stamp]] = Counter()  # at files that are not whole
        self._warned: set[str] = set()
        self._listing = Listing()

    def look(self) -> Listing:
        """Return the files, which are searched for at most once in `RESCAN_S` seconds.

        The listing is the same object for as long as nothing changes.
        """
        with self._lock:
            now = self._clock()
            if self._looked_at is None or not 0 <= now - self._looked_at < RESCAN_S:
                self._looked_at = now
                self._rescan(now)
            return self._listing

    def _rescan(self, now: float) -> None:
        if not self._root.is_dir():
            self._warn(f"is {self._root}, which cannot be read as a folder")
        files: dict[str, list[File]] = {}
        seen: dict[Path, Stamp] = {}
        for path, beside in self._paths():
            if len(seen) == MOST_FILES:
                self._warn(f"has more than {MOST_FILES} files; the others are left out")
                break
            if (stamp := stamp_of(path)) is None:
                continue
            seen[path] = stamp
            file = File(path, stamp, beside)
            if self._is_settled(file, now) and self._is_whole(file):
                files.setdefault(name_of(path), []).append(file)
        self._seen = seen
        self._whole = {key: whole for key, whole in self._whole.items() if key[0] in seen}
        self._looks = Counter({key: n for key, n in self._looks.items() if key in self._whole})
        listing = self._listed(files)
        if listing != self._listing:
            self._listing = listing

    def _listed(self, by_name: Mapping[str, list[File]]) -> Listing:
        files = {name: same[0] for name, same in sorted(by_name.items()) if len(same) == 1}
        doubled = {
            name: tuple(sorted(file.path.relative_to(self._root).as_posix() for file in same))
            for name, same in sorted(by_name.items())
            if len(same) > 1
        }
        for name, paths in doubled.items():
            others = ", ".join(paths)
            self._warn(f"has several files named {name!r}, none of which is used: {others}")
        return Listing(files, doubled)

    def _paths(self) -> Iterator[tuple[Path, dict[str, File]]]:
        """Yield the files with a usable name, with the files beside each, in a fixed order."""
        levels, unread = [(self._root, 0)], list[str]()
        while levels:
            folder, depth = levels.pop()
            entries = _entries(folder)
            for name, entry in entries.items():
                path = Path(entry.path)
                is_folder = entry.is_dir(follow_symlinks=False)
                is_file = name.endswith(SUFFIX) and not is_folder
                if is_file or (is_folder and self._index and (path / self._index).is_file()):
                    if self._may_be_used(entry):
                        yield path, self._described_by(name_of(path), entries)
                elif is_folder and not name.isprintable():
                    self._warn(f"has a folder whose name cannot be used; rename it: {name!r}")
                elif is_folder and depth < _DEEPEST:
                    levels.append((path, depth + 1))
                elif not is_folder and name.endswith(_UNREAD):
                    unread.append(repr(path.relative_to(self._root).as_posix()))
        if unread:
            names = ", ".join(unread[:_MOST_NAMED])
            self._warn(f"has files that are never opened, as they are not .safetensors: {names}")

    def _may_be_used(self, entry: Entry) -> bool:
        path = Path(entry.path)
        relative = path.relative_to(self._root).as_posix()
        if not self._is_inside(entry):
            self._warn(f"has a link that leads out of it, which is not followed: {relative!r}")
            return False
        if not self._is_name(name_of(path)):
            self._warn(f"has a file whose name cannot be used; rename it: {relative!r}")
            return False
        return True

    def _is_inside(self, entry: Entry) -> bool:
        path = Path(entry.path)
        try:
            parts = [path, *(files_in(path) if path.is_dir() else ())]
            return all(part.resolve().is_relative_to(self._root) for part in parts)
        except (OSError, RuntimeError):  # a link to itself
            return False

    def _described_by(self, stem: str, entries: Mapping[str, Entry]) -> dict[str, File]:
        found: dict[str, File] = {}
        for ending in self._beside:
            entry = entries.get(stem + ending)
            if entry and self._is_inside(entry) and (stamp := stamp_of(Path(entry.path))):
                found[ending] = File(Path(entry.path), stamp)
        return found

    def _is_settled(self, file: File, now: float) -> bool:
        age = now - file.stamp.mtime_ns / 1e9
        return age >= SETTLED_S or self._seen.get(file.path) == file.stamp

    def _is_whole(self, file: File) -> bool:
        if file.version not in self._whole:
            self._whole[file.version] = is_whole(file.path)
        if not self._whole[file.version]:
            self._looks[file.version] += 1
            if self._looks[file.version] == LOOKS:
                relative = file.path.relative_to(self._root).as_posix()
                self._warn(f"leaves out {relative}: {_fault(file.path)}")
        return self._whole[file.version]

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s %s", self._setting, text)


def _entries(folder: Path) -> dict[str, Entry]:
    """Return what is in a folder and not hidden, by name, in order."""
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError:  # it was removed, or may not be read
        return {}
    return {entry.name: entry for entry in found if not entry.name.startswith(".")}


def name_of(path: Path) -> str:
    """Return the name of a file without its suffix, or of a folder."""
    return path.name.removesuffix(SUFFIX)


def stamp_of(path: Path) -> Stamp | None:
    """Return the stamp of a file or of all files in a folder; None if it is gone, or neither."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            inside = [file.stat() for file in files_in(path)]
            newest = max(each.st_mtime_ns for each in [status, *inside])
            # A file that replaces another one may be as large, and older than the rest.
            contents = hash(tuple(sorted((file.st_ino, file.st_mtime_ns) for file in inside)))
            return Stamp(contents, sum(file.st_size for file in inside), newest)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return Stamp(status.st_ino, status.st_size, status.st_mtime_ns)


def files_in(folder: Path) -> list[Path]:
    """Return the files in a folder and in those directly below it, no more than are looked at."""
    paths = islice((path for part in ("*", "*/*") for path in folder.glob(part)), MOST_FILES)
    return [path for path in paths if path.is_file()]


def is_whole(path: Path) -> bool:
    """Return whether a safetensors file, or each in a folder, has all bytes of its header's.

    A file that is not complete is no error: it may still be copied. One whose header is too large
    to be read never is.
    """
    if path.is_dir():
        return all(is_whole(each) for each in files_in(path) if each.name.endswith(SUFFIX))
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            return described_size(read_header(file)) == size
    except (OSError, ValueError):
        return False


def _fault(path: Path) -> str:
    """Return what is wrong with a file, or the first one in a folder, that is not whole."""
    for file in files_in(path) if path.is_dir() else [path]:
        try:
            if file.name.endswith(SUFFIX):
                open_file(file).close()
        except CheckpointError as error:
            return str(error).removeprefix(f"{path}: ").removeprefix(f"{path}/")
    return "it changes"
