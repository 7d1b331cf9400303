"""Pictures per second with a growing number of clients, and how long a short request waits.

    python -m benchmarks.clients

Each client asks for one picture after the other, over HTTP. Then a client asks for pictures in
`SHORT` steps beside as many clients as there are slots, who ask for `LONG` steps and began at
different times. The bundled miniature and a stand-in with the estimated step time of SDXL on a TPU
v5e-4 draw them, each in a server of its own. Writes `benchmarks/results/<date>-clients.json`.
"""

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

import httpx

from benchmarks import record
from benchmarks.processes import running, stand_in
from benchmarks.visitors import PATIENCE, many_connections
from pipeline import BUNDLED

CLIENTS, SLOTS = (1, 2, 4, 8, 16), 4
SHORT, LONG = 4, 50  # steps
SHORT_REQUESTS = 12
STEP_MS = 108  # about a step of SDXL on a TPU v5e-4, by the estimate in docs/benchmarks.md


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clients", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="for each number of clients")
    options = parser.parse_args()
    programs = {
        "miniature": ["app.py", "--model", str(BUNDLED)],
        "stand_in": stand_in(STEP_MS, "--steps", "25"),
    }
    report = {name: measure(program, options.seconds) for name, program in programs.items()}
    record.write("clients", {"step_ms": STEP_MS, "short": SHORT, "long": LONG, **report})


def measure(program: Sequence[str], seconds: float) -> dict[str, Any]:
    """Return the figures of a program for each number of clients, and for short requests."""
    with running(program) as instance:
        return asyncio.run(_measure(instance.url, seconds))


async def _measure(url: str, seconds: float) -> dict[str, Any]:
    async with many_connections() as client:
        await draw_one(client, url)
        loads = [await _load(client, url, clients, seconds) for clients in CLIENTS]
        alone_seconds = [await draw_one(client, url, SHORT) for _ in range(SHORT_REQUESTS)]
        beside_seconds = await _short_beside_long(client, url)
    return {
        "loads": loads,
        "short_alone_seconds": round(statistics.median(alone_seconds), 3),
        "short_beside_long_seconds": round(statistics.median(beside_seconds), 3),
    }


async def draw_one(client: httpx.AsyncClient, url: str, steps: int | None = None) -> float:
    """Ask for one picture, and return the seconds until it was there."""
    began = time.monotonic()
    body = {"prompt": "a red star", "n": 1, "seed": random.randrange(2**31)}
    body |= {} if steps is None else {"num_inference_steps": steps}
    answer = await client.post(f"{url}/v1/images/generations", json=body, timeout=PATIENCE)
    answer.raise_for_status()
    assert len(answer.json()["data"]) == 1
    return time.monotonic() - began


async def _load(
    client: httpx.AsyncClient, url: str, clients: int, seconds: float
) -> dict[str, float]:
    """Return the figures with some clients, once each of them has had a picture."""
    ends: list[tuple[float, float]] = []

    async def ask() -> None:
        while len(ends) < clients or ends[-1][0] < ends[clients - 1][0] + seconds:
            wait_s = await draw_one(client, url)
            ends.append((time.monotonic(), wait_s))

    await asyncio.gather(*(ask() for _ in range(clients)))
    began = ends[clients - 1][0]
    waits = [wait_s for at, wait_s in ends if began < at <= began + seconds]
    return {
        "clients": clients,
        "pictures_per_second": round(len(waits) / seconds, 3),
        "median_seconds": round(statistics.median(waits), 3),
    }


async def _short_beside_long(client: httpx.AsyncClient, url: str) -> list[float]:
    """Return the seconds of requests of `SHORT` steps beside those of `LONG` steps."""
    long_s = await draw_one(client, url, LONG)
    over = False

    async def ask(after_s: float) -> None:
        await asyncio.sleep(after_s)
        while not over:
            await draw_one(client, url, LONG)

    async with asyncio.TaskGroup() as tasks:
        for number in range(SLOTS):
            tasks.create_task(ask(number * long_s / SLOTS))
        await asyncio.sleep(long_s)
        waits = []
        for _ in range(SHORT_REQUESTS):
            await asyncio.sleep(random.uniform(0, long_s / SLOTS))
            waits.append(await draw_one(client, url, SHORT))
        over = True
    return waits


if __name__ == "__main__":
    main()
