"""Finished pictures as files that Gradio can hand out."""

import asyncio
import logging
import re
import secrets
import shutil
import time
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gradio.utils import get_upload_folder

from serving.generator import ErrorKind, RequestError
from ui import words

log = logging.getLogger(__name__)


def save(pictures: Mapping[str, bytes]) -> list[Path]:
    """Writes files, by name, where Gradio serves them, until they are old.

    The folder's name cannot be guessed: whoever knows a file's address can read it.

    Raises:
        RequestError: they cannot be written, and then none is there.
    """
    folder = Path(get_upload_folder()) / secrets.token_urlsafe(16)
    paths = [folder / name for name in pictures]
    try:
        folder.mkdir(parents=True)
        for path, content in zip(paths, pictures.values(), strict=True):
            path.write_bytes(content)
    except OSError as error:
        log.error("Pictures cannot be written to %s: %s", folder.parent, error.strerror)
        shutil.rmtree(folder, ignore_errors=True)
        raise RequestError(words.NO_ROOM, ErrorKind.FAILED) from error
    return paths


async def remove_old(kept_s: float, every_s: float) -> None:
    """Removes, again and again, what was saved or uploaded so long ago. Gradio itself would leave
    what programs were given.
    """
    while True:
        await asyncio.sleep(every_s)
        await asyncio.to_thread(_remove_older, time.time() - kept_s)


def _remove_older(before: float) -> None:
    for folder in Path(get_upload_folder()).glob("*/"):
        with suppress(OSError):
            if folder.stat().st_mtime < before:
                shutil.rmtree(folder)


def name(prompt: str, seed: int, variation: int | None = None) -> str:
    """A harmless name that tells pictures apart, and variations of one."""
    return f"{_slug(prompt)}-{seed}{'' if variation is None else f'-{variation}'}.png"


def _slug(prompt: str, length: int = 60) -> str:
    ascii_only = unicodedata.normalize("NFKD", prompt).encode("ascii", "ignore").decode()
    hyphenated = re.sub(r"[^a-z0-9]+", "-", ascii_only.lower()).strip("-")
    return hyphenated[:length].rstrip("-") or "picture"
