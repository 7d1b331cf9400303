"""The files that measurements are recorded in."""

import datetime
import importlib.metadata
import json
import os
import platform
import re
import shlex
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("fastapi", "uvicorn", "gradio", "httpx", "jax")


def head(module: str) -> dict[str, Any]:
    """Return the date and the command of a report."""
    return {
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(["python", "-m", module, *sys.argv[1:]]),
    }


def save(name: str, report: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write a report that begins with a `head` into a folder, and return its file.

    The file's name is made of the date and `name`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"\W+", "-", name).strip("-").lower()
    file = folder / f"{report['date']}-{slug}.json"
    file.write_text(json.dumps(report, indent=2) + "\n")
    return file


def write(name: str, report: dict[str, Any]) -> None:
    """Write and print a report, with date, versions and machine.

    `name` is that of the benchmark, or begins with it and a hyphen.
    """
    full_report = {
        **head(f"benchmarks.{name.partition('-')[0]}"),
        "python": platform.python_version(),
        "versions": {package: importlib.metadata.version(package) for package in PACKAGES},
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[2], 1),  # over 15 minutes; shows other work
        **report,
    }
    print(json.dumps(full_report, indent=2), save(name, full_report), sep="\n")
