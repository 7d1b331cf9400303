"""Files that are read again when they change."""

import logging
import os
from pathlib import Path

import pytest

from serving.http import watched_file
from serving.http.watched_file import WatchedFile


def parse(text: str) -> dict[str, bytes]:
    return dict.fromkeys(text.split(), b"")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text("one\n")
    return file


def write(file: Path, text: str, age_s: float = 10) -> None:
    file.write_text(text)
    changed_at = file.stat().st_mtime - age_s
    os.utime(file, (changed_at, changed_at))


def test_a_change_counts_once_the_file_has_settled(file: Path):
    watched = WatchedFile("KEYS", file, parse)
    assert [*watched()] == ["one"]
    write(file, "one\ntw", age_s=0)  # and its writer has not finished
    assert [*watched()] == ["one"]
    write(file, "one\ntwo\n", age_s=watched_file.SETTLED_S)
    assert [*watched()] == ["one", "two"]
    write(file, "two\n", age_s=-3600)  # by another machine's clock
    assert [*watched()] == ["two"]


@pytest.mark.parametrize("content", ["", " \n", None])
def test_a_file_that_cannot_be_used_changes_nothing(
    file: Path, content: str | None, caplog: pytest.LogCaptureFixture
):
    watched = WatchedFile("KEYS", file, parse)
    if content is None:
        file.unlink()
    else:
        write(file, content)
    with caplog.at_level(logging.WARNING):
        assert [[*watched()] for _ in range(3)] == [["one"]] * 3
    [message] = caplog.messages
    assert message.startswith(f"KEYS: {file} cannot be used: ")
    write(file, "two\n", age_s=20)
    assert [*watched()] == ["two"]


def test_a_file_that_cannot_be_used_at_first_is_an_error(file: Path):
    file.write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"^KEYS: .*keys cannot be used: 'utf-8'"):
        WatchedFile("KEYS", file, parse)
