"""Settings from pictures and texts that a visitor brings."""

import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, PngImagePlugin

from pipeline import metadata
from pipeline.metadata import Settings
from ui import restore, words
from ui.restore import RestoreError

MADE_HERE = Settings("a star", "dull", 7, 30, 6.5, 8, 8, "org/model", None, "Euler")


def picture(path: Path, text: str | None) -> Path:
    info = PngImagePlugin.PngInfo()
    if text is not None:
        info.add_text(metadata.KEY, text)
    Image.new("RGB", (8, 8)).save(path, pnginfo=info)
    return path


def huge_png(path: Path) -> Path:
    """Says that it has a hundred million pixels."""
    header = struct.pack(">IIBBBBB", 10_000, 10_000, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            for kind, data in chunks
        )
    )
    return path


def test_a_picture_made_here(tmp_path: Path):
    path = picture(tmp_path / "x.png", metadata.to_text(MADE_HERE))
    assert restore.from_picture(path) == MADE_HERE
    assert not path.exists()


def test_a_text_of_another_program():
    found = restore.from_text(
        "a cat\nNegative prompt: dog\n"
        "Steps: 20, Sampler: Euler a, CFG scale: 7, Seed: 42, Size: 512x768, Model: v3"
    )
    assert (found.prompt, found.negative_prompt, found.seed) == ("a cat", "dog", 42)


def damaged(path: Path) -> Path:
    whole = picture(path, "x").read_bytes()
    path.write_bytes(whole[:40])
    return path


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: picture(path, None), words.NO_SETTINGS_IN_PICTURE),
        (lambda path: picture(path, "<script>alert(1)</script>"), words.UNREADABLE_SETTINGS),
        (
            lambda path: picture(path, "x\nSteps: many, Seed: 1, Size: 1x1"),
            words.UNREADABLE_SETTINGS,
        ),
        (huge_png, words.TOO_LARGE_A_PICTURE),
        (damaged, words.UNREADABLE_PICTURE),
        (lambda path: path.write_text("<svg/>") and path, words.UNREADABLE_PICTURE),
        (lambda path: path.write_bytes(b"") or path, words.UNREADABLE_PICTURE),
    ],
)
def test_pictures_without_settings(tmp_path: Path, make: Any, said: str):
    path = make(tmp_path / "x.png")
    with pytest.raises(RestoreError) as raised:
        restore.from_picture(path)
    assert str(raised.value) == said
    assert not path.exists()


@pytest.mark.parametrize("text", ["", "hello", "a: b", "x" * 2**21, "Steps: x, Seed: y, CFG: z"])
def test_texts_without_settings(text: str):
    with pytest.raises(RestoreError, match="No settings were found"):
        restore.from_text(text)


def test_what_was_found_is_shown_and_nothing_else_happens():
    shown, button, chosen = restore._of_text("<b>\nSteps: 20, CFG scale: 7, Seed: 42")
    assert "&lt;b&gt;" in shown
    assert button.visible
    assert chosen is not None
    for nothing in ("", " ", None, "hello"):
        said, button, chosen = restore._of_text(nothing)
        assert not button.visible
        assert chosen is None
        assert ("No settings" in said) == bool(nothing and nothing.strip())


def test_a_call_that_names_no_file(tmp_path: Path):
    for made_up in (Path(), tmp_path, tmp_path / "x.png"):
        with pytest.raises(RestoreError, match=words.UNREADABLE_PICTURE):
            restore.from_picture(made_up)
