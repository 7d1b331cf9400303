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
    """Return the date, the command and the state of the machine, for the beginning of a report."""
    return {
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(["python", "-m", module, *sys.argv[1:]]),
        "python": platform.python_version(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[2], 1),  # over 15 minutes; shows other work
        "priority": priority(),
    }


def processor(file: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of this machine's processor, or the kind where Linux does not tell."""
    lines = file.read_text().splitlines() if file.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def priority() -> str:
    """Return this process's priority: its niceness, or the policy that `chrt` has given it."""
    policy = getattr(os, "sched_getscheduler", lambda _: 0)(0)
    real_time = {1: "real time, first in, first out", 2: "real time, round robin"}
    return real_time.get(policy, f"niceness {os.nice(0)}")


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
        "versions": {package: importlib.metadata.version(package) for package in PACKAGES},
        **report,
    }
    print(json.dumps(full_report, indent=2), save(name, full_report), sep="\n")
