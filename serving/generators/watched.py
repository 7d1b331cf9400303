"""Folders of the operator's that may change while the server runs: LoRAs, models, embeddings."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pipeline import CheckpointError, DeviceError, InputError
from pipeline.checkpoints.folder import INDEX
from pipeline.errors import raise_if_cancelled
from pipeline.facts import ControlFacts, EmbeddingFacts, LoraFacts, ModelFacts
from pipeline.text.embeddings import is_embedding_name
from pipeline.text.loras import is_lora_name
from serving.folders import File, Folder, Listing, Stamp, files_in
from serving.generator import ErrorKind, RequestError
from serving.generators.descriptions import BESIDE, describe, thumbnail
from serving.messages import Code, Message

if TYPE_CHECKING:
    from pipeline import SDXLPipeline

log = logging.getLogger(__name__)

F = TypeVar("F", LoraFacts, ModelFacts, EmbeddingFacts, ControlFacts)

# Bytes of the files whose LoRAs are kept in memory. A LoRA of SDXL has 20 to 900 MB, most have 220.
MOST_BYTES = 2 * 2**30
# Seconds of a processor that loading a LoRA may take; the largest ones take a few.
MOST_SECONDS = 60.0
_MOST_HASHES = 2**22  # bytes of the file that keeps digests
_MOST_TEXT = 2**25  # bytes; those of published models have at most 8 MiB
_MOST_REASON = 500  # characters; a reason may quote a list from a file


class WatchedFolder(Generic[F]):
    """A folder and the facts about its files, of which those that changed are read anew.

    Any thread may call its methods. A subclass says what to do with a file that comes or goes.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._lock = Lock()
        self._listing = Listing()
        self._entries: dict[str, tuple[File, F | None]] = {}

    @property
    def files(self) -> Mapping[str, File]:
        """The file of each name at present."""
        return self._folder.look().files

    def describe(self) -> tuple[F, ...]:
        """Return the facts about the files at present, sorted by name."""
        with self._lock:
            self._update()
            facts = [facts for _, facts in self._entries.values() if facts is not None]
            return tuple(sorted(self._all(facts), key=lambda entry: entry.name))

    def refresh(self) -> None:
        """Do what is to be done with files that came, changed or have gone."""
        with self._lock:
            self._update()

    def thumbnail(self, name: str) -> bytes | None:
        """Return a small picture of what a file holds; one thread at a time, as it takes memory."""
        return thumbnail(self.files.get(name))

    def _update(self) -> None:
        listing = self._folder.look()
        if listing is self._listing:
            return
        self._listing = listing
        for name in self._entries.keys() - listing.files.keys():
            self._remove(name, self._entries.pop(name)[1])
        for name, file in listing.files.items():
            old_file, old_facts = self._entries.get(name, (None, None))
            if file != old_file:
                self._entries[name] = file, self._read(name, file, old_file, old_facts)

    def _read(self, name: str, file: File, old_file: File | None, old_facts: F | None) -> F | None:
        """Return the facts about a file, which is new or has changed; None to leave it out."""
        raise NotImplementedError

    def _remove(self, name: str, facts: F | None) -> None:
        """Forget a file that has gone."""

    def _all(self, facts: list[F]) -> Iterable[F]:
        """Return the facts to show, with those about names that cannot be used."""
        return facts


class LoraFolder(WatchedFolder[LoraFacts]):
    """A folder with LoRAs, which are loaded when they are first asked for; see `LoadedLoras`."""

    def __init__(self, path: Path) -> None:
        super().__init__(Folder(path, "LORA_DIR", is_lora_name, BESIDE))

    def _read(
        self, name: str, file: File, old_file: File | None, old_facts: LoraFacts | None
    ) -> LoraFacts:
        about = describe(file)
        return LoraFacts(name, about.title or name, about.words, about.digest, about.pictured)

    def _all(self, facts: list[LoraFacts]) -> Iterable[LoraFacts]:
        # Versions of one LoRA may have one title.
        counts = Counter(lora.title for lora in facts)
        for lora in facts:
            yield lora if counts[lora.title] == 1 else replace(lora, title=lora.name)
        for name, paths in self._listing.doubled.items():
            yield LoraFacts(name, name, doubled=paths)


class LoadedLoras:
    """LoRAs that are loaded when they are first asked for; the latest ones asked for are kept.

    Its methods change the pipeline, so one thread at a time calls them. A file that cannot be used,
    or takes too long, is logged and not tried again until it changes.

    Args:
        pipe: the pipeline.
        folder: the folder of the LoRAs.
        clock: the time in seconds that the calling thread has computed.
    """

    def __init__(
        self,
        pipe: SDXLPipeline,
        folder: LoraFolder,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._pipe = pipe
        self._folder = folder
        self._clock = clock
        self._loaded: OrderedDict[str, File] = OrderedDict()  # the latest one asked for is last
        self._unusable: set[tuple[Path, Stamp]] = set()

    def prepare(self, names: Iterable[str], cancelled: Event) -> None:
        """Load the LoRAs of these names, and remove others that leave too little room.

        Raises:
            Cancelled: if `cancelled` is set.
            RequestError: if one is not there, or its file cannot be used.
        """
        self._tidy()
        wanted_names = set(names)
        for name in sorted(wanted_names):
            raise_if_cancelled(cancelled)
            self._load(name)
            self._loaded.move_to_end(name)
        for name in [name for name in self._loaded if name not in wanted_names]:
            if sum(file.stamp.size for file in self._loaded.values()) <= MOST_BYTES:
                break
            self._unload(name)

    def _tidy(self) -> None:
        """Remove the LoRAs whose files were removed or replaced."""
        files = self._folder.files
        self._unusable &= {file.version for file in files.values()}
        for name, file in list(self._loaded.items()):
            if name not in files or files[name].version != file.version:
                self._unload(name)

    def _load(self, name: str) -> None:
        if name in self._loaded:
            return
        file = self._folder.files.get(name)
        if file is None:
            raise RequestError(Message(Code.UNKNOWN_LORA, {"value": name}), field="loras")
        if file.version in self._unusable:
            raise _unusable(name)
        began = self._clock()
        try:
            self._pipe.load_lora(file.path, name)
        except Exception as error:  # the file may hold anything
            log.error("The LoRA %s cannot be used: %s", name, error)
            if not isinstance(error, DeviceError | MemoryError):  # there may be memory later
                self._unusable.add(file.version)
            raise _unusable(name) from error
        self._loaded[name] = file
        if (seconds := self._clock() - began) > MOST_SECONDS:
            log.error(
                "The LoRA %s cannot be used: to load it took %.0f s; the most is %.0f s",
                name,
                seconds,
                MOST_SECONDS,
            )
            self._unusable.add(file.version)
            self._unload(name)
            raise _unusable(name)

    def _unload(self, name: str) -> None:
        del self._loaded[name]
        self._pipe.unload_lora(name)


class Hashes:
    """SHA-256 digests of large files, by which other programs know a model.

    A thread computes them one after the other; of a path, the latest one's is kept.

    Args:
        file: a file that keeps them for the next start; None for none.
    """

    def __init__(self, file: Path | None) -> None:
        self._kept = file
        self._known: dict[str, str] = _read_hashes(file)
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


class ModelFolder(WatchedFolder[ModelFacts]):
    """A folder with checkpoints: single files, and folders in diffusers' layout.

    Each is added to the pipeline as it comes, from its header alone, and removed when it has gone
    or changed. One that cannot be used is listed with the reason. The models that the pipeline was
    loaded with are listed too. `cache_dir` keeps the hashes of single files.
    """

    def __init__(self, pipe: SDXLPipeline, path: Path, cache_dir: Path | None = None) -> None:
        super().__init__(Folder(path, "MODEL_DIR", is_lora_name, BESIDE, index=INDEX))
        self._pipe = pipe
        self._named = pipe.facts.models  # those of MODELS, which share the first one's programs
        self._hashes = Hashes(None if cache_dir is None else cache_dir / "model_hashes.json")

    def _read(
        self, name: str, file: File, old_file: File | None, old_facts: ModelFacts | None
    ) -> ModelFacts | None:
        if name == self._pipe.facts.name:  # the first model may be in the folder, too
            return None
        about = describe(file)
        beside = {"title": about.title, "text": about.text, "pictured": about.pictured}
        if old_facts and old_file and old_file.version == file.version:
            return replace(old_facts, **beside)
        self._remove(name, old_facts)
        try:
            _check_texts(file.path)
            self._pipe.add_model(file.path, name)
        except Exception as error:  # the file may hold anything
            log.warning("MODEL_DIR: %s cannot be used: %.1000s", name, error)
            return ModelFacts(name=name, fault=_reason(error, file.path), **beside)
        facts = next(model for model in self._pipe.facts.models if model.name == name)
        return replace(facts, **beside)

    def _remove(self, name: str, facts: ModelFacts | None) -> None:
        if facts and not facts.fault:
            self._pipe.remove_model(name)

    def _all(self, facts: list[ModelFacts]) -> Iterable[ModelFacts]:
        yield from self._named  # the model that can be used comes first among those of one name
        for model in facts:
            file, _ = self._entries[model.name]
            yield model if file.path.is_dir() else replace(model, hash=self._hashes.of(file))
        for name, paths in self._listing.doubled.items():
            yield ModelFacts(name=name, fault=f"several files have this name: {', '.join(paths)}")


class ControlFolder(WatchedFolder[ControlFacts]):
    """A folder with ControlNets: single files, and folders in diffusers' layout.

    Programs are compiled for the networks that are there at the start. A network that comes later
    must have the architecture of one of them. A file that cannot be used is logged and left out
    until it changes.
    """

    def __init__(self, pipe: SDXLPipeline, path: Path) -> None:
        super().__init__(Folder(path, "CONTROL_DIR", is_lora_name, index="config.json"))
        self._pipe = pipe
        self._starts = True

    def _update(self) -> None:
        super()._update()
        self._starts = False

    def _read(
        self, name: str, file: File, old_file: File | None, old_facts: ControlFacts | None
    ) -> ControlFacts | None:
        self._remove(name, old_facts)
        try:
            _check_texts(file.path)
            self._pipe.add_control(file.path, name, compiles=self._starts)
        except Exception as error:  # the file may hold anything
            log.warning("CONTROL_DIR: %s cannot be used: %.1000s", name, error)
            return None
        return next(control for control in self._pipe.facts.controls if control.name == name)

    def _remove(self, name: str, facts: ControlFacts | None) -> None:
        if facts:
            self._pipe.remove_control(name)


class EmbeddingFolder(WatchedFolder[EmbeddingFacts]):
    """A folder with textual inversions, which the pipeline loads as they come.

    A file that cannot be used is logged and left out until it changes; its name is then an ordinary
    word. `clock` is that of `Folder`.
    """

    def __init__(
        self, pipe: SDXLPipeline, path: Path, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(Folder(path, "EMBEDDING_DIR", is_embedding_name, clock=clock))
        self._pipe = pipe

    def _read(
        self, name: str, file: File, old_file: File | None, old_facts: EmbeddingFacts | None
    ) -> EmbeddingFacts | None:
        try:
            self._pipe.load_embedding(file.path, name, replace=old_facts is not None)
        except (CheckpointError, InputError) as error:
            log.warning("An embedding is left out: %s", error)
            self._remove(name, old_facts)
            return None
        return next(facts for facts in self._pipe.facts.embeddings if facts.name == name)

    def _remove(self, name: str, facts: EmbeddingFacts | None) -> None:
        if facts:
            self._pipe.unload_embedding(name)


def _check_texts(path: Path) -> None:
    """Raise CheckpointError if a folder's texts, which are parsed whole, are too long."""
    texts = (file for file in files_in(path) if file.suffix in (".json", ".txt"))
    if sum(file.stat().st_size for file in texts) > _MOST_TEXT:
        raise CheckpointError(f"its .json and .txt files have more than {_MOST_TEXT >> 20} MiB")


def _reason(error: Exception, path: Path) -> str:
    """Return why a file cannot be used; the server's folders are none of the clients' business."""
    if not isinstance(error, CheckpointError | InputError):
        return "its file cannot be read"
    reason = str(error).removeprefix(f"{path}: ").replace(f"{path.parent}/", "")
    return reason if len(reason) <= _MOST_REASON else f"{reason[:_MOST_REASON]} …"


def _unusable(name: str) -> RequestError:
    message = Message(Code.UNUSABLE_LORA, {"value": name})
    return RequestError(message, ErrorKind.INVALID, field="loras")


def _read_hashes(file: Path | None) -> dict[str, str]:
    """Return the digests in a file; none if there is no such file, or it is damaged."""
    with suppress(OSError, TypeError, ValueError, RecursionError):
        if file is not None and file.stat().st_size <= _MOST_HASHES:
            digests: Any = json.loads(file.read_text())
            return {key: value for key, value in dict(digests).items() if isinstance(value, str)}
    return {}
