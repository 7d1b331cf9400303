"""Finished pictures as files that Gradio can hand out."""

import re
import secrets
import unicodedata
from pathlib import Path

from gradio.utils import get_upload_folder


def save(pngs: tuple[bytes, ...], seeds: tuple[int, ...], prompt: str) -> list[Path]:
    """Writes the PNG files where Gradio serves and, later, deletes them.

    The folder's name cannot be guessed: whoever knows a file's address can read it.
    """
    folder = Path(get_upload_folder()) / secrets.token_urlsafe(16)
    folder.mkdir(parents=True)
    paths = [folder / f"{_slug(prompt)}-{seed}.png" for seed in seeds]
    for path, png in zip(paths, pngs, strict=True):
        path.write_bytes(png)
    return paths


def _slug(prompt: str, length: int = 60) -> str:
    ascii_only = unicodedata.normalize("NFKD", prompt).encode("ascii", "ignore").decode()
    hyphenated = re.sub(r"[^a-z0-9]+", "-", ascii_only.lower()).strip("-")
    return hyphenated[:length].rstrip("-") or "picture"
