"""The models of a folder that may change while the server runs."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from pipeline import CheckpointError, InputError
from pipeline.checkpoints.folder import INDEX
from pipeline.facts import ModelFacts
from pipeline.text.loras import is_lora_name
from serving.folders import File, Folder, Listing, files_in
from serving.generators.hashes import Hashes
from serving.generators.lora_folder import BESIDE, Thumbnails, picture_of, title_and_text

if TYPE_CHECKING:
    from pipeline import SDXLPipeline

log = logging.getLogger(__name__)

SETTING = "MODEL_DIR"
_MOST_TEXT = 2**25  # bytes; those of published models have at most 8 MiB
_MOST_REASON = 500  # characters; a reason may quote a list from a file


class ModelFolder:
    """A folder with checkpoints: single files, and folders in diffusers' layout.

    Each is added to the pipeline as it comes, from its header alone, and removed when it has gone
    or changed. One that cannot be used is listed with the reason. Any thread may call its methods.
    `cache_dir` keeps the hashes of single files.
    """

    def __init__(self, pipe: SDXLPipeline, path: Path, cache_dir: Path | None = None) -> None:
        self._pipe = pipe
        self._named = pipe.facts.models  # those of MODELS, which share the first one's programs
        self._folder = Folder(path, SETTING, is_lora_name, BESIDE, index=INDEX)
        self._hashes = Hashes(None if cache_dir is None else cache_dir / "model_hashes.json")
        self._thumbnails = Thumbnails()
        self._lock = Lock()
        self._listing = Listing()
        self._models: dict[str, tuple[File, ModelFacts]] = {}

    def describe(self) -> tuple[ModelFacts, ...]:
        """Return descriptions of the models, sorted by name; those that can be used are added.

        The models that the pipeline was loaded with are among them.
        """
        with self._lock:
            listing = self._folder.look()
            if listing is not self._listing:
                self._listing = listing
                for name, (file, facts) in list(self._models.items()):
                    now = listing.files.get(name)
                    if now is None or now.version != file.version:
                        self._forget(name, facts)
                    elif now != file:  # another picture or text beside it
                        self._models[name] = now, replace(facts, **_beside(now))
                for name, file in listing.files.items():
                    if name not in self._models:
                        self._models[name] = file, self._add(name, file)
            models = [
                facts if file.path.is_dir() else replace(facts, hash=self._hashes.of(file))
                for file, facts in self._models.values()
            ]
        doubled = (
            ModelFacts(name=name, fault=f"several files have this name: {', '.join(paths)}")
            for name, paths in listing.doubled.items()
        )
        # The model that can be used comes first among those of one name.
        all_models = [*self._named, *models, *doubled]
        return tuple(sorted(all_models, key=lambda model: model.name))

    def thumbnail(self, name: str) -> bytes | None:
        """Return a small picture of a model, if there is one."""
        return self._thumbnails.of(self._folder.look().files.get(name))

    def _forget(self, name: str, facts: ModelFacts) -> None:
        del self._models[name]
        if not facts.fault:
            self._pipe.remove_model(name)

    def _add(self, name: str, file: File) -> ModelFacts:
        try:
            _check_texts(file.path)
            self._pipe.add_model(file.path, name)
        except Exception as error:  # the file may hold anything
            log.warning("%s: %s cannot be used: %.1000s", SETTING, name, error)
            return ModelFacts(name=name, fault=_reason(error, file.path), **_beside(file))
        facts = next(model for model in self._pipe.facts.models if model.name == name)
        return replace(facts, **_beside(file))


def _beside(file: File) -> dict[str, Any]:
    """Return what is told of a model in files beside its own, by the field of its facts."""
    title, text = title_and_text(file)
    return {"title": title, "text": text, "pictured": picture_of(file) is not None}


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
