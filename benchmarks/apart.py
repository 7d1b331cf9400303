"""Runs a module of this project in a separate process, with any environment's interpreter."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.processes import ROOT


def run(
    module: str,
    arguments: Sequence[str] = (),
    python: str | Path = sys.executable,
    **environment: str,
) -> Any:
    """Run a module and return the last line that it prints to stdout, parsed as JSON.

    Its stderr is passed through.

    Raises:
        CalledProcessError: if the module exits with a status other than 0.
    """
    done = subprocess.run(
        [python, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    return json.loads(done.stdout.splitlines()[-1])
