"""Settings in pictures: exact round trips, AUTOMATIC1111's own texts, and hostile files."""

import contextlib
import io
import random
import struct
import time
import warnings
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from PIL import ExifTags, Image

from pipeline.errors import MetadataError
from pipeline.images.metadata import (
    BLURRED,
    Settings,
    attach,
    converted,
    from_text,
    read,
    rewritten,
    save_png,
    to_text,
)
from pipeline.images.opening import MAX_SIDE
from pipeline.images.png import encode_png
from pipeline.schedulers.config import SCHEDULERS
from pipeline.schedulers.names import SAMPLERS

SETTINGS = Settings(
    prompt="a large red star on a blue background",
    negative_prompt="green, blurry",
    seed=4294967295,
    num_inference_steps=25,
    guidance_scale=5.0,
    width=1024,
    height=768,
    model="stabilityai/stable-diffusion-xl-base-1.0",
    revision="462165984030d82259a11f4367a4eed129e94a7b",
    scheduler="euler",
)
TEXT = (
    "a large red star on a blue background\n"
    "Negative prompt: green, blurry\n"
    "Steps: 25, Sampler: Euler, CFG scale: 5.0, Seed: 4294967295, Size: 1024x768, "
    "Model: stabilityai/stable-diffusion-xl-base-1.0, "
    "Model revision: 462165984030d82259a11f4367a4eed129e94a7b, Version: sdxl-flax"
)
NOT_SAID = dict.fromkeys(
    [
        *("seed", "num_inference_steps", "guidance_scale", "width", "height", "model", "revision"),
        *("sampler", "safety_checker", "guidance_until", "variation_seed", "variation_strength"),
        *("loras", "lora_hashes", "schedule_type"),
    ]
)
HOSTILE = [
    "",
    " ",
    "\n",
    "  spaces around  ",
    "two\nlines",
    "two\r\nlines\r",
    "lines \n with \n\n outer spaces\n",
    "Negative prompt: cats",
    "a dog\nNegative prompt: cats\nand more",
    "Steps: 3",
    "Steps: 3, Sampler: DDIM, CFG scale: 1, Seed: 1",
    "a dog\nSteps: 3, Sampler: DDIM, CFG scale: 1, Seed: 1, Size: 8x8",
    'a "dog", \'quoted\': "',
    '"all of it"',
    "back\\slash \\n \\",
    "a: b, c: d, e: f",
    "Prompt: x, Negative prompt: y",
    "a star <lora:typed:1>",
    "<lora:typed:1>",
    "<lora:typed>\n<lora:not, a name:1>",
    "café, naïve",
    "星 😀 👩‍👩‍👧 שלום \u202eabc",
    "\ud800 lone \udfff",
    "nul \x00 escape \x1b[31m bell \x07 delete \x7f next line \x85",
    "\u2028 separators \u2029\u00a0",
    "\ufeff\u200b",
    "x" * 10_000,
    "😀, " * 5_000,
]


def png(text: str | None = None) -> Image.Image:
    image = Image.new("RGB", (8, 4), "red")
    if text is not None:
        image.info["parameters"] = text
    return image


def test_text() -> None:
    assert to_text(SETTINGS) == TEXT
    assert from_text(TEXT) == SETTINGS


def test_text_without_negative_prompt_and_revision() -> None:
    settings = replace(SETTINGS, negative_prompt="", model="miniature", revision=None)
    assert to_text(settings) == (
        "a large red star on a blue background\n"
        "Steps: 25, Sampler: Euler, CFG scale: 5.0, Seed: 4294967295, Size: 1024x768, "
        "Model: miniature, Version: sdxl-flax"
    )
    assert from_text(to_text(settings)) == settings


def test_ambiguous_prompt_is_shown_and_kept() -> None:
    settings = replace(SETTINGS, prompt="a dog\nNegative prompt: cats", negative_prompt="")
    *shown, last = to_text(settings).split("\n")
    assert shown == ["a dog", "Negative prompt: cats"]
    assert last.endswith('Prompt: "a dog\\nNegative prompt: cats", Negative prompt: ""')


def test_loras_are_tags_at_the_end_of_the_prompt() -> None:
    hashes = "other: 0123456789ab, pixel: 1a2b3c4d5e6f"
    settings = replace(SETTINGS, loras="other:0.5:0.25,pixel:0.8", lora_hashes=hashes)
    prompt, _, last = to_text(settings).split("\n")
    assert prompt == f"{SETTINGS.prompt} <lora:other:0.25:0.5> <lora:pixel:0.8>"
    assert f', Lora hashes: "{hashes}", Version' in last
    assert "Loras" not in last
    assert from_text(to_text(settings)) == settings


def test_names_in_other_alphabets_are_written_as_automatic1111_writes_them() -> None:
    named = Settings("a cat", seed=1, num_inference_steps=2, ti_hashes="猫, é: 1a2b3c4d5e6f")
    assert 'TI hashes: "猫, é: 1a2b3c4d5e6f"' in to_text(named)
    broken = replace(named, ti_hashes="\udc80: 1a2b3c4d5e6f")
    assert to_text(broken).encode()
    assert from_text(to_text(broken)) == broken


def test_loras_of_automatic1111() -> None:
    text = (
        "<lora:Pixel Art_v2:.8>, a cat <lora:add-detail:1:0.5>, <lora:more> sharp <lora:bad:7>\n"
        "Negative prompt: <lora:no:1> dull\n"
        "Steps: 20, Sampler: Euler a, CFG scale: 7, Seed: 1, Size: 512x512, Model hash: 6ce0161689,"
        ' Lora hashes: "Pixel Art_v2: 3f2b5d5ac7f2, add-detail: 47aaaf0d29c2", Version: v1.10.1'
    )
    settings = from_text(text)
    assert settings.prompt == ", a cat, sharp <lora:bad:7>"
    assert settings.negative_prompt == "<lora:no:1> dull"
    assert settings.loras == "Pixel Art_v2:0.8,add-detail:0.5:1,more:1"
    assert settings.lora_hashes == "Pixel Art_v2: 3f2b5d5ac7f2, add-detail: 47aaaf0d29c2"


def test_a_typed_tag_is_no_lora() -> None:
    settings = replace(SETTINGS, prompt="a <lora:typed:1>", negative_prompt="", loras="pixel:0.5")
    prompt, last = to_text(settings).split("\n")
    assert prompt == "a <lora:typed:1> <lora:pixel:0.5>"
    assert last.endswith('Prompt: "a <lora:typed:1>", Negative prompt: "", Loras: "pixel:0.5"')
    assert from_text(to_text(settings)) == settings
    with pytest.raises(MetadataError, match="Loras is 'pixel'; expected up to 8"):
        from_text('a\nSteps: 1, Seed: 1, Prompt: "b", Loras: "pixel"')


@pytest.mark.parametrize("prompt", HOSTILE)
def test_hostile_prompts_survive(tmp_path: Path, prompt: str) -> None:
    for settings in (
        replace(SETTINGS, prompt=prompt),
        replace(SETTINGS, negative_prompt=prompt),
        replace(SETTINGS, prompt=prompt, negative_prompt=prompt),
        replace(SETTINGS, model=prompt),
        replace(SETTINGS, prompt=prompt, negative_prompt=prompt, loras="other:0.5:0.25,pixel:0.8"),
    ):
        assert from_text(to_text(settings)) == settings
        image = png()
        attach(image, settings)
        save_png(image, tmp_path / "picture.png")
        assert read(tmp_path / "picture.png") == settings


def test_surrogate_pairs_become_the_character() -> None:
    settings = from_text(to_text(replace(SETTINGS, prompt="a \ud83d\ude00")))
    assert settings.prompt == "a 😀"


def test_random_prompts_survive() -> None:
    draw = random.Random(0)
    pieces = [
        "a",
        " ",
        "\n",
        ",",
        ":",
        '"',
        "\\",
        "Steps: 1",
        "Negative prompt:",
        "\x00",
        "é",
        "😀",
    ]
    for _ in range(2000):
        prompt, negative = ("".join(draw.choices(pieces, k=draw.randint(0, 8))) for _ in "ab")
        settings = replace(SETTINGS, prompt=prompt, negative_prompt=negative)
        assert from_text(to_text(settings)) == settings


@pytest.mark.parametrize("guidance_scale", [0.0, 1.0, 7.25, 1e-7, 1e20, -1.5, 0.1 + 0.2])
def test_numbers_survive(guidance_scale: float) -> None:
    settings = replace(SETTINGS, guidance_scale=guidance_scale, seed=0)
    assert from_text(to_text(settings)) == settings


def test_settings_with_few_values() -> None:
    settings = Settings("a dog", "", **NOT_SAID)
    assert from_text(to_text(settings)) == settings


def test_text_of_automatic1111() -> None:
    settings = from_text(
        "masterpiece, a (red:1.2) star\nsecond line\nNegative prompt: lowres,\nbad anatomy\n"
        "Steps: 20, Sampler: DPM++ 2M Karras, CFG scale: 7, Seed: 965400086, Size: 512x768, "
        'Model hash: 6ce0161689, Model: v1-5-pruned, Lora hashes: "a: 1, b: 2", '
        'Hires prompt: "x, \\"y\\"", Version: v1.6.0'
    )
    assert settings == Settings(
        prompt="masterpiece, a (red:1.2) star\nsecond line",
        model_hash="6ce0161689",
        negative_prompt="lowres,\nbad anatomy",
        seed=965400086,
        num_inference_steps=20,
        guidance_scale=7.0,
        width=512,
        height=768,
        model="v1-5-pruned",
        revision=None,
        scheduler="dpmsolver++",
        sigma_schedule="karras",
        lora_hashes="a: 1, b: 2",
        prompt_syntax="a1111",
    )


@pytest.mark.parametrize(
    ("said", "read_as", "written"),
    [
        ("Sampler: Euler a", ("euler-ancestral", None, None, None), "Sampler: Euler a"),
        (
            "Sampler: DPM++ 2M, Schedule type: Karras",
            ("dpmsolver++", "karras", None, None),
            "Sampler: DPM++ 2M, Schedule type: Karras",
        ),
        (
            "Sampler: DPM++ SDE Karras",
            ("dpmsolver++-sde", "karras", None, None),
            "Sampler: DPM++ SDE, Schedule type: Karras",
        ),
        (
            "Sampler: DDIM, Schedule type: Automatic",
            ("ddim", "default", None, None),
            "Sampler: DDIM, Schedule type: Uniform",
        ),
        ("Sampler: DPM2 a Karras", (None, None, "DPM2 a Karras", None), "Sampler: DPM2 a Karras"),
        (
            "Sampler: Heun, Schedule type: KL Optimal",
            ("heun", None, None, "KL Optimal"),
            "Sampler: Heun, Schedule type: KL Optimal",
        ),
    ],
)
def test_samplers_of_automatic1111(
    said: str, read_as: tuple[str | None, ...], written: str
) -> None:
    settings = from_text(f"a star\nSteps: 20, {said}, CFG scale: 7, Seed: 1")
    found = (
        settings.scheduler,
        settings.sigma_schedule,
        settings.sampler,
        settings.schedule_type,
    )
    assert found == read_as
    assert f"Steps: 20, {written}, CFG scale: 7.0" in to_text(settings)
    assert from_text(to_text(settings)) == settings


def test_the_settings_of_a_scheduler_survive() -> None:
    settings = replace(
        SETTINGS,
        scheduler="tcd",
        timesteps="999,749,499",
        timestep_spacing="trailing",
        eta=0.25,
    )
    said = ', Timestep spacing: trailing, Timesteps: "999,749,499", Eta DDIM: 0.25, '
    assert said in to_text(settings)
    assert from_text(to_text(settings)) == settings
    with pytest.raises(MetadataError, match="Timesteps is '9,99'; expected a list"):
        from_text('a\nSteps: 1, Seed: 1, Timesteps: "9,99"')


def test_the_syntax_of_a_prompt_survives() -> None:
    settings = replace(SETTINGS, prompt="a (red:1.3) fox", prompt_syntax="a1111", loras="pixel:0.8")
    text = to_text(settings)
    assert text.startswith("a (red:1.3) fox <lora:pixel:0.8>\n")
    assert "Prompt syntax: a1111" in text
    assert from_text(text) == settings


@pytest.mark.parametrize(
    ("prompts", "version", "syntax"),
    [
        ("a (red:1.3) fox", "v1.10.1", "a1111"),
        ("a fox\nNegative prompt: [blurry]", "v1.10.1", "a1111"),
        ("a (red:1.3) fox", None, "a1111"),
        ("a fox <lora:pixel:1>", "v1.10.1", None),  # means the same in all syntaxes
        ("a (red:1.3) fox", "sdxl-flax", None),
        ("a (red:1.3) fox", "v1.10.1, Prompt syntax: plain", "plain"),
    ],
)
def test_the_syntax_of_other_programs(
    prompts: str, version: str | None, syntax: str | None
) -> None:
    text = f"{prompts}\nSteps: 20, Sampler: Euler, Seed: 1"
    found = from_text(text if version is None else f"{text}, Version: {version}")
    assert found.prompt_syntax == syntax


def test_fields_that_are_not_there() -> None:
    settings = from_text("Version: 1, Sampler: Euler, Steps: 4")
    right = replace(Settings("", "", **NOT_SAID), num_inference_steps=4, scheduler="euler")
    assert settings == right


def test_a_blurred_picture_is_marked_in_its_text() -> None:
    settings = replace(SETTINGS, safety_checker=BLURRED)
    assert "Safety checker: blurred, " in to_text(settings)
    assert from_text(to_text(settings)) == settings


def test_variations_and_guidance_that_ended() -> None:
    settings = replace(SETTINGS, guidance_until=0.5, variation_seed=3, variation_strength=0.1 + 0.2)
    said = "Guidance until: 0.5, Seed: 4294967295, Variation seed: 3, Variation seed strength: 0.3"
    assert said in to_text(settings)
    assert from_text(to_text(settings)) == settings


def test_a_second_run() -> None:
    settings = replace(SETTINGS, enlarge="2048x1536", enlarge_strength=0.5, enlarge_steps=8)
    assert "Denoising strength: 0.5, Hires resize: 2048x1536, Hires steps: 8" in to_text(settings)
    both = settings, replace(settings, strength=0.25)
    assert both == tuple(from_text(to_text(each)) for each in both)
    assert from_text(to_text(settings).replace("x1536,", "x0,")).enlarge is None


def test_every_scheduler_has_a_name_that_survives() -> None:
    assert SAMPLERS.keys() == SCHEDULERS.keys()
    for name, text in SAMPLERS.items():
        settings = replace(SETTINGS, scheduler=name, sigma_schedule="karras")
        assert f"Sampler: {text}, Schedule type: Karras, " in to_text(settings)
        assert from_text(to_text(settings)) == settings


@pytest.mark.parametrize("text", ["", "a dog", "a dog\nNegative prompt: cats", "Steps: 3, Seed: 4"])
def test_text_without_settings(text: str) -> None:
    with pytest.raises(MetadataError, match="no settings: the last line should read"):
        from_text(text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Steps: 25", "Steps: many", r"Steps is 'many'; expected a whole number"),
        ("Seed: 4294967295", "Seed: 1.5", r"Seed is '1\.5'"),
        ("Seed: 4294967295", "Seed: " + "9" * 5000, r"Seed is '9{40}'"),
        ("CFG scale: 5.0", "CFG scale: high", r"CFG scale is 'high'; expected a number"),
        ("Size: 1024x768", "Size: large", r"Size is 'large'; expected WIDTHxHEIGHT"),
    ],
)
def test_values_of_the_wrong_kind(old: str, new: str, message: str) -> None:
    with pytest.raises(MetadataError, match=message):
        from_text(TEXT.replace(old, new))


@pytest.mark.parametrize("prompt", ["{" * 2**18 + "}" * 2**18, "(a" * 2**18, "a " * 2**18])
def test_a_long_prompt_of_another_program_is_not_read(prompt: str) -> None:
    """Reading the nested brackets would take hours."""
    last = "Steps: 20, Sampler: Euler, Seed: 1"
    for text in (f"{prompt}\n{last}", f"a\nNegative prompt: {prompt}\n{last}"):
        assert from_text(text).prompt_syntax == "a1111"


@pytest.mark.parametrize("piece", ["a", " ", "a:", '"', 'a: "', "a: \\", ",", "\n", "a b-/"])
def test_any_text_is_read_in_linear_time(piece: str) -> None:
    start = time.thread_time()
    with contextlib.suppress(MetadataError):
        from_text("Steps: 1, Seed: 2, " + piece * (2**19 // len(piece)))
    assert time.thread_time() - start < 5


def test_chunk_is_plain_latin_1_where_that_suffices() -> None:
    for prompt, kind in (("café", b"tEXt"), ("星", b"iTXt")):
        image, file = png(), io.BytesIO()
        attach(image, replace(SETTINGS, prompt=prompt))
        save_png(image, file)
        assert kind + b"parameters\0" in file.getvalue()


def test_picture_without_settings(tmp_path: Path) -> None:
    save_png(png(), tmp_path / "picture.png")
    assert read(tmp_path / "picture.png") is None
    png().save(tmp_path / "picture.jpg")
    assert read(str(tmp_path / "picture.jpg")) is None


def test_pixels_are_kept(tmp_path: Path) -> None:
    image = Image.effect_noise((16, 8), 50).convert("RGB")
    attach(image, SETTINGS)
    save_png(image, str(tmp_path / "picture.png"))
    with Image.open(tmp_path / "picture.png") as saved:
        assert saved.tobytes() == image.tobytes()


@pytest.mark.parametrize("mode", ["L", "RGBA"])
def test_pictures_are_saved_in_rgb(mode: str) -> None:
    image, file = Image.effect_noise((16, 8), 50).convert(mode), io.BytesIO()
    save_png(image, file)
    with Image.open(file) as saved:
        assert saved.mode == "RGB"
        assert saved.tobytes() == image.convert("RGB").tobytes()


def test_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "picture.png").write_bytes(b"the one before")

    class DiskFull(io.FileIO):
        def write(self, content: bytes) -> int:  # type: ignore[override]
            super().write(content[: len(content) // 2])
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", lambda path, mode: DiskFull(path, mode))
    with pytest.raises(OSError, match=r"cannot be written: No space left .*picture\.png"):
        save_png(png(), tmp_path / "picture.png")
    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"]
    assert (tmp_path / "picture.png").read_bytes() == b"the one before"


def test_write_into_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cannot be written: No such file.*picture\.png"):
        save_png(png(), tmp_path / "missing" / "picture.png")


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def raw_png(width: int, height: int, *chunks: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", header), *chunks]
    return b"".join([*parts, chunk(b"IDAT", b""), chunk(b"IEND", b"")])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a picture"),
        (b"GIF89a" + bytes(99), "not a picture"),
        (b"<svg/>", "not a picture"),
        (b"\x89PNG\r\n\x1a\n", "not a picture"),
        (raw_png(8, 8, chunk(b"tEXt", b"parameters\0" + b"x" * 2**21)), "longer than"),
        (
            raw_png(8, 8, chunk(b"zTXt", b"parameters\0\0" + zlib.compress(bytes(2**24)))),
            "not a picture",
        ),
        (raw_png(8, 8, chunk(b"tEXt", b"parameters\0a dog")), "no settings"),
    ],
)
def test_hostile_files(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(data)
    with pytest.raises(MetadataError, match=message):
        read(path)


def test_file_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    with path.open("wb") as file:
        file.truncate(2**27)
    with pytest.raises(MetadataError, match=r"picture\.png: larger than"):
        read(path)


def test_damaged_files_are_refused_or_read(tmp_path: Path) -> None:
    image, file, draw = png(), io.BytesIO(), random.Random(0)
    attach(image, SETTINGS)
    save_png(image, file)
    whole, path = file.getvalue(), tmp_path / "picture.png"
    for _ in range(500):
        damaged = bytearray(whole[: draw.randint(0, len(whole))])
        for _ in range(draw.randint(0, 3) if damaged else 0):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(damaged)
        with contextlib.suppress(MetadataError):
            read(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "picture.png")


def saved(settings: Settings | None) -> bytes:
    image, file = Image.linear_gradient("L").resize((16, 8)).convert("RGB"), io.BytesIO()
    if settings:
        attach(image, settings)
    save_png(image, file)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
@pytest.mark.parametrize("prompt", [SETTINGS.prompt, "星 😀\n<b>", "nul \x00 \ud800"])
def test_other_kinds_of_files_have_the_settings_too(
    tmp_path: Path, kind: Literal["JPEG", "WEBP"], prompt: str
) -> None:
    settings, path = replace(SETTINGS, prompt=prompt), tmp_path / "picture"
    path.write_bytes(converted(saved(settings), kind))
    assert read(path) == settings
    with Image.open(path) as image:
        assert image.format == kind
        comment = image.getexif().get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.UserComment]
    assert comment == b"UNICODE\0" + to_text(settings).encode("utf-16-be")
    path.write_bytes(converted(saved(None), kind))
    assert read(path) is None


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_other_kinds_of_files_hold_the_longest_pictures(kind: Literal["JPEG", "WEBP"]) -> None:
    """Pictures with a redrawn part keep the size of the picture to start from."""
    longest = encode_png(np.zeros((1, MAX_SIDE, 3), np.uint8))
    with Image.open(io.BytesIO(converted(longest, kind))) as image:
        assert image.size == (MAX_SIDE, 1)


def test_settings_too_long_for_a_jpeg(tmp_path: Path) -> None:
    png = saved(replace(SETTINGS, prompt="x" * 40_000))
    with pytest.raises(MetadataError, match="too long for JPEG"):
        converted(png, "JPEG")
    (tmp_path / "picture").write_bytes(converted(png, "WEBP"))
    found = read(tmp_path / "picture")
    assert found is not None
    assert len(found.prompt) == 40_000


def test_settings_come_and_go_and_the_pixels_stay() -> None:
    for settings in (SETTINGS, replace(SETTINGS, prompt="星")):
        with_settings = saved(settings)
        assert rewritten(with_settings, None) == saved(None)
        assert rewritten(saved(None), settings) == with_settings
        assert rewritten(with_settings, SETTINGS) == saved(SETTINGS)


@pytest.mark.parametrize(
    ("comment", "prompt"),
    [
        (b"UNICODE\0" + TEXT.encode("utf-16-be"), SETTINGS.prompt),
        (b"ASCII\0\0\0" + TEXT.encode(), SETTINGS.prompt),
        (TEXT.encode(), SETTINGS.prompt),
        (b"UNICODE\0" + TEXT.encode("utf-16-le"), SETTINGS.prompt),
        (b"UNICODE\0" + TEXT.encode("utf-16"), SETTINGS.prompt),
        (b"UNICODE\0" + b"\xfe\xff" + TEXT.encode("utf-16-be"), SETTINGS.prompt),
        (TEXT.encode("utf-16"), SETTINGS.prompt),
        (b"ASCII\0\0\0" + TEXT.encode("utf-8-sig"), SETTINGS.prompt),
        (bytes(8) + TEXT.encode(), SETTINGS.prompt),
        (b"ASCII\0\0\0" + b" " * 99, None),
        (b"UNICODE\0" + bytes(64), None),
        (b"", None),
    ],
)
def test_comments_of_other_programs(tmp_path: Path, comment: bytes, prompt: str | None) -> None:
    exif = Image.Exif()
    exif[ExifTags.IFD.Exif] = {ExifTags.Base.UserComment: comment}
    png().save(tmp_path / "picture.jpg", exif=exif)
    found = read(tmp_path / "picture.jpg")
    assert (found and found.prompt) == prompt


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_damaged_exif_is_refused_or_read(tmp_path: Path, kind: Literal["JPEG", "WEBP"]) -> None:
    whole, draw, path = converted(saved(SETTINGS), kind), random.Random(0), tmp_path / "picture"
    for _ in range(500):
        damaged = bytearray(whole)
        for _ in range(draw.randint(1, 6)):
            damaged[draw.randrange(120)] = draw.randrange(256)
        path.write_bytes(damaged)
        with contextlib.suppress(MetadataError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(path)
