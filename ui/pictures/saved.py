"""The pictures on the page: files, their captions and their settings.

Whether settings are inside the files is the visitor's choice, and can be changed afterwards.
"""

import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from pipeline.facts import Facts
from pipeline.images import metadata
from pipeline.images.metadata import Settings
from pipeline.setting_kinds import parse_size
from serving.generator import ErrorKind, Image, Request, RequestError
from serving.messages import Code, Message
from serving.requests.unfinished import settings_of
from ui import i18n, start
from ui.form import requests, settings
from ui.form.fields import ALL, Fields
from ui.pictures import files
from ui.samples.styles import Style, Typed, typed


class Unfinished(NamedTuple):
    """How far a picture was drawn, and the values of the page's fields that ask for it.

    `start` is as in `Picture`.
    """

    done: int
    total: int
    asked: Fields
    start: str = ""


@dataclass(frozen=True)
class Picture:
    """A picture in the gallery, in a file that the page serves.

    Attributes:
        typed: the visitor's own words, without those of the style, and the style.
        other: the PNG file to show in its place on request: the original if this picture is
            blurred, the blurred version if this is the original; None for all other pictures.
        unfinished: set if the drawing was stopped; the file is then a preview.
        images: how many pictures were asked for, as the page's field has it.
        start: the browser's id of the picture that it began with; "" for none, or if not known.
        size: width and height of the file; None if they are those of the settings. With padding,
            the settings have the size of the part that was drawn.
        index: its number among the pictures of its request, from 0.
    """

    path: Path
    typed: Typed
    settings: Settings
    other: bytes | None = None
    unfinished: Unfinished | None = None
    images: int = ALL
    start: str = ""
    size: tuple[int, int] | None = None
    index: int = 0

    @property
    def key(self) -> str:
        """Return the end of its file's path, which no other picture has."""
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def blurred(self) -> bool:
        """Return whether this is a blurred version, and not the original."""
        return self.settings.safety_checker is not None

    @property
    def caption(self) -> str:
        """Return the caption, in the visitor's language."""
        if self.unfinished:
            return i18n.text("unfinished", done=self.unfinished.done, total=self.unfinished.total)
        return i18n.text(
            "caption",
            prompt=self.typed.prompt,
            seed=self.settings.seed or 0,
            variation=self.settings.variation_seed,
            blurred=self.blurred,
        )

    @property
    def drawn_size(self) -> tuple[int | None, int | None]:
        """Return the width and height of its last run, as far as they are known."""
        return parse_size(self.settings.enlarge) or (self.settings.width, self.settings.height)

    def fields(self, facts: Facts) -> tuple[Fields, list[str]]:
        """Return values that ask for this picture again, and notes on what differs here."""
        fields, notes = settings.as_fields(self.settings, facts, self.typed)
        if self.start:  # the browser has the picture
            notes = [note for note in notes if note != i18n.PICTURE_NEEDED]
        return fields._replace(images=self.images), notes

    def larger_size(self, facts: Facts) -> tuple[int, int] | None:
        """Return the next larger width and height in which the model can draw it; None if none."""
        # With padding, the file has the size of the picture that it was drawn into.
        if self.unfinished or self.settings.padding is not None:
            return None
        return start.larger_size(self.drawn_size, facts.for_known(self.settings.model or ""))


def find(pictures: Sequence[Picture], key: object) -> int:
    """Return the index of the picture with this key.

    Raises:
        RequestError: if there is none.
    """
    for index, picture in enumerate(pictures):
        if picture.key == key:
            return index
    raise _gone()


def _gone() -> RequestError:
    return RequestError(Message(Code.PICTURE_GONE), ErrorKind.UNKNOWN)


def save(
    images: Sequence[Image],
    styles: Collection[Style],
    embed: bool,
    count: int = ALL,
    start: str = "",
) -> list[Picture]:
    """Save pictures as files, with or without their settings inside.

    The style is one of `styles`; its words are taken out of the prompts. `count` is how many
    pictures were asked for, as the page's field has it, and `start` is as in `Picture`.

    Raises:
        RequestError: if the files cannot be written.
    """
    settings_list = [settings.of_image(image) for image in images]
    typed_prompts = [
        typed(styles, image_settings.prompt, image_settings.negative_prompt)
        for image_settings in settings_list
    ]
    contents = {
        files.name(typed_prompt.prompt, image.seed, image_settings.variation_seed): (
            image.png if embed else metadata.rewritten(image.png, None)
        )
        for typed_prompt, image, image_settings in zip(
            typed_prompts, images, settings_list, strict=True
        )
    }
    return [
        Picture(
            path,
            typed_prompt,
            image_settings,
            image.unblurred,
            images=count,
            start=start,
            size=None if image_settings.padding is None else _size_of(image.png),
            index=image.index,
        )
        for path, typed_prompt, image_settings, image in zip(
            files.save(contents), typed_prompts, settings_list, images, strict=True
        )
    ]


def _size_of(png: bytes) -> tuple[int, int]:
    """Return the width and height that the first chunk of a PNG file tells."""
    width, height = struct.unpack_from(">II", png, 16)
    return width, height


def save_previews(jpegs: Sequence[bytes]) -> list[Path]:
    """Save the latest previews of a request that was stopped.

    Raises:
        RequestError: if the files cannot be written.
    """
    return files.save({f"unfinished-{i}.jpg": jpeg for i, jpeg in enumerate(jpegs, start=1)})


def unfinished(
    paths: Sequence[Path], request: Request, facts: Facts, unfinished: Unfinished
) -> list[Picture]:
    """Return the pictures of a request that was stopped, of which these files are previews."""
    fields = unfinished.asked
    lines = (
        requests.split(fields.prompt, several=True, syntax=fields.prompt_syntax)
        if fields.several
        else [fields.prompt] * len(paths)
    )
    return [
        Picture(
            path,
            Typed(line, fields.negative_prompt, fields.style),
            settings_of(request, index, facts),
            unfinished=unfinished,
            images=fields.images,
            start=unfinished.start,
            index=index,
        )
        for index, (path, line) in enumerate(zip(paths, lines, strict=False))
    ]


def again(pictures: Sequence[Picture], embed: bool) -> list[Picture]:
    """Save finished pictures again in new files, with or without their settings inside.

    Raises:
        OSError: if the old files are gone.
        RequestError: if the new files cannot be written.
    """
    contents = {
        picture.path.name: metadata.rewritten(
            picture.path.read_bytes(), picture.settings if embed else None
        )
        for picture in pictures
    }
    pairs = zip(pictures, files.save(contents), strict=True)
    return [replace(picture, path=path) for picture, path in pairs]


def exchanged(picture: Picture, embed: bool) -> Picture:
    """Save `picture.other` in a new file, and return a picture of it whose `other` is `picture`.

    Raises:
        RequestError: if the picture is gone or has no other version, or if the new file cannot be
            written.
    """
    remark = None if picture.blurred else metadata.BLURRED
    new_settings = replace(picture.settings, safety_checker=remark)
    try:
        current_content = picture.path.read_bytes()
    except OSError:
        raise _gone() from None
    if picture.other is None:
        raise _gone()
    other_content = metadata.rewritten(picture.other, new_settings if embed else None)
    [path] = files.save({picture.path.name: other_content})
    return replace(picture, path=path, settings=new_settings, other=current_content)


def for_gallery(pictures: Sequence[Picture]) -> list[tuple[str, str]]:
    """Return the paths and captions of pictures, as a gallery takes them."""
    return [(str(picture.path), picture.caption) for picture in pictures]
