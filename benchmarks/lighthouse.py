"""`make lighthouse`: the page's Lighthouse scores on desktop settings, and its weight.

The server has the bundled miniature, but nothing is drawn. The page is loaded three times, and the
load with the median performance score is recorded in `benchmarks/results/`. Fails if a score falls
short of `AIMS`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from benchmarks import record
from benchmarks.processes import ROOT, running
from pipeline import BUNDLED
from tools import page_states

AIMS = {"accessibility": 100, "best-practices": 100, "performance": 90}
_LOADS = 3
_LIGHTHOUSE = ROOT / "benchmarks/node/node_modules/lighthouse/cli/index.js"
_MILLISECONDS = {
    "first-contentful-paint": "first_contentful_paint_ms",
    "largest-contentful-paint": "largest_contentful_paint_ms",
    "interactive": "time_to_interactive_ms",
    "total-blocking-time": "total_blocking_time_ms",
}


def main() -> None:
    """Measure, record the results, and report the scores that fall short."""
    with running(["app.py", "--model", str(BUNDLED)]) as instance:
        loads = [_load(instance.url) for _ in range(_LOADS)]
    report = sorted(loads, key=lambda load: load["scores"]["performance"])[_LOADS // 2]
    record.write("lighthouse", report)
    short_names = [name for name, aim in AIMS.items() if report["scores"][name] < aim]
    if short_names:
        sys.exit(f"short of {', '.join(f'{AIMS[name]} for {name}' for name in short_names)}")


def _load(url: str) -> dict[str, Any]:
    """Load the page in a browser with an empty cache."""
    command = [
        Path(sys.executable).with_name("node"),
        _LIGHTHOUSE,
        url,
        "--preset=desktop",
        "--only-categories=accessibility,best-practices,performance",
        "--output=json",
        f"--chrome-flags={' '.join(['--headless=new', *page_states.flags()])}",
        "--quiet",
    ]
    with sync_playwright() as playwright:
        environment = os.environ | {"CHROME_PATH": page_states.chromium(playwright)}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    return _summary(json.loads(done.stdout))


def _summary(report: dict[str, Any]) -> dict[str, Any]:
    audits = report["audits"]
    requests = [
        request
        for request in audits["network-requests"]["details"]["items"]
        if request["url"].startswith("http")
    ]
    return {
        "lighthouse": report["lighthouseVersion"],
        "scores": {name: round(100 * report["categories"][name]["score"]) for name in AIMS},
        "requests": len(requests),
        "bytes_sent": sum(request["transferSize"] for request in requests),
        **{name: round(audits[audit]["numericValue"]) for audit, name in _MILLISECONDS.items()},
        "cumulative_layout_shift": round(audits["cumulative-layout-shift"]["numericValue"], 3),
    }


if __name__ == "__main__":
    main()
