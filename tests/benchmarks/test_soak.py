"""The quick form of `make soak`; it is too short to detect slow growth."""

import asyncio
from pathlib import Path

import pytest

from benchmarks import soak

pytestmark = pytest.mark.slow  # sends mixed load for a quarter of a minute


def test_a_quarter_of_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # undo what the run sets
    found = asyncio.run(soak.run(15, 6, tmp_path))
    assert [said for said in found["wrong"] if " grew, " not in said] == []
    assert (found["lost"], found["duplicated"]) == (0, 0)
    assert found["mishaps"]["killed"] >= 1
    assert found["page_requests"] >= 1
