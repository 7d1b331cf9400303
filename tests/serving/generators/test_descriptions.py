"""Descriptions of LoRAs: their metadata, the files beside them, and their pictures."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from pipeline.facts import LoraFacts
from serving.generators import descriptions, watched
from serving.generators.watched import LoraFolder


def write(path: Path, **metadata: str) -> Path:
    save_file({"a": np.zeros(4, np.float32)}, path, metadata or None)
    return path


@pytest.fixture(autouse=True)
def old_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files that were written just now count as complete."""
    monkeypatch.setattr("serving.folders.SETTLED_S", 0.0)
    monkeypatch.setattr("serving.folders.RESCAN_S", 0.0)


def described(folder: Path) -> dict[str, LoraFacts]:
    loras = LoraFolder(folder)
    return {lora.name: lora for lora in loras.describe()}


def test_titles_and_trigger_words_of_the_file(tmp_path: Path):
    write(tmp_path / "plain.safetensors")
    title = {"modelspec.title": "  Pixel\x00\nart ", "modelspec.trigger_phrase": "pixel, 8 bit"}
    write(tmp_path / "pixel.safetensors", **title)
    tags = {"10_one": {"sks cat": 20, "a, b": 3}, "5_two": {"sks cat": 1, "grass": 9}}
    write(tmp_path / "tags.safetensors", ss_tag_frequency=json.dumps(tags))
    found = described(tmp_path)
    assert (found["plain"].title, found["plain"].words) == ("plain", ())
    assert (found["pixel"].title, found["pixel"].words) == ("Pixel art", ("pixel", "8 bit"))
    assert found["tags"].words == ("sks cat", "grass", "a b")


def test_the_embeddings_in_a_loras_file_are_trigger_words(tmp_path: Path):
    names = ("bundle_emb.my word.clip_l", "bundle_emb.my word.clip_g", "bundle_emb.<sks>.clip_l")
    save_file({name: np.zeros(1, np.float32) for name in names}, tmp_path / "a.safetensors")
    assert sorted(described(tmp_path)["a"].words) == ["my word", "sks"]


@pytest.mark.parametrize(
    ("ending", "content", "title", "words"),
    [
        (
            ".civitai.info",
            {"model": {"name": "Art"}, "trainedWords": ["b, c", "d"]},
            "Art",
            ("b", "c", "d"),
        ),
        (".json", {"activation text": "b"}, "own", ("b",)),
        (".txt", "b,\nc", "own", ("b", "c")),
        (".json", ["no mapping"], "own", ("a",)),
        (".json", {"model": 7, "trainedWords": [7, None]}, "own", ("a",)),
    ],
)
def test_files_beside_a_lora_come_first(
    tmp_path: Path, ending: str, content: Any, title: str, words: tuple[str, ...]
):
    write(tmp_path / "x.safetensors", **{"modelspec.title": "own", "modelspec.trigger_phrase": "a"})
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / f"x{ending}").write_text(text)
    assert (described(tmp_path)["x"].title, described(tmp_path)["x"].words) == (title, words)


def test_versions_with_one_title_are_told_apart_by_their_names(tmp_path: Path):
    for name, title in (("art_v1", "Art"), ("art_v2", "Art"), ("ink", "Ink")):
        write(tmp_path / f"{name}.safetensors", **{"modelspec.title": title})
    titles = {name: lora.title for name, lora in described(tmp_path).items()}
    assert titles == {"art_v1": "art_v1", "art_v2": "art_v2", "ink": "Ink"}


def test_hostile_metadata_is_bounded(tmp_path: Path):
    words = ",".join(f"{i} {'a' * 1000}" for i in range(1000))
    hostile = {"modelspec.title": "<script>" + "x" * 10**6, "modelspec.trigger_phrase": words}
    write(tmp_path / "x.safetensors", **hostile, ss_tag_frequency="[" * 10**5)
    (tmp_path / "x.json").write_text("[" * 10**5)
    (tmp_path / "x.civitai.info").write_bytes(b"\xff" * 100)
    lora = described(tmp_path)["x"]
    assert len(lora.title) <= descriptions.LONGEST
    assert len(lora.words) <= descriptions.MOST_WORDS
    assert all(len(word) <= descriptions.LONGEST for word in lora.words)


def test_few_trigger_words_of_a_long_phrase_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write(tmp_path / "x.safetensors", **{"modelspec.trigger_phrase": "a," * (2 * 10**6)})
    lines: list[object] = []
    line = descriptions._line
    monkeypatch.setattr(descriptions, "_line", lambda value: lines.append(value) or line(value))
    assert described(tmp_path)["x"].words == ("a",)
    assert len(lines) < descriptions._MOST_INFO


def test_the_digest_tells_files_apart(tmp_path: Path):
    for name, value in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        save_file({"a": np.full(4, value, np.float32)}, tmp_path / f"{name}.safetensors")
    found = described(tmp_path)
    assert found["a"].digest == found["b"].digest != found["c"].digest


def test_several_files_of_one_name(tmp_path: Path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "x.safetensors")
    assert described(tmp_path)["x"].doubled == ("a/x.safetensors", "b/x.safetensors")


def test_only_what_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path / "a.safetensors")
    loras = LoraFolder(tmp_path)
    loras.describe()
    read = list[str]()
    before = watched.describe
    monkeypatch.setattr(
        watched, "describe", lambda file: (read.append(file.path.stem), before(file))[1]
    )
    write(tmp_path / "b.safetensors")
    assert [lora.name for lora in loras.describe()] == ["a", "b"]
    assert read == ["b"]


@pytest.mark.parametrize("ending", descriptions.PICTURES)
def test_a_thumbnail_is_a_small_picture_without_metadata(tmp_path: Path, ending: str):
    write(tmp_path / "x.safetensors")
    exif = Image.Exif()
    exif[0x010E] = "a secret"
    Image.new("RGB", (900, 300), "red").save(tmp_path / f"x{ending}", exif=exif)
    loras = LoraFolder(tmp_path)
    assert loras.describe()[0].pictured
    thumbnail = loras.thumbnail("x") or b""
    with Image.open(io.BytesIO(thumbnail)) as image:
        assert (image.format, image.size) == ("WEBP", (descriptions.SIDE, descriptions.SIDE))
    assert b"secret" not in thumbnail
    assert loras.thumbnail("x") is thumbnail
    assert loras.thumbnail("../x") is loras.thumbnail("y") is None


def test_a_picture_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("broken", "large", "heavy"):
        write(tmp_path / f"{name}.safetensors")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG, not really")
    Image.new("RGB", (2000, 2000)).save(tmp_path / "large.png")
    (tmp_path / "heavy.png").write_bytes(b"x" * 20_000)
    monkeypatch.setattr(descriptions, "_MOST_PIXELS", 10**6)
    monkeypatch.setattr(descriptions, "_MOST_PICTURE", 19_000)
    loras = LoraFolder(tmp_path)
    assert [loras.thumbnail(name) for name in ("broken", "large", "heavy")] == [None] * 3
