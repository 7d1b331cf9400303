"""`--prompts`: files, messages and exit statuses, and runs that are interrupted or killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from PIL import Image

from pipeline import SDXLPipeline, metadata
from pipeline import __main__ as command
from tests import compiling
from tests.checkpoints import SMALLEST, shared_pipeline

Run = Callable[..., tuple[int, list[str], str]]
ROOT = Path(__file__).parents[3]
SHEET = "contact-sheet-000000.jpg"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Let the command load a pipeline that tests share; return the function, which counts."""
    load = Mock(side_effect=lambda *_: shared_pipeline(1))
    monkeypatch.setattr(command, "_load", load)
    return load


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that draws a file of prompts, and returns as that of `test_main` does."""

    def run(*arguments: str, prompts: str = "list.txt") -> tuple[int, list[str], str]:
        given = ["--prompts", str(tmp_path / prompts), "--out", str(tmp_path / "out")]
        status = command.main([*given, "--steps", "2", *arguments])
        output = capsys.readouterr()
        return status, output.out.splitlines(), output.err

    return run


def write(folder: Path, *prompts: str) -> None:
    (folder / "list.txt").write_text("\n".join(prompts))


def pixels(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*.png"))}


def records(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "pictures.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[1:]]


def test_a_batch(tmp_path: Path, run: Run, load: Mock):
    write(tmp_path, "a star", "a ring", "a square", "a circle", "a moon")
    out = tmp_path / "out"
    status, printed, messages = run("--seed", "7", "--negative", "blue")
    assert (status, messages) == (0, "")
    assert printed == [str(out / "pictures.jsonl"), str(out / SHEET)]
    names = [f"{index:06}-{7 + index}.png" for index in range(5)]
    assert sorted(file.name for file in out.iterdir()) == [*names, SHEET, "pictures.jsonl"]
    found = sorted(records(out), key=lambda record: record["index"])
    assert [(each["file"], each["prompt"], each["seed"]) for each in found] == [
        (name, prompt, seed)
        for name, prompt, seed in zip(
            names, (tmp_path / "list.txt").read_text().split("\n"), range(7, 12), strict=True
        )
    ]
    settings = metadata.read(out / names[1])
    assert settings is not None
    assert (settings.prompt, settings.negative_prompt, settings.seed) == ("a ring", "blue", 8)
    before = {file: file.stat().st_mtime_ns for file in out.iterdir()}
    assert run("--seed", "7", "--negative", "blue") == (0, printed, "")
    assert {file: file.stat().st_mtime_ns for file in out.iterdir()} == before
    assert load.call_count == 1  # nothing was left to draw


def test_an_interrupted_batch_goes_on(
    tmp_path: Path, run: Run, load: Mock, monkeypatch: pytest.MonkeyPatch
):
    write(tmp_path, *(f"a star {index}" for index in range(9)))
    out = tmp_path / "out"
    assert run()[0] == 0
    whole = pixels(out)
    out.rename(tmp_path / "whole")
    plain, calls = SDXLPipeline.advance, [0]

    def advance(pipe: SDXLPipeline) -> object:
        calls[0] += 1
        if calls[0] == 8:
            raise KeyboardInterrupt
        return plain(pipe)

    monkeypatch.setattr(SDXLPipeline, "advance", advance)
    status, printed, messages = run()
    some = pixels(out)
    assert 0 < len(some) < 9
    assert (status, printed) == (130, [])
    state = f"{len(some)} of 9 pictures are in {out}; the same command draws the others"
    assert messages == f"{state}\ninterrupted\n"
    shared_pipeline(1).reset()
    assert run()[0] == 0
    assert pixels(out) == whole
    assert sorted(record["index"] for record in records(out)) == [*range(9)]


def test_a_batch_with_a_picture_that_fails(
    tmp_path: Path, run: Run, load: Mock, monkeypatch: pytest.MonkeyPatch
):
    pipe = shared_pipeline(1)
    plain = pipe.prepare

    def prepare(request: Any, *arguments: Any, **named: Any) -> Any:
        drawing = plain(request, *arguments, **named)
        if request.prompt == "a ring":
            for numbers, _ in drawing.first.work:
                numbers.fill(float("nan"))
        return drawing

    monkeypatch.setattr(pipe, "prepare", prepare)
    write(tmp_path, "a star", "a ring", "a square")
    for _ in range(2):
        status, printed, messages = run()
        assert (status, len(printed)) == (1, 2)
        first, second = messages.splitlines()
        assert first == f"2 of 3 pictures are in {tmp_path / 'out'}; these cannot be drawn:"
        assert second.startswith(f"{tmp_path / 'list.txt'}:2: the latents are not finite")
    assert load.call_count == 1
    assert sorted(record["index"] for record in records(tmp_path / "out")) == [0, 1, 2]


def test_a_folder_of_another_batch(tmp_path: Path, run: Run, load: Mock):
    write(tmp_path, "a star")
    assert run()[0] == 0
    for changed in (("--seed", "1"), ("--guidance", "2")):
        status, printed, messages = run(*changed)
        assert (status, printed) == (2, [])
        assert "belongs to another batch, with other prompts or settings; give the" in messages
    assert load.call_count == 1


def test_a_bad_line_is_refused_before_anything_is_loaded(tmp_path: Path, run: Run, load: Mock):
    (tmp_path / "list.jsonl").write_text('{"prompt": "a star"}\n{"prompt": "a ring", "seed": -1}')
    status, printed, messages = run(prompts="list.jsonl")
    assert (status, printed) == (2, [])
    assert messages.startswith(f"error: {tmp_path / 'list.jsonl'}:2: seed is -1; expected 0 to")
    assert (load.call_count, (tmp_path / "out").exists()) == (0, False)


def test_a_file_that_is_missing(tmp_path: Path, run: Run, load: Mock):
    status, _, messages = run()
    assert (status, load.call_count) == (1, 0)
    assert str(tmp_path / "list.txt") in messages


@pytest.mark.parametrize("more", ["a star", "--plan"])
def test_prompts_in_two_ways(more: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        command.main(["--prompts", "list.txt", more])
    assert caught.value.code == 2
    assert "--prompts takes the prompts from its file" in capsys.readouterr().err


@pytest.mark.slow
def test_a_batch_of_several_sizes_that_is_killed(tmp_path: Path):
    """Killed at random moments, a batch is drawn without a picture twice."""
    out, count, kills = tmp_path / "out", 120, 3
    sizes = {"height": 16, "width": 24}
    lines = [
        {"prompt": f"a star {index}", **(sizes if index % 3 else {})} for index in range(count)
    ]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "cache").mkdir(mode=0o700)
    given = ["--model", str(SMALLEST), "--steps", "2", "--cache-dir", str(tmp_path / "cache")]
    files = ["--prompts", str(tmp_path / "list.jsonl"), "--out", str(out)]
    words = [sys.executable, "-m", "pipeline", *given, *files]
    moments, first = random.Random(0), {}

    def names() -> set[str]:
        return {file.name for file in out.glob("*.png")} if out.exists() else set()

    with compiling.quickly():
        for _ in range(kills):
            enough = len(first) + moments.randint(1, 15)
            process = subprocess.Popen(words, cwd=ROOT, start_new_session=True)
            while process.poll() is None and len(names()) < enough:
                time.sleep(0.001)
            time.sleep(moments.uniform(0, 0.02))
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            first |= {name: (out / name).stat().st_ino for name in names() - first.keys()}
        assert len(first) < count
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(names()) == count
    assert {name: (out / name).stat().st_ino for name in first} == first  # none was drawn twice
    assert sorted(record["index"] for record in records(out)) == [*range(count)]
    with Image.open(out / "000001-1.png") as image:
        assert image.size == (24, 16)
