"""The embeddings of a folder that may change while the server runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from pipeline import CheckpointError, InputError
from pipeline.checkpoints.tensors import PICKLE_SUFFIXES
from pipeline.facts import EmbeddingFacts
from pipeline.text.embeddings import is_embedding_name
from serving.folders import File, Folder, Listing, Stamp

if TYPE_CHECKING:
    from pipeline import SDXLPipeline

log = logging.getLogger(__name__)

_MOST_NAMED = 10  # files in a line of the log


class EmbeddingFolder:
    """A folder with textual inversions, and the pipeline that loads them.

    A file that cannot be used is logged and left out until it changes; its name is then an ordinary
    word. `clock` is that of `Folder`.
    """

    def __init__(
        self, pipe: SDXLPipeline, path: Path, clock: Callable[[], float] = time.time
    ) -> None:
        self._pipe = pipe
        self._path = path
        self._pickles: set[str] = set()
        self._folder = Folder(path, "EMBEDDING_DIR", is_embedding_name, clock=clock)
        self._lock = Lock()
        self._listing = Listing()
        self._loaded: dict[str, File] = {}
        self._unusable: set[tuple[Path, Stamp]] = set()

    def refresh(self) -> None:
        """Let the pipeline's embeddings be those in the folder. Any thread may call this."""
        with self._lock:
            listing = self._folder.look()
            if listing is self._listing:
                return
            self._listing = listing
            self._note_pickles()
            for name in list(self._loaded):
                if name not in listing.files:
                    self._forget(name)
            self._unusable &= {file.version for file in listing.files.values()}
            for name, file in listing.files.items():
                if self._loaded.get(name) != file and file.version not in self._unusable:
                    self._load(name, file)

    def describe(self) -> tuple[EmbeddingFacts, ...]:
        """Return descriptions of the embeddings in the folder, sorted by name; they are loaded."""
        self.refresh()
        return self._pipe.facts.embeddings

    def _note_pickles(self) -> None:
        names = {file.name for file in self._path.glob("*") if file.suffix in PICKLE_SUFFIXES}
        if new_names := sorted(names - self._pickles)[:_MOST_NAMED]:
            log.warning(
                "EMBEDDING_DIR has files other than .safetensors, which can run code and are never"
                " opened: %s",
                ", ".join(new_names),
            )
        self._pickles |= names

    def _load(self, name: str, file: File) -> None:
        try:
            self._pipe.load_embedding(file.path, name, replace=name in self._loaded)
        except (CheckpointError, InputError) as error:
            log.warning("An embedding is left out: %s", error)
            self._unusable.add(file.version)
            if name in self._loaded:
                self._forget(name)
        else:
            self._loaded[name] = file

    def _forget(self, name: str) -> None:
        del self._loaded[name]
        self._pipe.unload_embedding(name)
