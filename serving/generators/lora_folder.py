"""LoRAs in a folder of the operator's, with what their files tell about them."""

import hashlib
import heapq
import io
import json
import logging
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from pipeline.checkpoints.tensors import read_header
from pipeline.facts import LoraFacts
from pipeline.text.loras import is_lora_name
from serving.folders import File, Folder, Listing

log = logging.getLogger(__name__)

SETTING = "LORA_DIR"
PICTURES = (".preview.png", ".png", ".preview.jpg", ".jpg", ".jpeg", ".preview.webp", ".webp")
_INFOS = (".civitai.info", ".json")
_WORDS = ".txt"
BESIDE = (*PICTURES, *_INFOS, _WORDS)

SIDE = 160  # width and height of a thumbnail in pixels
_QUALITY = 80
_KEPT = 256  # thumbnails, of about 5 KB each
# Limits of what is read, whatever a file says.
_MOST_INFO = 2**20  # bytes of a text beside a file
_MOST_PICTURE = 2**25  # bytes of a picture beside a file
_MOST_PIXELS = 2**26
_SAMPLE = 2**16  # bytes at each end of a file that its digest covers
MOST_WORDS = 10
LONGEST = 60  # characters of a title or of a trigger word
_FREQUENT = 5  # tags of the training that are shown if there are no trigger words


class Thumbnails:
    """Small pictures of files, made anew from those beside them. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: OrderedDict[Any, bytes] = OrderedDict()

    def of(self, file: File | None) -> bytes | None:
        """Return a WebP picture of a file, if there is one."""
        picture = file and picture_of(file)
        if picture is None:
            return None
        with self._lock:  # one at a time, because decoding takes memory
            if picture.version not in self._made:
                self._made[picture.version] = _thumbnail(picture.path)
                if len(self._made) > _KEPT:
                    self._made.popitem(last=False)
            return self._made[picture.version] or None


class LoraFolder:
    """The LoRAs in a folder that may change while the server runs. Any thread may call it."""

    def __init__(self, path: Path) -> None:
        self._folder = Folder(path, SETTING, is_lora_name, BESIDE)
        self._lock = threading.Lock()
        self._described: dict[str, tuple[File, LoraFacts]] = {}
        self._thumbnails = Thumbnails()

    def look(self) -> Listing:
        """Return the files; the same object for as long as nothing changes."""
        return self._folder.look()

    def describe(self, listing: Listing) -> tuple[LoraFacts, ...]:
        """Return descriptions of the LoRAs, sorted by name; only files that changed are read."""
        with self._lock:
            self._described = {
                name: self._description(name, file) for name, file in listing.files.items()
            }
            loras = _told_apart([lora for _, lora in self._described.values()])
        doubled_loras = [
            LoraFacts(name, name, doubled=paths) for name, paths in listing.doubled.items()
        ]
        return tuple(sorted([*loras, *doubled_loras], key=lambda lora: lora.name))

    def _description(self, name: str, file: File) -> tuple[File, LoraFacts]:
        description = self._described.get(name)
        return description if description and description[0] == file else (file, _read(name, file))

    def thumbnail(self, name: str) -> bytes | None:
        """Return a small picture of a LoRA, if there is one."""
        return self._thumbnails.of(self.look().files.get(name))


def _told_apart(loras: list[LoraFacts]) -> list[LoraFacts]:
    """Return LoRAs with the name in place of a title that several have, as versions of one do."""
    counts = Counter(lora.title for lora in loras)
    return [lora if counts[lora.title] == 1 else replace(lora, title=lora.name) for lora in loras]


def picture_of(file: File) -> File | None:
    """Return the picture beside a file; None if there is none."""
    return next((file.beside[ending] for ending in PICTURES if ending in file.beside), None)


def _thumbnail(path: Path) -> bytes:
    """Return a picture as a small square in WebP; b"" if it cannot be read."""
    stream = io.BytesIO()
    try:
        if path.stat().st_size > _MOST_PICTURE:
            raise ValueError(f"it has more than {_MOST_PICTURE} bytes")
        with Image.open(path, formats=["PNG", "JPEG", "WEBP"]) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise ValueError(f"it has more than {_MOST_PIXELS} pixels")
            image.draft("RGB", (2 * SIDE, 2 * SIDE))
            thumbnail = ImageOps.fit(image.convert("RGB"), (SIDE, SIDE))
        # Nothing but the pixels is passed on: no metadata of the file.
        thumbnail.save(stream, "WEBP", quality=_QUALITY, exif=b"", icc_profile=b"", xmp=b"")
    except Exception as error:  # Pillow raises many kinds for damaged files
        log.warning("The picture %s cannot be read: %s", path.name, error)
        return b""
    return stream.getvalue()


def _read(name: str, file: File) -> LoraFacts:
    """Return the description of a LoRA, from its file and from those beside it."""
    try:
        header, digest = _header(file.path)
    except (OSError, ValueError, RecursionError) as error:
        log.warning("%s: %s cannot be read: %s", SETTING, file.path.name, error)
        header, digest = {}, ""
    infos = _infos(file)
    return LoraFacts(
        name,
        title=_title(header, infos) or name,
        words=_words(header, infos, file),
        digest=digest,
        pictured=picture_of(file) is not None,
    )


def title_and_text(file: File) -> tuple[str, str]:
    """Return the title that a file, or one beside it, gives it, and the text beside it.

    Either is "" if there is none.
    """
    try:
        header, _ = _header(file.path)
    except (OSError, ValueError, RecursionError):
        header = {}
    words_file = file.beside.get(_WORDS)
    return _title(header, _infos(file)), _line(_text(words_file.path) if words_file else "")


def _infos(file: File) -> list[dict[str, Any]]:
    return [_json(file.beside[ending].path) for ending in _INFOS if ending in file.beside]


def _header(path: Path) -> tuple[dict[str, Any], str]:
    """Return a file's metadata, and a digest of its header, its size and both ends of its data.

    Reading all of a folder's files to tell them apart would take minutes.
    """
    with path.open("rb") as file:
        header = read_header(file)
        size = file.seek(0, io.SEEK_END)
        digest = hashlib.sha256(b"%d " % size + header)
        for start in (8 + len(header), max(8 + len(header), size - _SAMPLE)):
            file.seek(start)
            digest.update(file.read(_SAMPLE))
    return _mapping(_mapping(json.loads(header)).get("__metadata__")), digest.hexdigest()


def _json(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file; an empty one if there is none."""
    try:
        return _mapping(json.loads(_text(path)))
    except (ValueError, RecursionError):
        return {}


def _text(path: Path) -> str:
    """Return the beginning of a text file; "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_INFO).decode("utf-8-sig", "replace")
    except OSError:
        return ""


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _title(header: Mapping[str, Any], infos: Iterable[Mapping[str, Any]]) -> str:
    names = [_mapping(info.get("model")).get("name") for info in infos]
    titles = (_line(title) for title in (*names, header.get("modelspec.title")))
    return next(filter(None, titles), "")


def _words(
    header: Mapping[str, Any], infos: Iterable[Mapping[str, Any]], file: File
) -> tuple[str, ...]:
    """Return the trigger words: those of the files beside the LoRA, else those in its metadata."""
    words_file = file.beside.get(_WORDS)
    sources = [
        *(info.get(key) for info in infos for key in ("trainedWords", "activation text")),
        _text(words_file.path) if words_file else None,
        header.get("modelspec.trigger_phrase"),
        list(_frequent(header.get("ss_tag_frequency"))),
    ]
    return next(filter(None, map(_split, sources)), ())


def _split(value: Any) -> tuple[str, ...]:
    """Return the words in a text with commas, or in a list of such texts, without repetition."""
    texts = value[: _MOST_INFO // 16] if isinstance(value, list) else [value]
    texts = (text[:_MOST_INFO] for text in texts if isinstance(text, str))
    parts = (part for text in texts for part in re.split(r"[,\n]", text))
    words = dict.fromkeys(filter(None, map(_line, parts)))
    return tuple(words)[:MOST_WORDS]


def _frequent(value: Any) -> Iterator[str]:
    """Yield the most frequent tags of the training that kohya's trainer notes in a file."""
    try:
        folders = _mapping(json.loads(value)) if isinstance(value, str) else {}
    except (ValueError, RecursionError):
        return
    counts: dict[str, int] = {}
    for tags in folders.values():
        for tag, count in _mapping(tags).items():
            if isinstance(count, int):
                counts[tag] = counts.get(tag, 0) + count
    for tag in heapq.nlargest(_FREQUENT, counts, key=lambda tag: counts[tag]):
        yield tag.replace(",", " ")


def _line(value: Any) -> str:
    """Return a text in one line without unprintable characters, if it is short enough to show.

    It is not escaped yet.
    """
    text = " ".join(value[: 2 * LONGEST].split()) if isinstance(value, str) else ""
    return "".join(filter(str.isprintable, text))[:LONGEST].strip()
