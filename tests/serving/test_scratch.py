"""Folders for temporary files: they are kept while their process lives, and removed if it died."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from serving import scratch

ROOT = Path(__file__).parents[2]
PROGRAM = "from serving import scratch; print(scratch.make_folder(), flush=True); input()"


class Process:
    """A process with a temporary folder of its own, and a file in the folder."""

    def __init__(self, temporary: Path) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env={"TMPDIR": str(temporary)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.popen.stdout
        self.folder = Path(self.popen.stdout.readline().strip())
        (self.folder / "picture").mkdir()
        (self.folder / "picture" / "moon.png").write_bytes(b"a moon")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Process]]:
    with ExitStack() as stack:

        def started() -> Process:
            process = Process(tmp_path)
            stack.enter_context(process.popen)
            stack.callback(process.popen.kill)
            return process

        yield started


def test_the_next_start_removes_what_a_killed_process_left(start: Callable[[], Process]):
    killed, living = start(), start()
    killed.popen.kill()
    killed.popen.wait()
    assert killed.folder.is_dir()
    newest = start()
    assert not killed.folder.exists()
    assert (living.folder / "picture" / "moon.png").exists()
    assert newest.folder.is_dir()
    newest.popen.communicate("\n")
    assert not newest.folder.exists()


def test_folders_of_other_programs_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "sdxl-page-notes").mkdir()  # readable by others, so not ours
    (tmp_path / "elsewhere").mkdir(0o700)
    (tmp_path / "sdxl-page-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "sdxl-page-file").write_text("kept")
    made = scratch.make_folder()
    others = {"sdxl-page-notes", "elsewhere", "sdxl-page-link", "sdxl-page-file"}
    assert {path.name for path in tmp_path.iterdir()} == {*others, made.name}
