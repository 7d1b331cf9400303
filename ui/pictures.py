"""The finished pictures on the page: files, their captions and their settings.

Whether settings are inside the files is the visitor's choice, and can be changed afterwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline import metadata
from pipeline.metadata import Settings
from serving.generator import Image
from ui import files, settings, words

# What the browser keeps of the choice: text, because `gr.BrowserState` does not store False.
WITH_SETTINGS, BARE = "with settings", "bare"


@dataclass(frozen=True)
class Picture:
    """One of them, in a file that the page hands out."""

    path: Path
    caption: str
    settings: Settings


def save(images: Sequence[Image], caption: str, embed: bool) -> list[Picture]:
    """Keeps pictures as files; without a `caption` they have their own prompts.

    Raises:
        RequestError: they cannot be written.
    """
    said = [settings.of_image(image) for image in images]
    prompts = [caption or each.prompt for each in said]
    named = {
        files.name(prompt, image.seed, each.variation_seed): (
            image.png if embed else metadata.rewritten(image.png, None)
        )
        for prompt, image, each in zip(prompts, images, said, strict=True)
    }
    return [
        Picture(path, _caption(prompt, each), each)
        for path, prompt, each in zip(files.save(named), prompts, said, strict=True)
    ]


def _caption(prompt: str, said: Settings) -> str:
    blurred = said.safety_checker is not None
    return words.caption(prompt, said.seed or 0, said.variation_seed, blurred)


def again(pictures: Sequence[Picture], embed: bool) -> list[Picture]:
    """The same in new files, with their settings inside or without.

    Raises:
        OSError: their files are gone.
        RequestError: they cannot be written.
    """
    contents = {
        each.path.name: metadata.rewritten(each.path.read_bytes(), each.settings if embed else None)
        for each in pictures
    }
    saved = zip(pictures, files.save(contents), strict=True)
    return [replace(each, path=path) for each, path in saved]


def for_gallery(pictures: Sequence[Picture]) -> list[tuple[str, str]]:
    """What a gallery shows of them."""
    return [(str(each.path), each.caption) for each in pictures]
