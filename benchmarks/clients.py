"""Pictures per second, and the wait for one, with a growing number of clients.

    python -m benchmarks.clients

Each client asks for one picture after the other, over HTTP. The bundled miniature and a stand-in
with the estimated step time of SDXL on a TPU v5e-4 draw them, each in a server of its own. Writes
`benchmarks/results/<date>-clients.json`.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from benchmarks import record
from benchmarks.processes import Instance, stand_in
from benchmarks.slots import STEP_MS, draw_one
from benchmarks.visitors import many_connections
from pipeline import BUNDLED

CLIENTS = 1, 2, 4, 8, 16


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clients", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="for each number of clients")
    options = parser.parse_args()
    programs = {
        "miniature": ["app.py", "--model", str(BUNDLED)],
        "stand_in": stand_in(STEP_MS, "--steps", "25"),
    }
    found = {name: measure(program, options.seconds) for name, program in programs.items()}
    record.write("clients", {"step_ms": STEP_MS, **found})


def measure(program: Sequence[str], seconds: float) -> list[dict[str, float]]:
    """Return the figures of a program for each number of clients."""
    with tempfile.TemporaryDirectory() as folder:
        instance = Instance(program, Path(folder) / "log")
        try:
            instance.start()
            instance.wait_until_ready()
            return asyncio.run(_for_each_number(instance.url, seconds))
        finally:
            instance.stop()


async def _for_each_number(url: str, seconds: float) -> list[dict[str, float]]:
    async with many_connections() as client:
        await draw_one(client, url)
        return [await _load(client, url, clients, seconds) for clients in CLIENTS]


async def _load(
    client: httpx.AsyncClient, url: str, clients: int, seconds: float
) -> dict[str, float]:
    """Return the figures with some clients, once each of them has had a picture."""
    ended: list[tuple[float, float]] = []

    async def ask() -> None:
        while len(ended) < clients or ended[-1][0] < ended[clients - 1][0] + seconds:
            waited = await draw_one(client, url)
            ended.append((time.monotonic(), waited))

    await asyncio.gather(*(ask() for _ in range(clients)))
    began = ended[clients - 1][0]
    counted = [waited for at, waited in ended if began < at <= began + seconds]
    return {
        "clients": clients,
        "pictures_per_second": round(len(counted) / seconds, 3),
        "median_seconds": round(statistics.median(counted), 3),
    }


if __name__ == "__main__":
    main()
