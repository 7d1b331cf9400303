"""`python -m benchmarks.steps`: seconds of a request to the miniature, by its steps.

The real program runs in a separate process, and requests for four pictures go to it over HTTP. With
the bundled LoRA, two and four steps draw without guidance. Writes
`benchmarks/results/<date>-steps.json`.
"""

import argparse
import asyncio
import statistics
from typing import Any

import httpx

from benchmarks import record
from benchmarks.processes import running
from benchmarks.visitors import Visit, many_connections, visit
from pipeline import BUNDLED

PROMPT = "a large red star on a blue background"
RUNS: tuple[dict[str, Any], ...] = (
    {"num_inference_steps": 1, "guidance_scale": 1.0},
    {"num_inference_steps": 2, "recipe": "quick"},
    {"num_inference_steps": 4, "recipe": "quick"},
    {"num_inference_steps": 8},
    {"num_inference_steps": 25},
)


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__)
    parser.add_argument("--repeats", type=int, default=9, help="requests, after one to warm up")
    repeats = parser.parse_args().repeats
    with running(["app.py", "--model", str(BUNDLED)]) as instance:
        requests = asyncio.run(_measure(instance.url, repeats))
    record.write("steps", {"repeats": repeats, "requests": requests})


async def _measure(url: str, repeats: int) -> list[dict[str, Any]]:
    async with many_connections() as client:
        return [
            {**settings, **await _run(client, url, {"prompt": PROMPT, **settings}, repeats)}
            for settings in RUNS
        ]


async def _run(
    client: httpx.AsyncClient, url: str, body: dict[str, Any], repeats: int
) -> dict[str, float]:
    """Return the medians of a request repeated, with another seed each time.

    `decode_share` is the share of the time after the last step: decoding, and making PNG files.
    """
    results = [await visit(client, url, body | {"seed": seed}) for seed in range(repeats + 1)][1:]
    assert all(result.outcome == "done" for result in results), results
    done_seconds = [_seconds(result, "done_s") for result in results]
    return {
        "request_seconds": _median(done_seconds),
        "first_event_seconds": _median(_seconds(result, "first_event_s") for result in results),
        "first_picture_seconds": _median(result.pictures_s[0] for result in results),
        "decode_share": _median(
            1 - _seconds(result, "last_step_s") / end
            for result, end in zip(results, done_seconds, strict=True)
        ),
    }


def _seconds(result: Visit, name: str) -> float:
    value = getattr(result, name)
    assert value is not None, name
    return value


def _median(values: Any) -> float:
    return round(statistics.median(values), 4)


if __name__ == "__main__":
    main()
