"""Runs modules of this project in separate processes, and records the figures that they print."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import Any

from benchmarks import record
from benchmarks.processes import ROOT

# The folders with the libraries' environments.
ENVIRONMENTS = {"ours": "", "flax": ".venv-incumbent", "torch": ".venv-reference"}


@dataclass(frozen=True)
class Run:
    """A process of a measurement: the name of its figures, its module and its arguments."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    library: str = "ours"
    environment: dict[str, str] = field(default_factory=dict)


class Record:
    """A record that is written anew with every figure, so that one that is broken off is of use.

    Args:
        name: the module of the benchmark.
        folder: for the file.
        part: the part of the benchmark, if it has parts. The file is named for all of these.

    Attributes:
        report: the content: figures by the name of their process, in groups by name.
        file: where it is written; None before the first figure.
    """

    def __init__(self, name: str, folder: Path = record.RESULTS, part: str = "") -> None:
        self.report: dict[str, Any] = {**record.head(f"benchmarks.{name}"), "device": "unknown"}
        self.file: Path | None = None
        self._names, self._folder = (name, part), folder

    def follow(self, group: str, run: Run, seconds: float) -> dict[str, Any]:
        """Run a process for at most some seconds, and return its figures."""
        figures = self.report.setdefault(group, {}).setdefault(run.name, {})
        for line in followed(run, seconds):
            figures |= line
            self.report["device"] = figures.get("device", self.report["device"])
            self.save()
        return figures

    def save(self) -> None:
        """Write the file."""
        names = dict.fromkeys((*self._names, self.report["device"]))
        self.file = record.save("-".join(names), self.report, self._folder)


def followed(run: Run, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the figures of a process as it prints them in JSON, then how it failed if it did.

    A failure is not raised, so that the other measurements are kept. The process's stderr is
    passed through. After `seconds` it is killed.
    """
    command = [str(interpreter(run.library)), "-m", run.module, *run.arguments]
    environment, end = {**os.environ, **run.environment}, time.monotonic() + seconds
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as process:
        assert process.stdout is not None
        limit = Timer(seconds, process.kill)
        limit.start()
        try:
            for line in process.stdout:
                yield json.loads(line)
            status = process.wait()
        finally:
            limit.cancel()
            process.kill()
    if status:
        reason = f"status {status}" if time.monotonic() < end else f"its time, {seconds:.0f} s"
        yield {"failed": f"{run.module} ended with {reason}"}


def interpreter(library: str) -> Path:
    """Return the Python of a library's environment, or this one where it has none."""
    python = ROOT / ENVIRONMENTS[library] / "bin/python"
    return python if python.exists() else Path(sys.executable)
