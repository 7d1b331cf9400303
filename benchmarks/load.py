"""`python -m benchmarks.load`: the serving path under more load than it has capacity for.

The real server runs in a separate process, over a stand-in whose every step takes the same time.
Requests arrive at random (Poisson, open loop) at 0.5, 0.9, 1.5 and 3 times its capacity. Every
latency counts from when the request was due. For comparison, the same arrivals are simulated at a
server that needs no time except for drawing.

Then requests of different work arrive at three times the capacity: one, two or four pictures in 4,
25 or 50 steps. Their useful work counts the steps of finished pictures.

Writes `benchmarks/results/<date>-load.json` and prints it; ends with status 1 if less than `USEFUL`
of the possible work was done under the highest or the mixed load, or if slots were in use for less
of the time under the mixed load.
"""

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any

import httpx

from benchmarks import record
from benchmarks.processes import running, stand_in
from benchmarks.visitors import PATIENCE, Visit, many_connections, percentiles, visit

STEP_MS, STEPS, SLOTS, PLACES = 20, 25, 4, 32
# A client may fill three quarters of the queue, so these requests, all from one client, find
# `PLACES` slots.
MAX_WAITING = PLACES * 4 // 3
SERVICE_S = STEP_MS * STEPS / 1000
LOADS = (0.5, 0.9, 1.5, 3.0)
MIXED_IMAGES, MIXED_STEPS = (1, 2, 4), (4, 25, 50)
USEFUL = 0.95
SEED = 7


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="of arrivals, at each load")
    options = parser.parse_args()
    report = asyncio.run(_measure(options.seconds))
    record.write("load", report)
    shares = (
        report["loads"][f"{LOADS[-1]}x"]["useful_work"],
        report["mixed"]["useful_work"],
        report["mixed"]["slots_in_use"],
    )
    sys.exit(min(shares) < USEFUL)


async def _measure(seconds: float) -> dict[str, Any]:
    flags = "--steps", STEPS, "--max-waiting", MAX_WAITING
    with running(stand_in(STEP_MS, *map(str, flags))) as instance:
        url = instance.url
        await under_load(url, 0.5, 2)  # warm up
        return {
            "stand_in": {"step_ms": STEP_MS, "steps": STEPS, "places_in_the_queue": PLACES},
            "loads": {f"{load}x": await under_load(url, load, seconds) for load in LOADS},
            "mixed": await under_mixed_load(url, LOADS[-1], 2 * seconds),
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


if __name__ == "__main__":
    main()
