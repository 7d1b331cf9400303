"""Descriptions of LoRAs and models: titles, trigger words and pictures in and beside files."""

import hashlib
import heapq
import io
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from pipeline.adapters.reader import BUNDLE
from pipeline.checkpoints.tensors import read_header
from serving.folders import File, Stamp

log = logging.getLogger(__name__)

PICTURES = (".preview.png", ".png", ".preview.jpg", ".jpg", ".jpeg", ".preview.webp", ".webp")
_INFOS = (".civitai.info", ".json")
_WORDS = ".txt"
_EMBEDDINGS = ""  # the key of the names of a LoRA's own embeddings, beside its notes
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


def picture_of(file: File) -> File | None:
    """Return the picture beside a file; None if there is none."""
    return next((file.beside[ending] for ending in PICTURES if ending in file.beside), None)


def thumbnail(file: File | None) -> bytes | None:
    """Return a small WebP picture of a file, made from the one beside it, if there is one."""
    picture = file and picture_of(file)
    return (_thumbnail(*picture.version) or None) if picture else None


@lru_cache(_KEPT)
def _thumbnail(path: Path, _: Stamp) -> bytes:
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


@dataclass(frozen=True)
class Description:
    """The texts in and beside a file, by which people know it; "" for none.

    Attributes:
        title: its name for people.
        words: the trigger words of a LoRA.
        text: the text beside it.
        digest: equal for equal files; "" for a folder, or if the file could not be read.
        pictured: whether there is a picture of it.
    """

    title: str
    words: tuple[str, ...]
    text: str
    digest: str
    pictured: bool


def describe(file: File) -> Description:
    """Read the description of a LoRA or a model, from its file and from those beside it."""
    header, digest = _header(file.path)
    infos = [_json(file.beside[ending].path) for ending in _INFOS if ending in file.beside]
    text = _text(file.beside[_WORDS].path) if _WORDS in file.beside else ""
    return Description(
        _title(header, infos),
        _words(header, infos, text),
        _line(text),
        digest,
        picture_of(file) is not None,
    )


def _header(path: Path) -> tuple[dict[str, Any], str]:
    """Return a file's metadata with the names of its embeddings, and a digest.

    The digest is that of its header, its size and both ends of its data.

    Reading all of a folder's files to tell them apart would take minutes.
    """
    if path.is_dir():
        return {}, ""
    try:
        with path.open("rb") as file:
            header = read_header(file)
            size = file.seek(0, io.SEEK_END)
            digest = hashlib.sha256(b"%d " % size + header)
            for start in (8 + len(header), max(8 + len(header), size - _SAMPLE)):
                file.seek(start)
                digest.update(file.read(_SAMPLE))
        entries = _mapping(json.loads(header))
        embeddings = [match[1] for match in map(BUNDLE.fullmatch, entries) if match]
        notes = _mapping(entries.get("__metadata__"))
        return {**notes, _EMBEDDINGS: embeddings}, digest.hexdigest()
    except (OSError, ValueError, RecursionError) as error:
        log.warning("%s cannot be read: %s", path.name, error)
        return {}, ""


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
    header: Mapping[str, Any], infos: Iterable[Mapping[str, Any]], text: str
) -> tuple[str, ...]:
    """Return the trigger words: those of the files beside the LoRA, else those in its metadata."""
    sources = [
        *(info.get(key) for info in infos for key in ("trainedWords", "activation text")),
        text,
        header.get("modelspec.trigger_phrase"),
        header.get(_EMBEDDINGS),
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
