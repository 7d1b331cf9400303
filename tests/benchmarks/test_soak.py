"""The quick form of `make soak`: it finds what grows with every request, and nothing else."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from benchmarks import soak
from benchmarks.processes import front_end

pytestmark = pytest.mark.rare  # sends mixed load for a quarter of a minute, twice


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # undo what the run sets
    return tmp_path


def run(folder: Path, program: Any) -> dict[str, Any]:
    return asyncio.run(soak.run(15, 6, folder, program))


def test_nothing_grows_in_a_quarter_of_a_minute(folder: Path):
    found = run(folder, front_end)
    assert found["wrong"] == []
    assert (found["lost"], found["duplicated"]) == (0, 0)
    assert found["mishaps"]["killed"] >= 1
    assert found["page_requests"] >= 1


def test_a_leak_is_found(folder: Path):
    def leaky(urls: list[str], *flags: str) -> list[str]:
        return ["-m", "tests.leaky", *front_end(urls, *flags)[1:]]

    said = run(folder, leaky)["wrong"]
    for what in ("memory_mb", "threads", "open_files"):
        assert any(each.startswith(f"front-end: {what} grew") for each in said), said
    assert not any(each.startswith("instance-0") for each in said)
