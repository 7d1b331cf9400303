"""The journal is right whenever the process is killed, and in a foreign folder it refuses."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline import InputError, metadata
from pipeline.batch import journal as module
from pipeline.batch.drawing import write
from pipeline.batch.journal import NAME, Journal
from pipeline.batch.prompts import Batch, Item, read_batch

DRAWN_BY = {"model": ["miniature", None]}


class Killed(BaseException):
    """The end of the process: no handler of errors runs."""


def make_batch(folder: Path, pictures: int = 3, **defaults: Any) -> Batch:
    file = folder / "list.txt"
    file.write_text("a star\n" * pictures)
    return read_batch(file, defaults)


def image_of(item: Item) -> Image.Image:
    image = Image.fromarray(np.full((8, 8, 3), item.index, np.uint8))
    metadata.attach(image, metadata.Settings("a star", seed=item.index, num_inference_steps=2))
    return image


def work(folder: Path, batch: Batch) -> list[int]:
    """Write all pictures that are left, and return their indices."""
    with Journal(folder, batch) as journal:
        left = journal.left
        journal.begin(DRAWN_BY)
        for item in left:
            write(folder, journal, item, image_of(item))
    return [item.index for item in left]


def records(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / NAME).read_text().splitlines()
    return [json.loads(line) for line in lines[1:]]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Yield a function that ends the process at a call of the system, counted from 0.

    From then on no call does anything. A call that writes has done half of its work.
    """
    calls = [0, -1]
    plain_write, plain_fsync, plain_replace = os.write, os.fsync, Path.replace

    def is_over() -> bool:
        calls[0] += 1
        return -1 < calls[1] < calls[0]

    def write(file: int, content: bytes) -> int:
        first = calls[0] == calls[1]
        if is_over():
            if first:
                plain_write(file, content[: len(content) // 2])
            raise Killed
        return plain_write(file, content)

    def fsync(file: int) -> None:
        if is_over():
            raise Killed
        plain_fsync(file)

    def replace(part: Path, path: Path) -> Path:
        if is_over():
            raise Killed
        return plain_replace(part, path)

    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)

    def kill_at(call: int) -> None:
        calls[:] = [0, call]

    yield kill_at
    monkeypatch.undo()


def test_a_kill_at_any_moment(tmp_path: Path, out: Path, kill_at: Callable[[int], None]):
    """Whatever a kill leaves, the next run draws the pictures that have no file, and only these."""
    batch, call, killed = make_batch(tmp_path), 0, True
    while killed:
        shutil.rmtree(out)
        out.mkdir()
        kill_at(call)
        try:
            work(out, batch)
            killed = False
        except Killed:
            pass
        there = [item for item in batch.items if (out / item.name).exists()]
        before = {item.name: (out / item.name).stat().st_ino for item in there}
        kill_at(-1)
        assert sorted([*(item.index for item in there), *work(out, batch)]) == [0, 1, 2]
        assert {file.name for file in out.iterdir()} == {NAME, *(item.name for item in batch.items)}
        assert sorted(record["index"] for record in records(out)) == [0, 1, 2]
        assert {name: (out / name).stat().st_ino for name in before} == before
        assert work(out, batch) == []
        call += 1
    assert call > 3 * len(batch.items)


def test_half_a_line_is_removed(tmp_path: Path, out: Path):
    batch = make_batch(tmp_path)
    work(out, batch)
    whole = (out / NAME).read_bytes()
    for end in range(whole.index(b"\n") + 1, len(whole), 5):
        (out / NAME).write_bytes(whole[:end])
        complete = whole[:end].count(b"\n") - 1  # lines of pictures
        assert work(out, batch) == [0, 1, 2][complete:]
        assert sorted(record["index"] for record in records(out)) == [0, 1, 2]


def test_a_picture_that_was_removed_is_drawn_again(tmp_path: Path, out: Path):
    batch = make_batch(tmp_path)
    work(out, batch)
    (out / batch.items[1].name).unlink()
    assert work(out, batch) == [1]


def test_the_records_have_the_settings(tmp_path: Path, out: Path):
    batch = make_batch(tmp_path, pictures=1, seed=7)
    work(out, batch)
    settings = {"prompt": "a star", "negative_prompt": "", "seed": 0, "num_inference_steps": 2}
    assert records(out) == [{"index": 0, "line": 1, "file": "000000-7.png", **settings}]


def test_a_failure_is_noted_and_not_tried_again(tmp_path: Path, out: Path):
    batch = make_batch(tmp_path)
    with Journal(out, batch) as journal:
        journal.begin(DRAWN_BY)
        journal.add_failed(batch.items[1], "no finite numbers")
    assert work(out, batch) == [0, 2]
    with Journal(out, batch) as journal:
        assert (journal.left, journal.failed) == ([], {1: "no finite numbers"})


@pytest.mark.parametrize("change", [{"pictures": 4}, {"seed": 1}])
def test_another_batch_is_refused(tmp_path: Path, out: Path, change: dict[str, Any]):
    work(out, make_batch(tmp_path))
    before = {file: file.read_bytes() for file in out.iterdir()}
    with pytest.raises(InputError, match="another batch, with other prompts or settings; give"):
        Journal(out, make_batch(tmp_path, **change))
    assert {file: file.read_bytes() for file in out.iterdir()} == before


def test_another_model_is_refused(tmp_path: Path, out: Path):
    batch = make_batch(tmp_path)
    work(out, batch)
    with (
        Journal(out, batch) as journal,
        pytest.raises(InputError, match="another batch, with other model; give"),
    ):
        journal.begin({"model": ["other", None]})


def test_pictures_without_a_journal_are_refused(tmp_path: Path, out: Path):
    batch = make_batch(tmp_path)
    work(out, batch)
    (out / NAME).unlink()
    with pytest.raises(InputError, match=r"has pictures such as 000000-0\.png, but no pictures"):
        Journal(out, batch)


def test_a_folder_in_use_is_refused(tmp_path: Path, out: Path):
    batch = make_batch(tmp_path)
    with Journal(out, batch), pytest.raises(InputError, match="in use by another process"):
        Journal(out, batch)
    Journal(out, batch).close()


@pytest.mark.parametrize("line", ["{}", "[]", "1", "x", '{"index": "x"}', "[" * 10_000])
@pytest.mark.parametrize("number", [1, 3])
def test_a_damaged_line(tmp_path: Path, out: Path, number: int, line: str):
    batch = make_batch(tmp_path)
    work(out, batch)
    lines = (out / NAME).read_text().splitlines()
    lines[number - 1] = line
    (out / NAME).write_text("\n".join([*lines, ""]))
    with pytest.raises(InputError, match=rf"{NAME}:{number}: not a line that this program wrote"):
        Journal(out, batch)


def test_a_picture_without_a_line_is_drawn_again(tmp_path: Path, out: Path):
    batch = make_batch(tmp_path)
    work(out, batch)
    (out / NAME).write_text((out / NAME).read_text().splitlines()[0] + "\n")
    assert work(out, batch) == [0, 1, 2]
    assert [record["index"] for record in records(out)] == [0, 1, 2]


def test_a_full_disk(tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch):
    """A line that cannot be written as a whole leaves nothing behind."""
    batch = make_batch(tmp_path)
    with Journal(out, batch) as journal:
        journal.begin(DRAWN_BY)
        before = (out / NAME).read_bytes()
        with monkeypatch.context() as full:
            plain = os.write
            full.setattr(module.os, "write", lambda file, content: plain(file, content[:9]))
            with pytest.raises(OSError, match="the disk is full"):
                journal.add_failed(batch.items[0], "no finite numbers")
        assert (out / NAME).read_bytes() == before
        assert journal.failed == {}
