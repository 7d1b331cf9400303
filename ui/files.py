"""Finished pictures as files that Gradio can hand out."""

import re
import secrets
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from gradio.utils import get_upload_folder

from serving.generator import Image


def save(images: Sequence[Image], prompt: str) -> list[Path]:
    """Writes the PNG files where Gradio serves and, later, deletes them.

    The folder's name cannot be guessed: whoever knows a file's address can read it.
    """
    folder = Path(get_upload_folder()) / secrets.token_urlsafe(16)
    folder.mkdir(parents=True)
    paths = [folder / f"{_slug(prompt)}-{image.seed}.png" for image in images]
    for path, image in zip(paths, images, strict=True):
        path.write_bytes(image.png)
    return paths


def _slug(prompt: str, length: int = 60) -> str:
    ascii_only = unicodedata.normalize("NFKD", prompt).encode("ascii", "ignore").decode()
    hyphenated = re.sub(r"[^a-z0-9]+", "-", ascii_only.lower()).strip("-")
    return hyphenated[:length].rstrip("-") or "picture"
