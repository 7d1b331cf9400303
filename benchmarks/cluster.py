"""`python -m benchmarks.cluster`: two replicas under Ray Serve, drawing with the stand-in.

Measures how long requests wait at two loads, and compares that with the model in `tools.fleet` and
with a simulation of the same arrivals. Then kills and suspends replicas while visitors wait: no
request may be lost, no event may come twice, and every picture must equal the one that a single
process draws. Then overloads a fleet of one replica. Writes
`benchmarks/results/<date>-cluster.json`; ends with status 1 if anything was wrong.
"""

import argparse
import asyncio
import os
import random
import signal
import statistics
import sys
import time
from functools import partial
from typing import Any

import httpx

from benchmarks import record
from benchmarks.chaos import STEP_MS, STEPS, Toll, come, judge, judge_stops
from benchmarks.processes import running, stand_in
from benchmarks.ray_cluster import RayCluster, fleet_on_this_machine, kill
from benchmarks.stand_in import load
from benchmarks.visitors import MARKS, Visit, many_connections, percentiles, visit
from cluster import Fleet
from serving import settings
from tools import fleet

REPLICAS = 2
LOADS = (0.5, 0.8)
VISITORS = 4
SEED = 7
BODIES = [{"prompt": f"prompt {i}", "seed": 100 * i} for i in range(8)]
FLAGS = ["--steps", str(STEPS), "--max-waiting", "1000"]
LOAD = partial(load, STEP_MS)


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="of arrivals, at each load")
    parser.add_argument("--kills", type=int, default=10)
    options = parser.parse_args()
    with running(stand_in(STEP_MS, *FLAGS)) as instance:
        expected = asyncio.run(_drawn_alone(instance.url))
    toll = Toll()
    report: dict[str, Any] = {}
    began = time.monotonic()
    with fleet_on_this_machine(Fleet(), settings.read(FLAGS, {}), LOAD) as cluster:
        report["start_s"] = round(time.monotonic() - began, 1)
        for times in LOADS:
            report[f"waits_at_{times}x"] = asyncio.run(_waits(cluster, times, options.seconds))
        asyncio.run(_killed(cluster, options.kills, expected, toll))
        report["stopped"] = asyncio.run(_stopped(cluster, expected, toll))
        judge_stops(toll)
        report["killed"] = toll.report()
    with fleet_on_this_machine(
        Fleet(min_replicas=1, max_replicas=REPLICAS), settings.read(FLAGS, {}), LOAD
    ) as cluster:
        report["second_replica_after_s"] = round(asyncio.run(_grown(cluster)), 1)
    record.write("cluster", {"replicas": REPLICAS, "step_ms": STEP_MS, "steps": STEPS, **report})
    sys.exit(bool(toll.wrong))


async def _drawn_alone(url: str) -> list[dict[int, str]]:
    async with httpx.AsyncClient() as client:
        return [(await visit(client, url, body)).pictures for body in BODIES]


async def _waits(cluster: RayCluster, times: float, seconds: float) -> dict[str, Any]:
    """Send arrivals at `times` the fleet's capacity for `seconds`.

    Returns:
        The waits in milliseconds, beside those of the model and of a simulation.
    """
    async with many_connections() as client:
        alone_results = [await visit(client, cluster.url, BODIES[0]) for _ in range(9)]
        service_s = statistics.median(result.done_s or 0.0 for result in alone_results[1:])
        model = fleet.Fleet(times * REPLICAS / service_s, service_s, 0.0, REPLICAS)
        count = int(seconds * model.arrivals)
        arrivals = fleet.poisson(model.arrivals, count, random.Random(SEED))
        began = time.monotonic() + 0.1

        async def arrive(at: float) -> Visit:
            await asyncio.sleep(began + at - time.monotonic())
            return await visit(client, cluster.url, BODIES[0], due_at=began + at)

        results = await asyncio.gather(*(arrive(at) for at in arrivals))
    simulated = fleet.simulated_waits(arrivals, [service_s] * count, REPLICAS)
    return {
        "requests": count,
        "done": sum(result.outcome == "done" for result in results),
        "alone_ms": round(1000 * service_s),
        "wait_ms": percentiles(
            [max(0.0, result.done_s - service_s) for result in results if result.done_s]
        ),
        "wait_ms_simulated": percentiles(simulated),
        "wait_ms_model": {k: round(1000 * model.wait_s(part), 1) for k, part in MARKS.items()},
    }


async def _killed(
    cluster: RayCluster, kills: int, expected: list[dict[int, str]], toll: Toll
) -> None:
    """Kill one replica after another, while visitors wait, stop their requests or leave."""
    rng = random.Random(SEED)
    requests = list(zip(BODIES, expected, strict=True))

    def over() -> bool:
        return toll.mishaps["killed"] >= kills

    async with httpx.AsyncClient() as client:
        visitors = [
            asyncio.create_task(come(client, cluster.url, requests, toll, rng, over))
            for _ in range(VISITORS)
        ]
        for _ in range(kills):
            before = await _all_there(cluster)
            await asyncio.sleep(rng.uniform(0.5, 1.5))
            kill(rng.choice(sorted(before)))
            began = time.monotonic()
            await _replaced(cluster, before)
            toll.restart_s.append(time.monotonic() - began)
            toll.mishaps["killed"] += 1
        await asyncio.gather(*visitors)


async def _stopped(
    cluster: RayCluster, expected: list[dict[int, str]], toll: Toll
) -> dict[str, float]:
    """Suspend a replica in the middle of a request, so that it falls silent without closing.

    Its request must start again elsewhere, and the replica must be replaced.

    Returns:
        Seconds until the requests were done and until the replica was replaced.
    """
    async with httpx.AsyncClient() as client:
        before = await _all_there(cluster)
        tasks = [asyncio.create_task(visit(client, cluster.url, body)) for body in BODIES[:2]]
        await asyncio.sleep(STEP_MS * STEPS / 2000)
        os.kill(min(before), signal.SIGSTOP)
        began = time.monotonic()
        results = await asyncio.gather(*tasks)
        for result, pictures in zip(results, expected[:2], strict=True):
            judge("stays", result, pictures, toll)
        done_s = time.monotonic() - began
        await _replaced(cluster, before)
        return {
            "requests_done_after_s": round(done_s, 1),
            "replaced_after_s": round(time.monotonic() - began, 1),
        }


async def _grown(cluster: RayCluster) -> float:
    """Return the seconds from the overload of one replica until Ray has started another."""
    over = False

    async def ask(client: httpx.AsyncClient) -> None:
        while not over:
            await visit(client, cluster.url, BODIES[0])

    async with many_connections() as client:
        began = time.monotonic()
        visitors = [asyncio.create_task(ask(client)) for _ in range(4 * REPLICAS)]
        await _all_there(cluster)
        grown_s = time.monotonic() - began
        over = True
        await asyncio.gather(*visitors)
        return grown_s


async def _all_there(cluster: RayCluster) -> set[int]:
    while len(replicas := cluster.replicas()) < REPLICAS:
        await asyncio.sleep(0.1)
    return replicas


async def _replaced(cluster: RayCluster, before: set[int]) -> None:
    while len(cluster.replicas()) < REPLICAS or cluster.replicas() == before:
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    main()
