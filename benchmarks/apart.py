"""Programs of this project in processes of their own, in whichever environment."""

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
    """What it prints in its last line, as JSON; what it says besides is shown.

    Raises:
        CalledProcessError: it failed.
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
