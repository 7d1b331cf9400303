"""The gain from slots, and their cost.

    python -m benchmarks.slots [--beside ../other/checkout]

Measures the bundled miniature, and a stand-in with the estimated step time of SDXL on a TPU v5e-4,
each in a server of its own. `CLIENTS` clients ask for one picture after the other. Then a client
asks for pictures in `SHORT` steps beside as many clients as there are slots, who ask for `LONG`
steps and began at different times. Requests for four pictures, with previews, show the cost. The
server of another checkout, such as that of an earlier commit, is measured in turns with this one,
in the same environment. The gap is the time that a step of the miniature takes beyond that of steps
which are queued all at once. Writes `benchmarks/results/<date>-slots.json`.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import jax

from benchmarks import record
from benchmarks.processes import ROOT, Instance, stand_in
from benchmarks.visitors import PATIENCE, many_connections, visit
from pipeline import BUNDLED, SDXLPipeline
from pipeline.drawing.drawing import Drawing
from pipeline.request import GenerateRequest
from pipeline.runtime.mesh import cores_as_devices
from pipeline.runtime.slots import Slots

CLIENTS, SLOTS = 16, 4
SHORT, LONG = 4, 50  # steps
STEP_MS = 108  # a step of SDXL on a TPU v5e-4 by the compiler's count; see docs/benchmarks.md
SHORT_REQUESTS, FOURS = 6, 5  # in a turn
WAITS = "short_alone_seconds", "short_wait_seconds"
GAP_TURNS = 10


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slots", description=__doc__)
    parser.add_argument("--beside", type=Path, help="another checkout")
    parser.add_argument("--seconds", type=float, default=40, help="of throughput, in each turn")
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    roots = [ROOT, *([options.beside.resolve()] if options.beside else [])]
    programs = {
        "miniature": ["app.py", "--model", str(BUNDLED)],
        "stand_in": stand_in(STEP_MS, "--steps", "25"),
    }
    report: dict[str, Any] = {
        name: _compare(program, roots, options.seconds, options.turns)
        for name, program in programs.items()
    }
    report["miniature"]["here"]["gap"] = _host_gap()
    record.write("slots", {"clients": CLIENTS, "short": SHORT, "long": LONG, **report})


def _host_gap() -> float:
    """Return the gap of a guided step of the miniature in all slots, on the processor's cores.

    Runs of steps that are queued at once, without the engine, take turns with runs of the engine's.
    """
    cores_as_devices(SLOTS)
    pipe = SDXLPipeline.from_pretrained(BUNDLED)
    request = GenerateRequest("a red star", num_inference_steps=LONG)
    ratios = []
    for _ in range(GAP_TURNS):
        drawing = pipe.prepare(request)
        pipe.begin(drawing)
        while not drawing.done:
            pipe.advance()
        began = time.perf_counter()
        while drawing.done < LONG - 1:  # with the last step the pictures are decoded
            pipe.advance()
        engine_s = (time.perf_counter() - began) / (LONG - 2)
        while not drawing.is_over:
            pipe.advance()
        ratios.append(engine_s / _queued_step(drawing))
    return round(statistics.median(ratios) - 1, 4)


def _queued_step(drawing: Drawing) -> float:
    """Return the seconds of a step of a drawing's pictures if all steps are queued at once."""
    slots = Slots(drawing.run)
    slots.enter(drawing.start, {slot: slot for slot in range(SLOTS)})
    rows = [{slot: drawing.work(slot, each) for slot in range(SLOTS)} for each in range(LONG)]
    jax.block_until_ready(slots.advance(rows[0]))
    began = time.perf_counter()
    for each in rows[1:]:
        slots.advance(each)
    jax.block_until_ready(slots.state)
    return (time.perf_counter() - began) / (LONG - 1)


def _compare(
    program: Sequence[str], roots: Sequence[Path], seconds: float, turns: int
) -> dict[str, Any]:
    """Measure a program of each checkout, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        instances = [
            Instance(program, Path(folder) / f"{i}.log", root) for i, root in enumerate(roots)
        ]
        try:
            for each in instances:
                each.start()
                each.wait_until_ready()
            found = asyncio.run(_in_turns(instances, seconds, turns))
        finally:
            for each in instances:
                each.stop()
    names = ["here", "beside"]
    return {name: _medians(each) for name, each in zip(names, found, strict=False)}


def _medians(found: dict[str, list[float]]) -> dict[str, Any]:
    return {name: round(statistics.median(values), 3) for name, values in found.items()} | {
        "pictures_per_second_in_each_turn": [
            round(each, 2) for each in found["pictures_per_second"]
        ]
    }


async def _in_turns(
    instances: Sequence[Instance], seconds: float, turns: int
) -> list[dict[str, list[float]]]:
    """Return the figures of every turn by name, for each instance."""
    found: list[dict[str, list[float]]] = [
        {name: [] for name in ("four_pictures_seconds", "pictures_per_second", *WAITS)}
        for _ in instances
    ]
    async with many_connections() as client:
        for seed in range(turns * FOURS):
            for instance, figures in zip(instances, found, strict=True):
                figures["four_pictures_seconds"].append(await _four(client, instance.url, seed))
        for _ in range(turns):
            for instance, figures in zip(instances, found, strict=True):
                alone = min([await draw_one(client, instance.url, SHORT) for _ in range(3)])
                figures["short_alone_seconds"].append(alone)
                figures["pictures_per_second"].append(
                    await _throughput(client, instance.url, seconds)
                )
                waits = await _short_beside_long(client, instance.url)
                figures["short_wait_seconds"] += [each - alone for each in waits]
    return found


async def draw_one(client: httpx.AsyncClient, url: str, steps: int | None = None) -> float:
    """Ask for one picture, and return the seconds until it was there."""
    began = time.monotonic()
    body = {"prompt": "a red star", "n": 1, "seed": random.randrange(2**31)}
    body |= {} if steps is None else {"num_inference_steps": steps}
    answer = await client.post(f"{url}/v1/images/generations", json=body, timeout=PATIENCE)
    answer.raise_for_status()
    assert len(answer.json()["data"]) == 1
    return time.monotonic() - began


async def _four(client: httpx.AsyncClient, url: str, seed: int) -> float:
    """Return the seconds of a request for four pictures, with previews as on the page."""
    made = await visit(client, url, {"prompt": "a red star", "seed": seed, "previews": True})
    assert made.done_s is not None, made.outcome
    return made.done_s


async def _throughput(client: httpx.AsyncClient, url: str, seconds: float) -> float:
    """Return the pictures per second that `CLIENTS` clients get, one after the other each.

    The time begins when each client has had one.
    """
    times: list[float] = []

    async def ask() -> None:
        while len(times) < CLIENTS or times[-1] < times[CLIENTS - 1] + seconds:
            await draw_one(client, url)
            times.append(time.monotonic())

    await asyncio.gather(*(ask() for _ in range(CLIENTS)))
    began = times[CLIENTS - 1]
    return sum(began < each <= began + seconds for each in times) / seconds


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
        waited = []
        for _ in range(SHORT_REQUESTS):
            await asyncio.sleep(random.uniform(0, long_s / SLOTS))
            waited.append(await draw_one(client, url, SHORT))
        over = True
    return waited


if __name__ == "__main__":
    main()
