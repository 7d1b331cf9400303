"""The first part of `make bench`: start-up, speed and memory of a checkpoint on this machine.

Each start is a fresh process, like an operator's. Writes `benchmarks/results/<date>-<device>.json`
and prints it.
"""

import argparse
import json
import platform
import tempfile
from pathlib import Path

from benchmarks import apart, page, record


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--model", help="folder or Hub id; default: as app.py chooses")
    parser.add_argument("--repeats", type=int, default=5, help="requests, after one to warm up")
    options = parser.parse_args()
    model = ["--model", options.model] if options.model else []
    with tempfile.TemporaryDirectory() as cache:
        request = [*model, "--repeats", str(options.repeats)]
        page_arguments = [*model, "--cache-dir", f"{cache}/page"]
        report = {
            **record.head("benchmarks"),
            "python": platform.python_version(),
            **apart.run("benchmarks.requests", [*request, "--cache-dir", f"{cache}/c"]),
            "start_seconds_cached": apart.run(
                "benchmarks.requests", [*model, "--repeats", "0", "--cache-dir", f"{cache}/c"]
            )["start_seconds"],
            "page_ready_seconds": page.seconds_until_ready(page_arguments),
            "page_ready_seconds_cached": page.seconds_until_ready(page_arguments),
        }
    file = record.save(f"{report['device']}-{Path(report['model']).name}", report)
    print(json.dumps(report, indent=2), file, sep="\n")


if __name__ == "__main__":
    main()
