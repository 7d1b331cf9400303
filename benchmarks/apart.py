"""Runs a module of this project in a separate process, with any environment's interpreter."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import TIMEOUT_MAX, Event, Timer
from typing import Any

from benchmarks.processes import ROOT


def run(
    module: str, arguments: Sequence[str], python: str | Path = sys.executable, **environment: str
) -> Any:
    """Run a module, and return the last line that it prints to stdout; see `stream`."""
    return [*stream(module, arguments, python, TIMEOUT_MAX, **environment)][-1]


def stream(
    module: str,
    arguments: Sequence[str],
    python: str | Path,
    seconds: float,
    **environment: str,
) -> Iterator[Any]:
    """Run a module and yield each line that it prints to stdout, parsed as JSON, at once.

    Its stderr is passed through.

    Raises:
        TimeoutExpired: if the module takes longer than `seconds`; it is killed.
        CalledProcessError: if the module exits with a status other than 0.
    """
    command = [str(python), "-m", module, *arguments]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
    ) as process:
        assert process.stdout is not None
        expired = Event()

        def end() -> None:
            expired.set()
            process.kill()

        limit = Timer(seconds, end)
        limit.start()
        try:
            for line in process.stdout:
                yield json.loads(line)
            status = process.wait()
        finally:
            limit.cancel()
            process.kill()
    if expired.is_set():
        raise subprocess.TimeoutExpired(command, seconds)
    if status:
        raise subprocess.CalledProcessError(status, command)
