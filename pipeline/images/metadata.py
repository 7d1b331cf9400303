"""A picture's settings, in the text that AUTOMATIC1111's web UI writes into its PNG files.

The prompt, then `Negative prompt: ...`, then one line such as
`Steps: 25, Sampler: Euler, CFG scale: 5.0, Seed: 7, Size: 1024x1024, Model: ...`, in which values
that hold separators are JSON strings. Format:
https://github.com/AUTOMATIC1111/stable-diffusion-webui/wiki/Features#png-info

That text does not keep every prompt apart from what follows it, nor its outer spaces. Where it
would be read back otherwise, the last line also has the prompts as JSON strings, under `Prompt`
and `Negative prompt`.

In JPEG and WebP files the text is EXIF's user comment, as that program has it, too.
"""

import io
import json
import re
import stat
import unicodedata
import uuid
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

import numpy as np
from PIL import ExifTags, Image
from PIL.PngImagePlugin import PngInfo, putchunk

from pipeline.errors import MetadataError, PictureError, TooLargeError
from pipeline.images import image_text
from pipeline.images.image_text import MAX_TEXT
from pipeline.images.png import encode_png

Number = TypeVar("Number", int, float)

# Schedulers as that program calls them.
SAMPLERS = {
    "euler": "Euler",
    "euler-ancestral": "Euler a",
    "ddim": "DDIM",
    "pndm": "PLMS",
    "dpmsolver++": "DPM++ 2M",
}
BLURRED = "blurred"  # what was done to a picture that was flagged
KEY = "parameters"  # the PNG text chunk, and the entry in `Image.info`
PROGRAM = "sdxl-flax"
QUALITY = 95  # of pictures that are not kept as they are

NEGATIVE = "Negative prompt:"
_UNICODE = b"UNICODE\0"  # how EXIF begins a comment in UTF-16; here it is big-endian
_HEADER_BYTES = 33  # of a PNG: the signature and the first chunk
_TEXT_CHUNKS = (b"tEXt", b"zTXt", b"iTXt", b"eXIf")
# Possessive and of limited length, so that no text takes more than linear time.
_FIELD = re.compile(r'(\w[\w \-/]{1,40}+):\s*("(?:\\.|[^\\"])+"|[^,]*)(?:,|$)')
_MAX_FIELDS = 1000  # read from a line; programs write fewer than 100
_MAX_LINE = 2**18  # characters; matching takes up to 100 bytes for each
_PLAIN_VALUE = re.compile(r"\w[\w .\-+/]*(?<! )")


@dataclass(frozen=True)
class Settings:
    """What a picture was made with; None where a picture's text does not say.

    Attributes:
        negative_prompt: "" for none.
        seed: this picture's own.
        width: in pixels, as `height`.
        model: a Hub id, or a folder's name.
        revision: the commit on the Hub.
        sampler: the scheduler's name in `SAMPLERS`, and " Karras" after it for those noise levels.
        safety_checker: `BLURRED` where a safety checker, or an operator's screen, flagged it.
        guidance_until: the share of the steps after which guidance ended, None where it did not.
        variation_seed: this picture's own, where it is a variation of the one of `seed`.
        variation_strength: how far that seed's noise is turned towards the variation seed's, 0..1.
    """

    prompt: str
    negative_prompt: str
    seed: int | None
    num_inference_steps: int | None
    guidance_scale: float | None
    width: int | None
    height: int | None
    model: str | None
    revision: str | None
    sampler: str | None = None
    safety_checker: str | None = None
    guidance_until: float | None = None
    variation_seed: int | None = None
    variation_strength: float | None = None


def to_text(settings: Settings) -> str:
    """The settings as text, from which `from_text` reads exactly the same."""
    s = settings
    fields = {
        "Steps": s.num_inference_steps,
        "Sampler": s.sampler,
        "CFG scale": None if s.guidance_scale is None else float(s.guidance_scale),
        "Guidance until": s.guidance_until,
        "Seed": s.seed,
        "Variation seed": s.variation_seed,
        "Variation seed strength": s.variation_strength,
        "Size": None if s.width is None or s.height is None else f"{s.width}x{s.height}",
        "Model": s.model,
        "Model revision": s.revision,
        "Safety checker": s.safety_checker,
        "Version": PROGRAM,
    }
    last = ", ".join(
        f"{key}: {_quote(value)}" for key, value in fields.items() if value is not None
    )
    lines = [_printable(s.prompt), last]
    if s.negative_prompt:
        lines.insert(1, f"{NEGATIVE} {_printable(s.negative_prompt)}")
    text = "\n".join(lines).strip()
    try:
        if from_text(text) == settings:
            return text
    except MetadataError:
        pass
    exact = f"Prompt: {json.dumps(s.prompt)}, {NEGATIVE} {json.dumps(s.negative_prompt)}"
    return f"{text}, {exact}"


def from_text(text: str) -> Settings:
    """The settings in a text that `to_text` or AUTOMATIC1111 wrote; other keys are passed over.

    Raises:
        MetadataError: there is no line of settings, or a value in it is not of its kind.
    """
    before, newline, last = text.strip().rpartition("\n")
    found = islice(_FIELD.finditer(last[:_MAX_LINE]), _MAX_FIELDS)
    fields = {match[1]: _unquote(match[2].strip()) for match in found}
    if len(fields) < 3:  # AUTOMATIC1111's own criterion
        raise MetadataError(
            "no settings: the last line should read 'Steps: ..., Sampler: ..., ...'"
        )
    prompt, negative_prompt = _split_prompts(before + newline)
    width, height = _size(fields.get("Size"))
    return Settings(
        prompt=fields.get("Prompt", prompt),
        negative_prompt=fields.get(NEGATIVE.rstrip(":"), negative_prompt),
        seed=_number(fields, "Seed", int),
        num_inference_steps=_number(fields, "Steps", int),
        guidance_scale=_number(fields, "CFG scale", float),
        width=width,
        height=height,
        model=fields.get("Model"),
        revision=fields.get("Model revision"),
        sampler=fields.get("Sampler"),
        safety_checker=fields.get("Safety checker"),
        guidance_until=_number(fields, "Guidance until", float),
        variation_seed=_number(fields, "Variation seed", int),
        variation_strength=_number(fields, "Variation seed strength", float),
    )


def attach(image: Image.Image, settings: Settings) -> None:
    """Puts the settings into `image.info`, from where `save_png` takes them."""
    image.info[KEY] = to_text(settings)


def save_png(image: Image.Image, target: Path | str | BinaryIO) -> None:
    """Writes a PNG in RGB with the settings that are attached to the picture, if any.

    A file appears under its name only when it is whole.

    Raises:
        OSError: it cannot be written; the message names the file.
    """
    png = encode_png(np.asarray(image.convert("RGB")), _chunks(image.info.get(KEY)))
    if not isinstance(target, str | Path):
        target.write(png)
        return
    path = Path(target)
    part = path.with_name(f".{uuid.uuid4().hex}.part")
    try:
        with part.open("xb") as file:
            file.write(png)
        part.replace(path)
    except OSError as error:
        reason = f"the picture cannot be written: {error.strerror or error}"
        raise OSError(error.errno, reason, str(path)) from error
    finally:
        part.unlink(missing_ok=True)


def converted(png: bytes, kind: Literal["JPEG", "WEBP"], quality: int = QUALITY) -> bytes:
    """Return a PNG file of this program as another kind, with the same settings inside, if any.

    Args:
        png: the file.
        kind: what it becomes.
        quality: from 0, the smallest file, to 100, the best picture.

    Raises:
        MetadataError: a JPEG file, whose EXIF data end at 64 KiB, has no room for them.
    """
    file, exif = io.BytesIO(), Image.Exif()
    with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
        if KEY in image.info:
            comment = _UNICODE + image.info[KEY].encode("utf-16-be", "replace")
            exif[ExifTags.IFD.Exif] = {ExifTags.Base.UserComment: comment}
        try:
            image.convert("RGB").save(file, format=kind, quality=quality, exif=exif)
        except ValueError as error:
            raise MetadataError(f"the settings are too long for {kind}: {error}") from error
    return file.getvalue()


def rewritten(png: bytes, settings: Settings | None) -> bytes:
    """A PNG file of this program with these settings, or none; the pixels stay as they are."""
    chunks, at = io.BytesIO(), _HEADER_BYTES
    for kind, data in _chunks(None if settings is None else to_text(settings)):
        putchunk(chunks, kind, data)
    while at < len(png):
        end = at + 12 + int.from_bytes(png[at : at + 4], "big")  # length, kind, data, checksum
        if png[at + 4 : at + 8] not in _TEXT_CHUNKS:
            chunks.write(png[at:end])
        at = end
    return png[:_HEADER_BYTES] + chunks.getvalue()


def _chunks(text: str | None) -> list[tuple[bytes, bytes]]:
    """Of a PNG: iTXt where Latin-1 does not suffice."""
    info = PngInfo()
    if text is not None:
        info.add_text(KEY, text)
    return [(kind, data) for kind, data, *_ in info.chunks]


def read(path: Path | str) -> Settings | None:
    """Read the settings in a picture, None if it has none.

    Pixels are not decoded, and memory is bounded whatever the file says.

    Raises:
        PictureError: not a picture, or a damaged one.
        TooLargeError: it, or its text, is larger than any that this program writes.
        MetadataError: what it says cannot be read.
        OSError: the file cannot be read.
    """
    path = Path(path)
    if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would wait for its other end
        raise PictureError(f"{path.name}: not a picture that can be read: it is no file")
    try:
        with path.open("rb") as file:
            text = image_text.read_text(file, KEY)
    except TooLargeError as error:
        raise TooLargeError(f"{path.name}: {error}") from error
    except PictureError as error:
        raise PictureError(f"{path.name}: not a picture that can be read: {error}") from error
    if text is None:
        return None
    if len(text) > MAX_TEXT:
        raise TooLargeError(f"{path.name}: its settings are longer than {MAX_TEXT} characters")
    return from_text(text)


def _split_prompts(text: str) -> tuple[str, str]:
    """Return prompt and negative prompt: the lines before the first `Negative prompt:`, the others.

    Lines lose their outer spaces. They are taken one by one: a list of them may be 20 times as
    large as the text.
    """
    prompt, negative = io.StringIO(), io.StringIO()
    target = prompt
    for line in io.StringIO(text, newline="\n"):
        line = line.strip()
        if line.startswith(NEGATIVE):
            target = negative
        if target is negative:
            line = line.removeprefix(NEGATIVE).strip()
        target.write(f"{line}\n")
    return prompt.getvalue()[:-1], negative.getvalue()[:-1]


def _quote(value: object) -> str:
    text = str(value)
    return text if _PLAIN_VALUE.fullmatch(text) else json.dumps(text)


def _unquote(value: str) -> str:
    if len(value) < 2 or value[0] != '"' or value[-1] != '"':
        return value
    try:
        return str(json.loads(value))
    except ValueError:
        return value


def _number(fields: dict[str, str], key: str, kind: type[Number]) -> Number | None:
    value = fields.get(key)
    if value is None:
        return None
    try:
        return kind(value)
    except ValueError:
        kinds = {int: "a whole number", float: "a number"}
        raise MetadataError(f"{key} is {value[:40]!r}; expected {kinds[kind]}") from None


def _size(value: str | None) -> tuple[int | None, int | None]:
    if value is None:
        return None, None
    match = re.fullmatch(r"(\d{1,9})x(\d{1,9})", value)
    if match is None:
        raise MetadataError(f"Size is {value[:40]!r}; expected WIDTHxHEIGHT")
    return int(match[1]), int(match[2])


def _printable(text: str) -> str:
    """Without what PNG text cannot hold: control characters and lone surrogates."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}"
        if unicodedata.category(char) in ("Cc", "Cs") and char not in "\t\n\r"
        else char
        for char in text
    )
