"""Where measurements are written down."""

import datetime
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("fastapi", "uvicorn", "gradio", "httpx", "jax")


def write(name: str, report: dict[str, Any]) -> None:
    """Writes a report, with when and with what it was made, and prints it."""
    today = datetime.date.today().isoformat()
    whole = {
        "date": today,
        "command": " ".join([f"python -m benchmarks.{name}", *sys.argv[1:]]),
        "python": platform.python_version(),
        "versions": {package: importlib.metadata.version(package) for package in PACKAGES},
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[2], 1),  # of the last 15 minutes: who else was busy
        **report,
    }
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{today}-{name}.json"
    file.write_text(json.dumps(whole, indent=2) + "\n")
    print(json.dumps(whole, indent=2), file, sep="\n")
