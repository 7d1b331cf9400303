"""Where measurements are written down."""

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
    """When a report was made, and by which command."""
    return {
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(["python", "-m", module, *sys.argv[1:]]),
    }


def save(name: str, report: dict[str, Any]) -> Path:
    """Writes a report that begins with a `head`; its file is called by date and name."""
    RESULTS.mkdir(exist_ok=True)
    slug = re.sub(r"\W+", "-", name).strip("-").lower()
    file = RESULTS / f"{report['date']}-{slug}.json"
    file.write_text(json.dumps(report, indent=2) + "\n")
    return file


def write(name: str, report: dict[str, Any]) -> None:
    """Writes a report of the serving path, with when and with what it was made, and prints it."""
    whole = {
        **head(f"benchmarks.{name}"),
        "python": platform.python_version(),
        "versions": {package: importlib.metadata.version(package) for package in PACKAGES},
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[2], 1),  # of the last 15 minutes: who else was busy
        **report,
    }
    print(json.dumps(whole, indent=2), save(name, whole), sep="\n")
