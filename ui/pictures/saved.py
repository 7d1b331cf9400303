"""The finished pictures on the page: files, their captions and their settings.

Whether settings are inside the files is the visitor's choice, and can be changed afterwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.images import metadata
from pipeline.images.metadata import Settings
from serving.generator import Image
from ui import i18n, settings
from ui.pictures import files

# The choice as the browser keeps it: text, because `gr.BrowserState` does not store False.
WITH_SETTINGS, BARE = "with settings", "bare"


@dataclass(frozen=True)
class Picture:
    """A finished picture, in a file that the page serves.

    Attributes:
        prompt: the prompt in its caption.
        other: the PNG file to show in its place on request: the original if this picture is
            blurred, the blurred version if this is the original; None for all other pictures.
    """

    path: Path
    prompt: str
    settings: Settings
    other: bytes | None = None

    @property
    def blurred(self) -> bool:
        """Return whether this is a blurred version, and not the original."""
        return self.settings.safety_checker is not None

    @property
    def caption(self) -> str:
        """Return the caption, in the visitor's language."""
        seed, variation_seed = self.settings.seed or 0, self.settings.variation_seed
        return i18n.caption(self.prompt, seed, variation_seed, self.blurred)


def save(images: Sequence[Image], caption: str, embed: bool) -> list[Picture]:
    """Save pictures as files; if `caption` is empty, each is captioned with its own prompt.

    Raises:
        RequestError: if the files cannot be written.
    """
    found = [settings.of_image(image) for image in images]
    prompts = [caption or each.prompt for each in found]
    named = {
        files.name(prompt, image.seed, each.variation_seed): (
            image.png if embed else metadata.rewritten(image.png, None)
        )
        for prompt, image, each in zip(prompts, images, found, strict=True)
    }
    return [
        Picture(path, prompt, each, image.unblurred)
        for path, prompt, each, image in zip(files.save(named), prompts, found, images, strict=True)
    ]


def again(pictures: Sequence[Picture], embed: bool) -> list[Picture]:
    """Save pictures again in new files, with or without their settings inside.

    Raises:
        OSError: if the old files are gone.
        RequestError: if the new files cannot be written.
    """
    contents = {
        each.path.name: metadata.rewritten(each.path.read_bytes(), each.settings if embed else None)
        for each in pictures
    }
    saved = zip(pictures, files.save(contents), strict=True)
    return [replace(each, path=path) for each, path in saved]


def exchanged(picture: Picture, embed: bool) -> Picture:
    """Save `picture.other` in a new file, and return it with the present picture as its `other`.

    Raises:
        LookupError: if `picture.other` is None.
        OSError: if the picture's file is gone.
        RequestError: if the new file cannot be written.
    """
    if picture.other is None:
        raise LookupError(picture.path.name)
    remark = None if picture.blurred else metadata.BLURRED
    changed = replace(picture.settings, safety_checker=remark)
    current = picture.path.read_bytes()
    other = metadata.rewritten(picture.other, changed if embed else None)
    [path] = files.save({picture.path.name: other})
    return replace(picture, path=path, settings=changed, other=current)


def for_gallery(pictures: Sequence[Picture]) -> list[tuple[str, str]]:
    """Return the paths and captions of pictures, as a gallery takes them."""
    return [(str(each.path), each.caption) for each in pictures]
