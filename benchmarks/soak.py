"""`make soak`: an hour of mixed load, after which no resource use may have grown.

A front-end and two instances that draw with the stand-in run in separate processes. Visitors wait
for pictures, stop their requests or leave; another uses the page's own API, which writes files. One
instance is killed now and then and restarted. The memory, threads and open files of the front-end
and of the other instance, and the temporary files of all processes, are sampled throughout. The
last quarter of the time is compared with the second. Writes `benchmarks/results/<date>-soak.json`;
ends with status 1 if something grew, or if a request got a wrong answer.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.chaos import STEP_MS, STEPS, Toll, come, kill, settled, start_all
from benchmarks.processes import Instance, front_end, stand_in
from benchmarks.visitors import many_connections, page_request, visit

VISITORS = 4
# Allowances for what an allocator keeps, and for pools of threads and connections that fill.
MAY_GROW = {"memory_mb": 16.0, "threads": 4.0, "open_files": 10.0, "temporary_files": 25.0}
PAGE_EVERY_S = 5.0  # each writes five entries, a folder and four pictures, until they are deleted
BODY = {"prompt": "a red star", "seed": 7}


def quarters(values: Sequence[float]) -> list[float]:
    """Return the medians of the second and of the last quarter."""
    quarter = max(1, len(values) // 4)
    parts = values[quarter : 2 * quarter], values[-quarter:]
    return [round(statistics.median(part), 1) for part in parts]


def main() -> None:
    """Run, record, and fail if anything grew."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--kill-every", type=float, default=120, help="seconds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(run(60 * options.minutes, options.kill_every, Path(folder)))
    record.write("soak", report)
    sys.exit(bool(report["wrong"]))


async def run(
    seconds: float,
    kill_every_s: float,
    folder: Path,
    front_program: Callable[..., list[str]] = front_end,
) -> dict[str, Any]:
    """Run for `seconds`, with logs and temporary files in `folder`.

    `front_program` returns the program of the front-end, for URLs of instances and flags.
    """
    temporary_folder = folder / "temporary"
    temporary_folder.mkdir()
    os.environ["TMPDIR"] = str(temporary_folder)  # for the processes started from here
    program = stand_in(STEP_MS, "--steps", str(STEPS))
    spared_instance, killed_instance = (
        Instance(program, folder / f"instance-{i}.log") for i in range(2)
    )
    # Files are deleted so soon that their number is constant from the second quarter on.
    keep = str(max(60, round(seconds / 12)))
    backends = [spared_instance.url, killed_instance.url]
    front = Instance(front_program(backends, "--keep-files", keep), folder / "front-end.log")
    instances = [spared_instance, killed_instance, front]
    try:
        await start_all(instances)
        return await _soaked(
            seconds,
            kill_every_s,
            [front, spared_instance],
            killed_instance,
            temporary_folder,
        )
    finally:
        for instance in instances:
            instance.kill()


async def _soaked(
    seconds: float,
    kill_every_s: float,
    watched: list[Instance],
    killed_instance: Instance,
    temporary_folder: Path,
) -> dict[str, Any]:
    toll, rng, pages = Toll(), random.Random(7), 0
    # By the process's name, samples of each resource.
    samples: dict[str, dict[str, list[float]]] = {}
    front, deadline = watched[0], time.monotonic() + seconds

    def over() -> bool:
        return time.monotonic() > deadline

    async with many_connections() as client:
        expected = (await visit(client, watched[1].url, BODY)).pictures

        async def use_the_page() -> None:
            nonlocal pages
            while not over():
                if (ending := await page_request(client, front.url)) != "complete":
                    toll.wrong.append(f"a request of the page's ended as {ending}")
                pages += 1
                await asyncio.sleep(PAGE_EVERY_S)

        async def watch() -> None:
            while not over():
                for instance in watched:
                    _note(samples, instance.log.stem, asdict(instance.usage()))
                files = sum(1 for _ in temporary_folder.rglob("*"))
                _note(samples, "all", {"temporary_files": files})
                await asyncio.sleep(seconds / 60)

        await asyncio.gather(
            use_the_page(),
            _kill_now_and_then(killed_instance, kill_every_s, toll, over),
            watch(),
            *(
                come(client, front.url, [(BODY, expected)], toll, rng, over)
                for _ in range(VISITORS)
            ),
        )
        await settled(client, front, toll)
    usages = {
        name: {resource: quarters(values) for resource, values in resources.items()}
        for name, resources in samples.items()
    }
    for name, usage in usages.items():
        for resource, (before, after) in usage.items():
            if after - before > MAY_GROW[resource]:
                toll.wrong.append(f"{name}: {resource} grew, {before} to {after}")
    processes = len(watched) + 1
    if (folders := len(list(temporary_folder.glob("sdxl-page-*")))) > processes:
        toll.wrong.append(f"{folders} folders of {processes} processes")
    counts = {"seconds": seconds, "page_requests": pages}
    return {**counts, "from_second_to_last_quarter": usages, **toll.report()}


def _note(
    samples: dict[str, dict[str, list[float]]], name: str, usage: Mapping[str, float]
) -> None:
    """Add a sample of each resource that may not grow."""
    for resource in usage.keys() & MAY_GROW.keys():
        samples.setdefault(name, {}).setdefault(resource, []).append(usage[resource])


async def _kill_now_and_then(
    instance: Instance, every_s: float, toll: Toll, over: Callable[[], bool]
) -> None:
    due_at = time.monotonic() + every_s
    while not over():
        await asyncio.sleep(0.2)
        if time.monotonic() < due_at:
            continue
        due_at = time.monotonic() + every_s
        await kill(instance, toll)
        toll.mishaps["killed"] += 1


if __name__ == "__main__":
    main()
