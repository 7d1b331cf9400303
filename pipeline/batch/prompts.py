"""Files of prompts: a text with a prompt in each line, or JSON objects with settings, one a line.

A file is read strictly and as a whole, so that a mistake in its last line is found before anything
is drawn. Errors name the file, the line and the setting. All sizes are bounded.
"""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.drawing.origins import Inputs, check_origin
from pipeline.errors import InputError
from pipeline.request import (
    MAX_IMAGES,
    SETTINGS,
    GenerateRequest,
    Request,
    check_count,
    check_request,
    effective,
)
from pipeline.resolve import with_named_loras
from pipeline.setting_kinds import MAX_SEED, Texts, parse_size
from pipeline.strict_json import unique_names

MAX_BYTES = 2**26  # of a file
MAX_PICTURES = 1_000_000
SUFFIXES = (".txt", ".jsonl")
_SIZE, _FILES = ("height", "width"), ("image", "mask")
_OTHERS = ("images", *_SIZE, *_FILES)  # keys of a line beside the settings


@dataclass(frozen=True)
class Line:
    """A line of a file of prompts.

    Attributes:
        number: its number in the file, counted from 1.
        where: the file and the number, for messages.
        request: its checked request, for all its pictures.
        size: height and width in pixels; None for the command's.
        image, mask: the files of a picture to start from and of its mask.
    """

    number: int
    where: str
    request: Request
    size: tuple[int, int] | None
    image: Path | None
    mask: Path | None

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Height and width of each run of its pictures, if it is not the command's."""
        width, height = parse_size(self.request.enlarge) or (0, 0)
        return [size for size in (self.size, (height, width)) if size and all(size)]


@dataclass(frozen=True, slots=True)
class Item:
    """A picture of a batch.

    Attributes:
        index: its number in the batch, counted from 0.
        line: its line.
        place: its number among the pictures of the line, counted from 0.
    """

    index: int
    line: Line
    place: int

    @property
    def name(self) -> str:
        """Name of its file: its index, by which names sort, and its seed."""
        return f"{self.index:06}-{self.line.request.of_picture(self.place)['seed']}.png"

    @property
    def request(self) -> GenerateRequest:
        """The request for it alone."""
        return GenerateRequest(**self.line.request.of_picture(self.place))


@dataclass(frozen=True)
class Batch:
    """All pictures that a file of prompts asks for.

    Attributes:
        items: the pictures by index.
        digest: the SHA-256 of all that the lines and the command say about them, in hexadecimal
            digits.
    """

    items: list[Item]
    digest: str


def read_batch(
    file: Path, defaults: Mapping[str, Any], image: Path | None = None, mask: Path | None = None
) -> Batch:
    """Read a file of prompts.

    Args:
        file: a `.txt` file, or a `.jsonl` file whose lines may hold every setting by its name,
            `images`, `height` with `width`, and `image` and `mask`, which are paths relative to the
            file.
        defaults: the settings for lines that do not give them. A line without a seed takes that of
            the defaults plus the index of its first picture.
        image, mask: the same for these files.

    Raises:
        InputError: if a value cannot be used; the message names its line.
        OSError: if the file cannot be read.
    """
    check_request(GenerateRequest("", **defaults), 1)
    items: list[Item] = []
    digest = hashlib.sha256()
    reader = _Reader(file, defaults, {"image": image, "mask": mask})
    for number, text in _lines(file):
        line = reader.line(number, text, first=len(items))
        count = line.request.images
        if len(items) + count > MAX_PICTURES:
            raise InputError(f"{line.where}: more than {MAX_PICTURES} pictures; split the file")
        items += [Item(len(items) + place, line, place) for place in range(count)]
        digest.update(reader.description(line))
    if not items:
        raise InputError(f"{file}: no prompts; expected one in each line")
    return Batch(items, digest.hexdigest())


def _lines(file: Path) -> list[tuple[int, str]]:
    """Return the number and the text of each line that is not blank."""
    if file.suffix not in SUFFIXES:
        raise InputError(f"{file}: expected a file named {' or '.join(f'*{s}' for s in SUFFIXES)}")
    with file.open("rb") as opened:
        content = opened.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise InputError(f"{file}: larger than {MAX_BYTES} bytes; split the file")
    try:
        texts = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{file}:{number}: not UTF-8; save the file in that encoding") from None
    return [(number, text.strip()) for number, text in enumerate(texts, start=1) if text.strip()]


class _Reader:
    """Reader of the lines of a file.

    Args:
        file: the file.
        defaults: the settings for lines that do not give them.
        files: the same for pictures, by name.
    """

    def __init__(self, file: Path, defaults: Mapping[str, Any], files: Mapping[str, Path | None]):
        self._file = file
        self._defaults = defaults
        self._files = files
        self._digest = functools.cache(_hashed)

    def line(self, number: int, text: str, first: int) -> Line:
        """Return a line, checked as far as it can be without the model.

        Args:
            number: its number, counted from 1.
            text: its text, which is not blank.
            first: the index of its first picture.
        """
        where = f"{self._file}:{number}"
        settings = {"prompt": text} if self._file.suffix == ".txt" else _parsed(text, where)
        try:
            return self._line(number, where, settings, first)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error

    def description(self, line: Line) -> bytes:
        """Return all that decides about a line's pictures, the same for the same pictures.

        Settings that change nothing are not in it, so that a version with more settings goes on.
        """
        files = [None if file is None else self._digest(file) for file in (line.image, line.mask)]
        values, images = effective(line.request.settings), line.request.images
        return json.dumps([values, images, line.size, files]).encode() + b"\n"

    def _line(self, number: int, where: str, settings: dict[str, Any], first: int) -> Line:
        options = {name: settings.pop(name) for name in _OTHERS if name in settings}
        for name, value in settings.items():
            if name not in SETTINGS:
                names = ", ".join((*SETTINGS, *_OTHERS))
                raise InputError(f"unknown setting {name!r}; expected {names}")
            if isinstance(SETTINGS[name], Texts) and not isinstance(value, str):
                raise InputError(f"{name} is {value!r}; expected a text")
        if "prompt" not in settings:
            raise InputError("prompt is missing")
        images = options.get("images", 1)
        check_count("images", images, 1, MAX_IMAGES)
        seed = (self._defaults.get("seed", 0) + first) % (MAX_SEED + 1)
        values = {**self._defaults, "seed": seed, **settings}
        request = with_named_loras(check_request(GenerateRequest(**values), images))
        files: dict[str, Any] = {name: self._path(name, options) for name in _FILES}
        check_origin(request, Inputs(**files))
        return Line(number, where, request, _size(options), files["image"], files["mask"])

    def _path(self, name: str, options: Mapping[str, Any]) -> Path | None:
        if name not in options:
            return self._files[name]
        if not isinstance(options[name], str) or not options[name] or "\0" in options[name]:
            raise InputError(f"{name} is {options[name]!r}; expected the path of a picture")
        path = self._file.parent / options[name]
        self._digest(path)
        return path


def _hashed(file: Path) -> str:
    right = "expected a PNG, JPEG or WebP picture"
    try:
        if not file.is_file():  # a pipe would block
            raise InputError(f"{file}: no such file; {right}")
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}; {right}") from error


def _size(options: Mapping[str, Any]) -> tuple[int, int] | None:
    if not options.keys() & {*_SIZE}:
        return None
    for name in _SIZE:
        value = options.get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(f"{name} is {value!r}; expected pixels, and both height and width")
    return options["height"], options["width"]


def _parsed(text: str, where: str) -> dict[str, Any]:
    """Return the settings in a line of JSON, without those that are null."""
    try:
        settings = json.loads(text, object_pairs_hook=unique_names)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON: {error}") from error
    if not isinstance(settings, dict):
        example = '{"prompt": "a red star", "seed": 7}'
        raise InputError(f"{where}: not a JSON object; expected a line such as {example}")
    return {name: value for name, value in settings.items() if value is not None}
