"""Folders of files that change while the server runs."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from serving import folders
from serving.folders import Folder


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 2_000_000_000.0

    def __call__(self) -> float:
        return self.now

    def skip(self, seconds: float = folders.RESCAN_S) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def folder(tmp_path: Path, clock: Clock) -> Folder:
    return Folder(tmp_path, "LORA_DIR", lambda name: "," not in name, [".txt"], clock)


def write(path: Path, size: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({"a": np.zeros(size, np.float32)}, path, {"title": path.stem})
    return path


def names(folder: Folder, clock: Clock) -> list[str]:
    clock.skip()
    return list(folder.look().files)


def test_files_come_and_go(folder: Folder, clock: Clock, tmp_path: Path):
    assert names(folder, clock) == []
    pixel, other = write(tmp_path / "pixel.safetensors"), write(tmp_path / "in/b/other.safetensors")
    (tmp_path / "pixel.txt").write_text("words")
    write(tmp_path / ".cache" / "hidden.safetensors")
    assert names(folder, clock) == ["other", "pixel"]
    assert folder.look().files["other"].path == other
    assert folder.look().files["pixel"].beside[".txt"].path == tmp_path / "pixel.txt"
    pixel.unlink()
    assert names(folder, clock) == ["other"]


def test_a_look_soon_after_another_reads_nothing(folder: Folder, clock: Clock, tmp_path: Path):
    write(tmp_path / "a.safetensors")
    before = folder.look()
    write(tmp_path / "b.safetensors")
    clock.skip(folders.RESCAN_S / 2)
    assert folder.look() is before
    clock.skip()
    assert list(folder.look().files) == ["a", "b"]
    assert folder.look() is not before


def test_an_unchanged_listing_stays_the_same(folder: Folder, clock: Clock, tmp_path: Path):
    write(tmp_path / "a.safetensors")
    before = folder.look()
    clock.skip(60)
    assert folder.look() is before


def test_a_replaced_file_has_another_stamp(folder: Folder, clock: Clock, tmp_path: Path):
    file = write(tmp_path / "a.safetensors")
    before = folder.look().files["a"]
    write(tmp_path / "new").replace(file)
    clock.skip()
    assert folder.look().files["a"] != before


def test_a_folder_with_an_older_file_has_another_stamp(clock: Clock, tmp_path: Path):
    write(tmp_path / "a/unet/x.safetensors")
    (tmp_path / "a/index").touch()
    folder = Folder(tmp_path, "MODEL_DIR", clock=clock, index="index")
    clock.skip()
    before = folder.look().files["a"]
    new = write(tmp_path / "new")
    os.utime(new, (0, 0))
    new.replace(tmp_path / "a/unet/x.safetensors")
    clock.skip()
    assert folder.look().files["a"] != before


def test_a_file_is_left_out_until_it_is_complete(folder: Folder, clock: Clock, tmp_path: Path):
    whole = write(tmp_path / "elsewhere", 1000).read_bytes()
    file = tmp_path / "a.safetensors"
    for end in (0, 5, 8, 20, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:end])
        assert names(folder, clock) == []
    file.write_bytes(whole)
    assert names(folder, clock) == ["a"]


def test_a_file_that_was_written_just_now_waits_for_a_second_look(
    folder: Folder, clock: Clock, tmp_path: Path
):
    file = write(tmp_path / "a.safetensors")
    clock.skip()
    os.utime(file, (clock.now, clock.now))
    assert list(folder.look().files) == []
    clock.skip()
    os.utime(file, (clock.now, clock.now))
    assert list(folder.look().files) == []
    assert names(folder, clock) == ["a"]


@pytest.mark.parametrize(
    "header",
    [b"[]", b"1", b'{"a": 1}', b'{"a": {"data_offsets": "x"}}', b"[" * 10_000, b"\xff", b"{"],
)
def test_damaged_files_are_left_out(
    folder: Folder,
    clock: Clock,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    header: bytes,
):
    content = len(header).to_bytes(8, "little") + header
    (tmp_path / "a.safetensors").write_bytes(content)
    (tmp_path / "b.safetensors").write_bytes(b"\xff" * 100)
    (tmp_path / "folder.safetensors").mkdir()
    os.mkfifo(tmp_path / "pipe.safetensors")
    assert names(folder, clock) == names(folder, clock) == []
    assert not caplog.messages  # they may still be copied
    for _ in range(2 * folders.LOOKS):
        assert names(folder, clock) == []
    for name in "ab":
        said = f"LORA_DIR leaves out {name}.safetensors: not a "
        assert caplog.text.count(said) == 1


@pytest.mark.parametrize("index", ["", "index"])
def test_a_file_that_stays_incomplete_is_logged_with_the_reason(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture, index: str
):
    """A file that grows is not: it is still copied."""
    folder = Folder(tmp_path, "LORA_DIR", clock=clock, index=index)
    whole = write(tmp_path / "elsewhere", 1000).read_bytes()
    file = tmp_path / "a/x.safetensors" if index else tmp_path / "a.safetensors"
    file.parent.mkdir(exist_ok=True)
    (file.parent / "index").touch()
    for end in range(20, 20 + 2 * folders.LOOKS):
        file.write_bytes(whole[:end])
        assert names(folder, clock) == []
    assert not caplog.messages
    file.write_bytes(whole[:-4])
    for _ in range(2 * folders.LOOKS):
        assert names(folder, clock) == []
    [message] = caplog.messages
    reason = f"not a complete safetensors file: it has {len(whole) - 4} of {len(whole)} bytes"
    path = "a: x.safetensors" if index else "a.safetensors"
    assert message == f"LORA_DIR leaves out {path}: {reason}; fetch it again"
    file.write_bytes(whole)
    assert names(folder, clock) == ["a"]


def test_two_files_of_one_name_are_not_used(
    folder: Folder, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    for name in ("a/x", "b/x", "y"):
        write(tmp_path / f"{name}.safetensors")
    assert names(folder, clock) == names(folder, clock) == ["y"]
    both = "a/x.safetensors", "b/x.safetensors"
    assert folder.look().doubled == {"x": both}
    [warning] = caplog.messages
    assert all(each in warning for each in ("LORA_DIR", *both))


def test_links_may_not_lead_out_of_the_folder(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    root, outside = tmp_path / "root", write(tmp_path / "outside" / "secret.safetensors")
    inside = write(root / "files" / "a.safetensors")
    (root / "alias.safetensors").symlink_to(inside)
    (root / "secret.safetensors").symlink_to(outside)
    (root / "files" / "a.txt").symlink_to(outside)
    (root / "loop").symlink_to(root)
    (root / "away").symlink_to(outside.parent)
    (root / "b.txt").symlink_to(root / "b.txt")
    (root / "gone.safetensors").symlink_to(root / "nothing")
    folder = Folder(root, "LORA_DIR", beside=[".txt"], clock=clock)
    assert names(folder, clock) == names(folder, clock) == ["a", "alias"]
    assert not folder.look().files["a"].beside
    [warning] = caplog.messages
    assert "secret.safetensors" in warning


def test_names_that_cannot_be_used(
    folder: Folder, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    write(tmp_path / "a,b.safetensors")
    assert names(folder, clock) == names(folder, clock) == []
    [warning] = caplog.messages
    assert "a,b.safetensors" in warning


@pytest.mark.parametrize("name", [b"a\xff", b"a\nINFO forged"])
def test_folders_that_no_answer_can_name(
    folder: Folder, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: bytes
):
    inside = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    inside.mkdir()
    write(inside / "b.safetensors")
    assert names(folder, clock) == names(folder, clock) == []
    [warning] = caplog.messages
    assert "has a folder whose name cannot be used" in warning
    assert warning.isprintable()


def test_files_in_formats_that_are_never_opened_are_named_once(
    folder: Folder, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    for name in ("in/old.ckpt", "quantised.gguf", "notes.txt"):
        write(tmp_path / name)
    for _ in range(2):
        assert names(folder, clock) == []
    [warning] = caplog.messages
    assert warning.endswith("as they are not .safetensors: 'quantised.gguf', 'in/old.ckpt'")


def test_a_folder_that_is_missing_has_no_files(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    folder = Folder(tmp_path / "later", "LORA_DIR", clock=clock)
    assert names(folder, clock) == names(folder, clock) == []
    [warning] = caplog.messages
    assert str(tmp_path / "later") in warning
    write(tmp_path / "later" / "a.safetensors")
    assert names(folder, clock) == ["a"]


def test_the_number_of_files_is_limited(
    folder: Folder, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(folders, "MOST_FILES", 3)
    for i in range(5):
        write(tmp_path / f"{i}.safetensors")
    assert names(folder, clock) == ["0", "1", "2"]


@pytest.mark.parametrize(
    "header",
    [
        json.dumps(
            {f"n{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(60_000)}
        ).encode(),
        b'{"a":[' + b"[[]]," * 200_000 + b"[]]}",
    ],
    ids=["tensors", "lists"],
)
def test_a_header_of_very_many_entries_is_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: bytes
):
    file = tmp_path / "x.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    monkeypatch.setattr(json, "loads", lambda _: pytest.fail("it is parsed"))
    assert not folders.is_whole(file)


def test_an_empty_file_of_no_tensors_is_whole(tmp_path: Path):
    header = json.dumps({"__metadata__": {}}).encode()
    file = tmp_path / "a.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    assert folders.is_whole(file)
