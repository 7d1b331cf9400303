"""Lines of files are read once for each version, and a bounded amount of them is kept."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.file_versions import Version
from pipeline.text import line_cache
from pipeline.text.line_cache import LineCache

Read = Callable[[str], tuple[str, ...]]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were read."""
    names: list[str] = []
    read = line_cache._read

    def noted(file: Path, size: int) -> tuple[str, ...]:
        names.append(file.stem)
        return read(file, size)

    monkeypatch.setattr(line_cache, "_read", noted)
    return names


def reader(folder: Path, cache: LineCache) -> Read:
    for name in "abc":
        (folder / f"{name}.txt").write_text(f"{name}\n# no line\n\n {name}{name} ")

    def read(name: str) -> tuple[str, ...]:
        file = folder / f"{name}.txt"
        return cache.lines(file, Version.of(file.stat()))

    return read


def test_the_files_that_were_used_last_are_kept(tmp_path: Path, reads: list[str]) -> None:
    read = reader(tmp_path, LineCache(most_files=2))
    assert [read(name) for name in "abaca"] == [(x, x + x) for x in "abaca"]
    assert reads == ["a", "b", "c"]
    read("b")
    assert reads == ["a", "b", "c", "b"]


def test_few_bytes_are_kept(tmp_path: Path, reads: list[str]) -> None:
    cache = LineCache(most_bytes=500)  # lines of two of the files
    read = reader(tmp_path, cache)
    for name in "abac":
        read(name)
    assert reads == ["a", "b", "c"]
    assert cache._bytes <= 500
    (tmp_path / "a.txt").write_text("x\n" * 1000)
    assert len(read("a")) == 1000  # more than is kept
    assert cache._bytes == 0


def test_threads_share_what_one_has_read(tmp_path: Path, reads: list[str]) -> None:
    read = reader(tmp_path, LineCache())
    ready = threading.Barrier(8)

    def at_once(_: int) -> tuple[str, ...]:
        ready.wait(20)
        return read("a")

    with ThreadPoolExecutor(8) as threads:
        assert {*threads.map(at_once, range(8))} == {("a", "aa")}
    assert reads == ["a"]
