"""Processes whose figures are recorded as they come."""

import json
from pathlib import Path

import pytest

from benchmarks.apart import Record, Run, followed

WAIT = "import threading\nthreading.Event().wait()"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of a module that processes can run."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "program.py"


def test_figures_come_one_by_one(module: Path) -> None:
    module.write_text(f"print('[1]', flush=True)\nprint('[2]', flush=True)\n{WAIT}")
    figures = followed(Run("", "program"), 600)
    assert [next(figures), next(figures)] == [[1], [2]]
    figures.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("program", "seconds", "reason"),
    [(WAIT, 0, "its time, 0 s"), ("raise SystemExit(3)", 60, "status 3")],
)
def test_the_record_says_how_a_process_failed(
    module: Path, tmp_path: Path, program: str, seconds: float, reason: str
) -> None:
    module.write_text(program)
    kept = Record("measure", tmp_path / "results", "part")
    failure = {"failed": f"program ended with {reason}"}
    assert kept.follow("figures", Run("run", "program"), seconds) == failure
    assert kept.file is not None
    assert kept.file.name.endswith("-measure-part-unknown.json")
    assert json.loads(kept.file.read_text())["figures"] == {"run": failure}


def test_a_record_keeps_what_a_process_printed_before_it_failed(
    module: Path, tmp_path: Path
) -> None:
    module.write_text('print(\'{"device": "H1", "a": 1}\')\nprint(\'{"b": 2}\')\n1 / 0')
    figures = Record("measure", tmp_path).follow("figures", Run("run", "program"), 60)
    assert (figures["a"], figures["b"], figures["failed"][-8:]) == (1, 2, "status 1")
    [file] = tmp_path.glob("*-measure-h1.json")
    assert json.loads(file.read_text())["figures"]["run"] == figures
