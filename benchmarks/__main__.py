"""The first part of `make bench`: start-up, speed and memory of a checkpoint on this machine.

Each start is a fresh process, like an operator's. Writes `benchmarks/results/<date>-<device>.json`
and prints it.
"""

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import apart, record
from benchmarks.processes import running

PROGRAM = "benchmarks.requests"
LIMIT_SECONDS = 1800


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--model", help="folder or Hub id; default: as app.py chooses")
    parser.add_argument("--repeats", type=int, default=5, help="requests, after one to warm up")
    options = parser.parse_args()
    model = ["--model", options.model] if options.model else []
    with tempfile.TemporaryDirectory() as cache:
        arguments = [*model, "--cache-dir", f"{cache}/c"]
        page_arguments = [*model, "--cache-dir", f"{cache}/page"]
        report = {
            **record.head("benchmarks"),
            "python": platform.python_version(),
            **apart.run(PROGRAM, [*arguments, "--repeats", str(options.repeats)]),
            "start_seconds_cached": apart.run(PROGRAM, [*arguments, "--repeats", "0"])[
                "start_seconds"
            ],
            "page_ready_seconds": seconds_until_ready(page_arguments),
            "page_ready_seconds_cached": seconds_until_ready(page_arguments),
        }
    file = record.save(f"{report['device']}-{Path(report['model']).name}", report)
    print(json.dumps(report, indent=2), file, sep="\n")


def seconds_until_ready(arguments: Sequence[str]) -> float:
    """Return the time from a cold start of `python app.py` until it is ready for requests."""
    began = time.perf_counter()
    with running(["app.py", *arguments], {}, LIMIT_SECONDS):
        return round(time.perf_counter() - began, 2)


if __name__ == "__main__":
    main()
