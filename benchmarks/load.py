"""`python -m benchmarks.load`: the serving path under more load than it has capacity for.

The real server runs in a separate process, over a stand-in whose every step takes the same time.
Requests arrive at random (Poisson, open loop) at 0.5, 0.9, 1.5 and 3 times its capacity. Every
latency counts from when the request was due. For comparison, the same arrivals are simulated at a
server that needs no time except for drawing.

Then requests of different work arrive at three times the capacity: one, two or four pictures in 4,
25 or 50 steps. Their useful work counts the steps of finished pictures.

Then the miniature gets many requests at once, and every picture must equal the one that is drawn
alone. Writes `benchmarks/results/<date>-load.json` and prints it; ends with status 1 if a picture
differs, if less than `USEFUL` of the possible work was done under the highest or the mixed load, or
if slots were in use for less of the time under the mixed load.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx

from benchmarks import record
from benchmarks.processes import Instance, stand_in
from benchmarks.visitors import PATIENCE, Visit, many_connections, percentiles, visit
from pipeline import BUNDLED

STEP_MS, STEPS, SLOTS, PLACES = 20, 25, 4, 32
# A client may fill three quarters of the queue, so these requests, all from one client, find
# `PLACES` slots.
MAX_WAITING = PLACES * 4 // 3
SERVICE_S = STEP_MS * STEPS / 1000
LOADS = (0.5, 0.9, 1.5, 3.0)
MIXED_IMAGES, MIXED_STEPS = (1, 2, 4), (4, 25, 50)
PAGES, PAGES_EACH = 500, 100  # in all, and of an address
USEFUL = 0.95
SEED = 7


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="of arrivals, at each load")
    parser.add_argument("--pictures", type=int, default=12, help="requests to the miniature")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(_measure(Path(folder), options.seconds, options.pictures))
    record.write("load", report)
    unlike = report["miniature"]["pictures_unlike_the_one_drawn_alone"]
    shares = (
        report["loads"][f"{LOADS[-1]}x"]["useful_work"],
        report["mixed"]["useful_work"],
        report["mixed"]["slots_in_use"],
    )
    sys.exit(bool(unlike) or min(shares) < USEFUL)


async def _measure(folder: Path, seconds: float, pictures: int) -> dict[str, Any]:
    flags = "--steps", STEPS, "--max-waiting", MAX_WAITING, "--trusted-proxies", 1
    program = stand_in(STEP_MS, *map(str, flags))
    instance = Instance(program, folder / "stand-in.log")
    instance.start()
    try:
        instance.wait_until_ready()
        await under_load(instance.url, 0.5, 2)  # warm up
        loads = {f"{load}x": await under_load(instance.url, load, seconds) for load in LOADS}
        mixed_load = await under_mixed_load(instance.url, LOADS[-1], 2 * seconds)
        pages = await with_open_pages(instance, seconds / 3)
    finally:
        instance.stop()
    miniature = Instance(["app.py", "--model", str(BUNDLED)], folder / "miniature.log")
    miniature.start()
    try:
        miniature.wait_until_ready()
        comparison = await drawn_together(miniature.url, pictures)
    finally:
        miniature.stop()
    setting = {"step_ms": STEP_MS, "steps": STEPS, "places_in_the_queue": PLACES}
    return {
        "stand_in": setting,
        "loads": loads,
        "mixed": mixed_load,
        "open_pages": pages,
        "miniature": comparison,
    }


async def under_load(url: str, load: float, seconds: float) -> dict[str, Any]:
    """Send arrivals at `load` times the capacity for `seconds`, and wait until all have ended."""
    arrivals = random_arrivals(random.Random(SEED), load / SERVICE_S, seconds)
    bodies = [{"prompt": "a", "seed": number} for number in range(len(arrivals))]
    async with many_connections() as client:
        visits = await asyncio.gather(*visits_at(client, url, arrivals, bodies))
    latencies = {i: result.done_s for i, result in enumerate(visits) if result.done_s}
    ends = [arrivals[i] + done_s for i, done_s in latencies.items()]
    ideal = ideal_latencies(arrivals)
    return {
        "arrivals": len(arrivals),
        "outcomes": dict(Counter(result.outcome for result in visits)),
        "first_event_ms": percentiles([m.first_event_s for m in visits if m.first_event_s]),
        # The difference from the ideal server, for requests that both have drawn.
        "overhead_ms": percentiles(
            [latencies[i] - ideal[i] for i in latencies.keys() & ideal.keys()]
        ),
        "waited_ms": percentiles([done_s - SERVICE_S for done_s in latencies.values()]),
        "ideal_waited_ms": percentiles([done_s - SERVICE_S for done_s in ideal.values()]),
        "useful_work": round(sum(at <= seconds for at in ends) * SERVICE_S / seconds, 3),
    }


async def under_mixed_load(url: str, load: float, seconds: float) -> dict[str, Any]:
    """Send requests of different work at `load` times the capacity for `seconds`."""
    rng = random.Random(SEED)
    work = statistics.mean(MIXED_IMAGES) * statistics.mean(MIXED_STEPS)  # of a request
    capacity = SLOTS * 1000 / STEP_MS  # steps of a picture per second
    arrivals = random_arrivals(rng, load * capacity / work, seconds)
    bodies = [
        {
            "prompt": "a",
            "seed": number,
            "images": rng.choice(MIXED_IMAGES),
            "num_inference_steps": rng.choice(MIXED_STEPS),
        }
        for number in range(len(arrivals))
    ]
    async with many_connections() as client:
        future = asyncio.gather(*visits_at(client, url, arrivals, bodies))
        before = await _picture_steps(client, url)
        await asyncio.sleep(seconds)
        computed_steps = await _picture_steps(client, url) - before
        visits = await future
    useful_steps = sum(
        body["num_inference_steps"]
        * sum(at + picture_s <= seconds for picture_s in result.pictures_s)
        for body, result, at in zip(bodies, visits, arrivals, strict=True)
    )
    possible_steps = capacity * seconds
    return {
        "arrivals": len(arrivals),
        "outcomes": dict(Counter(result.outcome for result in visits)),
        "waited_ms": percentiles([result.started_s for result in visits if result.started_s]),
        "slots_in_use": round(computed_steps / possible_steps, 3),
        "useful_work": round(useful_steps / possible_steps, 3),
    }


async def _picture_steps(client: httpx.AsyncClient, url: str) -> float:
    """Return how many steps of pictures a server has computed so far."""
    lines = (await client.get(f"{url}/metrics", timeout=PATIENCE)).text.splitlines()
    name = "sdxl_picture_steps_total "
    return next(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def random_arrivals(rng: random.Random, per_second: float, seconds: float) -> list[float]:
    """Return the times of Poisson arrivals; the last one is after `seconds`."""
    arrivals = [0.0]
    while arrivals[-1] < seconds:
        arrivals.append(arrivals[-1] + rng.expovariate(per_second))
    return arrivals


def visits_at(
    client: httpx.AsyncClient,
    url: str,
    arrivals: Sequence[float],
    bodies: Sequence[dict[str, Any]],
) -> list[Coroutine[Any, Any, Visit]]:
    """Return a visit for each arrival; the times count from a moment after this call."""
    began = time.monotonic() + 0.1

    async def arrive(body: dict[str, Any], at: float) -> Visit:
        await asyncio.sleep(began + at - time.monotonic())
        return await visit(client, url, body, due_at=began + at)

    return [arrive(body, at) for body, at in zip(bodies, arrivals, strict=True)]


def ideal_latencies(arrivals: list[float]) -> dict[int, float]:
    """Simulate one server with `PLACES` slots for waiting requests.

    Returns:
        The latencies of the requests that it accepts, by their numbers.
    """
    latencies: dict[int, float] = {}
    ends: list[float] = []
    for number, at in enumerate(arrivals):
        ends = [end for end in ends if end > at]
        if len(ends) <= PLACES:
            ends.append(max([at, *ends]) + SERVICE_S)
            latencies[number] = ends[-1] - at
    return latencies


async def with_open_pages(instance: Instance, seconds: float) -> dict[str, Any]:
    """Measure the cost of `PAGES` open pages: each was fetched, and holds its heartbeat."""
    before = await _idle(instance, seconds)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(many_connections())
        for number in range(PAGES):
            headers = {"X-Forwarded-For": f"192.0.2.{number // PAGES_EACH}"}
            page = await client.get(instance.url, headers=headers, timeout=PATIENCE)
            page.raise_for_status()
            beats = f"{instance.url}/gradio_api/heartbeat/page{number}"
            stream = client.stream("GET", beats, headers=headers, timeout=httpx.Timeout(None))
            answer = await stack.enter_async_context(stream)
            answer.raise_for_status()
        after = await _idle(instance, seconds)
        busy = await under_load(instance.url, 0.5, seconds)
    return {"pages": PAGES, "idle_without": before, "idle_with": after, "at_0.5x_with": busy}


async def _idle(instance: Instance, seconds: float) -> dict[str, float]:
    before = instance.usage()
    await asyncio.sleep(seconds)
    after = instance.usage()
    return {
        "processor_percent": round(100 * (after.cpu_s - before.cpu_s) / seconds, 2),
        "memory_mb": round(after.memory_mb),
        "threads": after.threads,
        "open_files": after.open_files,
    }


async def drawn_together(url: str, count: int) -> dict[str, Any]:
    """Send requests all at once, then each alone, and count the pictures that differ."""
    prompts = ("a red star", "a large yellow moon on a blue background", "two green circles")
    bodies = [
        {"prompt": prompts[i % len(prompts)], "seed": 1000 * i, "num_inference_steps": 5 + i % 3}
        for i in range(count)
    ]
    async with many_connections() as client:
        together = await asyncio.gather(*(visit(client, url, body) for body in bodies))
        alone = [await visit(client, url, body) for body in bodies]
    return {
        "requests": count,
        "outcomes": dict(Counter(result.outcome for result in [*together, *alone])),
        "pictures": sum(len(result.pictures) for result in together),
        "pictures_unlike_the_one_drawn_alone": sum(
            expected.pictures[i] != result.pictures.get(i)
            for expected, result in zip(alone, together, strict=True)
            for i in expected.pictures
        ),
    }


if __name__ == "__main__":
    main()
