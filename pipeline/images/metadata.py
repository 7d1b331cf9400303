"""A picture's settings, in the text that AUTOMATIC1111's web UI writes into its PNG files.

The text has the prompt, then `Negative prompt: ...`, then one line such as
`Steps: 25, Sampler: Euler, CFG scale: 5.0, Seed: 7, Size: 1024x1024, Model: ...`, in which values
that hold separators are JSON strings. Format:
https://github.com/AUTOMATIC1111/stable-diffusion-webui/wiki/Features#png-info

The format does not separate every prompt from the text after it, and drops the spaces around a
prompt. If reading would return another prompt than was written, the last line also has the prompts
as JSON strings, under `Prompt` and `Negative prompt`.

LoRAs are tags at the end of the prompt, such as `<lora:pixel:0.8>`, as in AUTOMATIC1111's files.
Their files' hashes are among the settings, under `Lora hashes`. A text with the prompts as JSON
strings also has the weights under `Loras`, because such a prompt may hold a tag that drew nothing.

A picture that was drawn again in a larger size has the first size under `Size` and the larger one
under `Hires resize`, as in AUTOMATIC1111's files. `Denoising strength` is then the second run's. If
the first run started from a picture too, that of the second run is under `Hires strength`.

Controls are units such as `ControlNet 0: "Module: canny, Model: canny, Weight: 0.8, ..."`, as in
files of sd-webui-controlnet. Those that it cannot express are also under `Controls`.

In JPEG and WebP files the text is EXIF's user comment, as in AUTOMATIC1111's files.
"""

import io
import json
import re
import stat
import unicodedata
from dataclasses import KW_ONLY, dataclass, make_dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from PIL import ExifTags, Image, ImageOps
from PIL.PngImagePlugin import PngInfo

from pipeline.errors import MetadataError, PictureError, TooLargeError
from pipeline.images import image_text
from pipeline.images.files import write_durably
from pipeline.images.image_text import MAX_TEXT
from pipeline.images.png import encode_png
from pipeline.request import CHOICES, SETTINGS, VALUES, with_own_names
from pipeline.setting_kinds import Controls, Loras, Named, Setting
from pipeline.text.controls import (
    MAX_CONTROLS,
    format_controls,
    from_unit,
    parse_controls,
    to_unit,
)
from pipeline.text.explanation import reads_as_plain
from pipeline.text.loras import add_tags, take_tags
from pipeline.text.prompt_syntax import A1111

BLURRED = "blurred"  # the value of `safety_checker` for a flagged picture
KEY = "parameters"  # the PNG text chunk, and the entry in `Image.info`
PROGRAM = "sdxl-flax"
QUALITY = 95  # of JPEG and WebP files, which lose detail

NEGATIVE = "Negative prompt:"
_UNICODE = b"UNICODE\0"  # starts an EXIF comment in UTF-16, big-endian here
# The quantifiers are possessive or bounded, so that no text takes more than linear time.
_FIELD = re.compile(r'(\w[\w \-/]{1,40}+):\s*("(?:\\.|[^\\"])+"|[^,]*)(?:,|$)')
_MAX_FIELDS = 1000  # read from a line; programs write fewer than 100
_MAX_LINE = 2**18  # characters; matching takes up to 100 bytes for each
_PLAIN_VALUE = re.compile(r"\w[\w .\-+/]*(?<! )")
# Keys that come first, in AUTOMATIC1111's order.
_FIRST = (
    *("Steps", "Sampler", "Schedule type", "CFG scale", "Guidance until", "Seed"),
    *("Variation seed", "Variation seed strength"),
)

HASH_LENGTH = 10  # digits of a model's hash, as AUTOMATIC1111 writes it
# Texts beside `pipeline.request.VALUES`, with their keys.
_TEXT_KEYS = {
    "revision": "Model revision",
    "vae": "VAE",
    "unet": "UNet",
    "refiner": "Refiner",
    "quantization": "Quantization",
    "model_hash": "Model hash",
    "ti_hashes": "TI hashes",
    "safety_checker": "Safety checker",
    "lora_hashes": "Lora hashes",
}
_Values: Any = make_dataclass(
    "_Values",
    [
        *((setting.name, setting.kind | None, None) for setting in VALUES),
        *((name, str | None, None) for name in (*_TEXT_KEYS, "sampler", "schedule_type")),
    ],
    frozen=True,
    kw_only=True,
)


@dataclass(frozen=True)
class Settings(_Values):
    """The settings that a picture was made with; None for a setting that its text does not have.

    It has a field for each of `pipeline.request.VALUES`, beside those below. Seeds are the
    picture's own, and a setting that changed nothing is None.

    Attributes:
        negative_prompt: the negative prompt, "" for none.
        width: in pixels.
        height: in pixels.
        model: a Hub id, or the name of a folder or file; not the model's name in requests, which
            is the meaning of this setting in VALUES.
        revision: the commit on the Hub.
        vae, unet: the same for networks that replaced the model's own.
        refiner: the same for the refiner that drew the last steps.
        quantization: such as "int8", in which the model's UNet multiplied; None for its own dtype.
        sampler: the name of a scheduler that this program does not have, from another program's
            text; None otherwise.
        schedule_type: the same for a sigma schedule.
        safety_checker: `BLURRED` if a safety checker or the operator's screen flagged the picture.
        model_hash: the first 10 digits of the SHA-256 of the model's single file, if it is known.
        lora_hashes: the start of the hash of each LoRA's file, such as "pixel: 1a2b3c4d5e6f".
        ti_hashes: the start of the hash of each embedding's file, such as "scribble: 1a2b3c4d5e6f".
    """

    prompt: str
    negative_prompt: str = ""
    _: KW_ONLY
    width: int | None = None
    height: int | None = None


def to_text(settings: Settings) -> str:
    """Return the settings as text, from which `from_text` reads equal settings."""
    s = settings
    values = {
        setting.key: _value(setting, s)
        for setting in VALUES
        if not isinstance(setting, Loras | Named | Controls)
    }
    for i, control in enumerate(parse_controls(s.controls or "")):
        values[f"ControlNet {i}"] = to_unit(control)
    if s.sampler is not None:
        values["Sampler"] = s.sampler
    if s.schedule_type is not None:
        values["Schedule type"] = s.schedule_type
    if s.enlarge and s.strength is None:
        values["Denoising strength"] = values.pop("Hires strength")
    size = None if s.width is None or s.height is None else f"{s.width}x{s.height}"
    texts = {key: getattr(s, name) for name, key in _TEXT_KEYS.items()}
    other_fields = {"Size": size, "Model": s.model, **texts, "Version": PROGRAM}
    fields = dict.fromkeys(_FIRST) | values | other_fields
    last = ", ".join(
        f"{key}: {_quote(value)}" for key, value in fields.items() if value is not None
    )
    lines = [_printable(add_tags(s.prompt, s.loras or "")), last]
    if s.negative_prompt:
        lines.insert(1, f"{NEGATIVE} {_printable(s.negative_prompt)}")
    text = "\n".join(lines).strip()
    try:
        if from_text(text) == settings:
            return text
    except MetadataError:
        pass
    prompts = f"Prompt: {json.dumps(s.prompt)}, {NEGATIVE} {json.dumps(s.negative_prompt)}"
    named = {"Loras": s.loras, "Controls": s.controls}
    return ", ".join(
        [text, prompts, *(f"{key}: {json.dumps(value)}" for key, value in named.items() if value)]
    )


def from_text(text: str) -> Settings:
    """Parse the settings in a text that `to_text` or AUTOMATIC1111 wrote; ignore other keys.

    The prompts of other programs are in AUTOMATIC1111's syntax. Plain text is found in those of at
    most `wildcards.MAX_TEXT` characters; longer ones are not read.

    Raises:
        MetadataError: if there is no line of settings, or a value in it has the wrong type.
    """
    prompt, negative_prompt, fields = split(text)
    if len(fields) < 3:  # AUTOMATIC1111's own criterion
        raise MetadataError(
            "no settings: the last line should read 'Steps: ..., Sampler: ..., ...'"
        )
    if (
        "Hires resize" in fields
        and "Hires strength" not in fields
        and "Denoising strength" in fields
    ):
        fields["Hires strength"] = fields.pop("Denoising strength")
    values = {setting.name: _parsed(fields, setting) for setting in VALUES}
    values = with_own_names(values)
    unknown_values = {name: values[name] for name in CHOICES if SETTINGS[name].fault(values[name])}
    values |= dict.fromkeys(unknown_values)
    if "Prompt" not in fields:
        prompt, loras = take_tags(prompt)
        values["loras"] = loras or None
    if "Controls" not in fields:
        values["controls"] = _controls(fields)
    is_told = "Prompt syntax" in fields or fields.get("Version") == PROGRAM
    if not (is_told or (reads_as_plain(prompt) and reads_as_plain(negative_prompt))):
        values["prompt_syntax"] = A1111
    width, height = _size(fields.get("Size"))
    return Settings(
        prompt=fields.get("Prompt", prompt),
        negative_prompt=fields.get(NEGATIVE.rstrip(":"), negative_prompt),
        **values,
        width=width,
        height=height,
        **{name: fields.get(key) for name, key in _TEXT_KEYS.items()},
        sampler=unknown_values.get("scheduler"),
        schedule_type=unknown_values.get("sigma_schedule"),
    )


def _controls(fields: dict[str, str]) -> str | None:
    """Return the controls in the fields of a text."""
    units = (fields[key] for i in range(MAX_CONTROLS) if (key := f"ControlNet {i}") in fields)
    try:
        return format_controls([*map(from_unit, units)]) or None
    except ValueError as error:
        raise MetadataError(f"ControlNet: {error}") from error


def split(text: str) -> tuple[str, str, dict[str, str]]:
    """Return the prompt, the negative prompt and the other fields of a text, none of them parsed.

    The last line has the fields.
    """
    before, newline, last = text.strip().rpartition("\n")
    matches = islice(_FIELD.finditer(last[:_MAX_LINE]), _MAX_FIELDS)
    fields = {match[1]: _unquote(match[2].strip()) for match in matches}
    return *_split_prompts(before + newline), fields


def attach(image: Image.Image, settings: Settings) -> None:
    """Put the settings into `image.info`, from where `save_png` takes them."""
    image.info[KEY] = to_text(settings)


def to_png(image: Image.Image) -> bytes:
    """Return a PNG file in RGB with the settings that are attached to the picture, if any."""
    return encode_png(np.asarray(image.convert("RGB")), _info(image.info.get(KEY)))


def save_png(image: Image.Image, target: Path | str | BinaryIO) -> None:
    """Write a PNG in RGB with the settings that are attached to the picture, if any.

    A file appears under its name only when it is complete.

    Raises:
        OSError: if the file cannot be written; the message names it.
    """
    if isinstance(target, str | Path):
        write_durably(Path(target), to_png(image))
    else:
        target.write(to_png(image))


def converted(png: bytes, kind: Literal["JPEG", "WEBP"], quality: int = QUALITY) -> bytes:
    """Convert a PNG file of this program to another format, with the same settings inside, if any.

    Args:
        png: the file.
        kind: the format of the result.
        quality: from 0, the smallest file, to 100, the best picture.

    Raises:
        MetadataError: if the settings do not fit into a JPEG file, whose EXIF data end at 64 KiB.
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
    """Return a PNG file of this program with other settings, or none, and the same pixels."""
    with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
        pixels = np.asarray(image)
    return encode_png(pixels, _info(None if settings is None else to_text(settings)))


def scaled(png: bytes, size: tuple[int, int]) -> bytes:
    """Return a PNG file of this program in another width and height, with the same settings.

    A picture of another shape is cut at both sides.
    """
    with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
        info = _info(image.info.get(KEY))
        picture = ImageOps.fit(image.convert("RGB"), size, Image.Resampling.LANCZOS)
    return encode_png(np.asarray(picture), info)


def _info(text: str | None) -> PngInfo:
    """Return the PNG chunk of a text: iTXt where Latin-1 does not suffice."""
    info = PngInfo()
    if text is not None:
        info.add_text(KEY, text)
    return info


def read(path: Path | str) -> Settings | None:
    """Return the settings in a picture, or None if it has none.

    Pixels are not decoded, and memory is bounded whatever the file says.

    Raises:
        PictureError: if the file is not a picture, or is damaged.
        TooLargeError: if the file or its text is larger than any that this program writes.
        MetadataError: if the text cannot be parsed.
        OSError: if the file cannot be read.
    """
    path = Path(path)
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would block
        raise PictureError(f"{path.name}: not a picture that can be read: it is not a file")
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
    """Split a text into prompt and negative prompt.

    The negative prompt begins at the first line that starts with `Negative prompt:`. Spaces around
    lines are dropped. Lines are read one by one, because a list of them may be 20 times as large as
    the text.
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
    """Return a value as AUTOMATIC1111 writes it: letters of other alphabets as they are."""
    text = str(value)
    if _PLAIN_VALUE.fullmatch(text):
        return text
    return json.dumps(text, ensure_ascii=text != _printable(text))


def _unquote(value: str) -> str:
    if len(value) < 2 or value[0] != '"' or value[-1] != '"':
        return value
    try:
        return str(json.loads(value))
    except ValueError:
        return value


def _value(setting: Setting, settings: Settings) -> Any:
    value = getattr(settings, setting.name)
    return None if value is None else setting.in_text(value)


def _parsed(fields: dict[str, str], setting: Setting) -> Any:
    value = fields.get(setting.key)
    if value is None:
        return None
    try:
        return setting.checked(value)
    except ValueError:
        expectation = f"expected {setting.noun}"
        raise MetadataError(f"{setting.key} is {value[:40]!r}; {expectation}") from None


def _size(value: str | None) -> tuple[int | None, int | None]:
    if value is None:
        return None, None
    match = re.fullmatch(r"(\d{1,9})x(\d{1,9})", value)
    if match is None:
        raise MetadataError(f"Size is {value[:40]!r}; expected WIDTHxHEIGHT")
    return int(match[1]), int(match[2])


def _printable(text: str) -> str:
    """Replace the characters that PNG text cannot hold: control characters and lone surrogates."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}"
        if unicodedata.category(char) in ("Cc", "Cs") and char not in "\t\n\r"
        else char
        for char in text
    )
