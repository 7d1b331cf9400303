"""`make chaos`: requests through a front-end while faults are injected behind it.

The processes are real: a front-end, and two instances that draw with the stand-in, each behind a
proxy of ours. Instances are killed at random moments and restarted, or suspended and resumed. The
proxies reset connections, truncate answers and delay them. Meanwhile visitors wait for pictures of
two models, stop their requests or leave, in every phase. Then the front-end is restarted under
load, and killed; finally no process can write to its disk.

No request may be lost, no event may come twice, and every picture must equal, bit for bit, the
one that an undisturbed instance draws. Writes `benchmarks/results/<date>-chaos.json`; ends with
status 1 otherwise.
"""

import argparse
import asyncio
import itertools
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks import record
from benchmarks.processes import Instance, front_end, stand_in
from benchmarks.proxy import Proxy
from benchmarks.stand_in import StandIn
from benchmarks.visitors import Moment, Visit, many_connections, page_request, percentiles, visit

STEP_MS, STEPS = 20, 20
# The body of a request, and the pictures that it must give: digests, by index.
Expected = tuple[dict[str, Any], dict[int, str]]
# Events of a request, with the number of each; a visitor stops or leaves at one of them.
PHASES = {"queued": 1, "started": 1, "step": STEPS, "image": 4}
# Seconds: a quarter of the drawing time. A stop that is confirmed so soon after an event that
# showed nothing drawn is early: the request can only be done if that event was late by the other
# three quarters.
EARLY_S = STEP_MS * STEPS / 4000
# With at least this many requests, visitors must have stopped and left in every phase.
MANY = 1000
VISITORS = 8
# Visits that end between two faults of an instance. Without a pause a slow machine would disturb
# the same requests without end.
CALM_VISITS = 6


@dataclass
class Plan:
    """The extent of a run."""

    requests: int
    kills: int
    stops_s: tuple[float, ...]  # how long each suspension lasts, in turn
    seed: int = 7


@dataclass
class Toll:
    """The events and faults of a run.

    Attributes:
        mishaps: how often each kind of fault was injected.
        restart_s: seconds from each kill until the instance was ready again.
        visits: the visitor's intent ("stays", "cancels", "leaves"), and the result of the visit.
        asked_again: how many refusals were followed by another attempt.
        wrong: a sentence for each violation.
    """

    mishaps: Counter[str] = field(default_factory=Counter)
    restart_s: list[float] = field(default_factory=list)
    visits: list[tuple[str, Visit]] = field(default_factory=list)
    asked_again: int = 0
    wrong: list[str] = field(default_factory=list)

    def changes(self) -> Counter[str]:
        """Return how often visitors stopped their requests or left, by phase."""
        return Counter(
            f"{intent}: {result.changed_at}" for intent, result in self.visits if result.changed_at
        )

    def report(self) -> dict[str, Any]:
        """Return the report that is recorded."""
        outcomes = Counter(f"{intent}: {result.outcome}" for intent, result in self.visits)
        return {
            "requests": len(self.visits),
            "outcomes": dict(sorted(outcomes.items())),
            "changed_their_minds": dict(sorted(self.changes().items())),
            "refused_and_asked_again": self.asked_again,
            "mishaps": dict(sorted(self.mishaps.items())),
            "restart_ms": percentiles(self.restart_s),
            "begun_again": sum(len(result.recovery_s) for _, result in self.visits),
            "recovery_ms": percentiles([s for _, result in self.visits for s in result.recovery_s]),
            "lost": sum(result.outcome == "broken" for _, result in self.visits),
            "duplicated": sum(result.duplicates for _, result in self.visits),
            "wrong": self.wrong,
        }


def main() -> None:
    """Run, record, and fail if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--requests", type=int, default=1000, help="at least")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--stop-seconds", type=float, nargs="+", default=[60, 3, 20])
    options = parser.parse_args()
    plan = Plan(options.requests, options.kills, tuple(options.stop_seconds))
    with tempfile.TemporaryDirectory() as folder:
        toll = asyncio.run(run(plan, Path(folder)))
    record.write("chaos", {"models": len(StandIn.facts.model_names), **toll.report()})
    sys.exit(bool(toll.wrong))


async def run(plan: Plan, folder: Path) -> Toll:
    """Start all processes, inject the faults, and return the toll; logs go to `folder`."""
    program = stand_in(STEP_MS, "--steps", str(STEPS))
    instances = [Instance(program, folder / f"instance-{i}.log") for i in range(2)]
    proxies = [Proxy(instance.port) for instance in instances]
    front = Instance(front_end([proxy.url for proxy in proxies]), folder / "front-end.log")
    try:
        for proxy in proxies:
            await proxy.open()
        await start_all([*instances, front])
        return await _disturbed(plan, instances, proxies, front)
    finally:
        for proxy in proxies:
            await proxy.close()
        for instance in (*instances, front):
            instance.kill()


async def start_all(instances: Sequence[Instance]) -> None:
    """Start all instances at once, and wait until they are ready."""
    for instance in instances:
        instance.start()
    for instance in instances:
        await asyncio.to_thread(instance.wait_until_ready)


async def _disturbed(
    plan: Plan, instances: list[Instance], proxies: list[Proxy], front: Instance
) -> Toll:
    toll, rng = Toll(), random.Random(plan.seed)
    stops_s = itertools.cycle(plan.stops_s)
    async with many_connections() as client:
        bodies = [
            {"prompt": f"prompt {i}", "seed": 100 * i, "model": model, "num_inference_steps": STEPS}
            for i in range(4)
            for model in StandIn.facts.model_names
        ]
        requests = [
            (body, (await visit(client, instances[0].url, body)).pictures) for body in bodies
        ]
        digests = {digest for _, pictures in requests for digest in pictures.values()}
        assert len(digests) == 4 * len(bodies), "two prompts or models give the same picture"

        def over() -> bool:
            return len(toll.visits) >= plan.requests and toll.mishaps["killed"] >= plan.kills

        mishaps = [
            _mishaps(plan, instance, proxy, stops_s, toll, rng, over)
            for instance, proxy in zip(instances, proxies, strict=True)
        ]
        visitors = [come(client, front.url, requests, toll, rng, over) for _ in range(VISITORS)]
        await asyncio.gather(*mishaps, *visitors)
        # A front-end that is told to stop ends its requests; one that is killed breaks them off.
        stopping = {"done", "stopping", "refused: stopping"}
        await _ended(client, front, requests, toll, signal.SIGTERM, stopping)
        await _ended(client, front, requests, toll, signal.SIGKILL, {"done", "broken"})
        await _disk_full(client, instances, front, requests, toll)
        await settled(client, front, toll)
    judge_stops(toll)
    if plan.requests >= MANY:
        changes = {f"{intent}: {phase}" for intent in ("cancels", "leaves") for phase in PHASES}
        toll.wrong += [f"nobody {change}" for change in sorted(changes - toll.changes().keys())]
    return toll


async def come(
    client: httpx.AsyncClient,
    url: str,
    requests: Sequence[Expected],
    toll: Toll,
    rng: random.Random,
    over: Callable[[], bool],
) -> None:
    """Act as one visitor after another, until `over()`."""
    while not over():
        body, pictures = rng.choice(requests)
        intent = rng.choices(["stays", "cancels", "leaves"], [8, 1, 1])[0]
        phase = rng.choice(list(PHASES))
        moment = Moment(phase, rng.randrange(PHASES[phase]))
        result = await _ask(client, url, body, intent, moment, toll)
        toll.visits.append((intent, result))
        judge(intent, result, pictures, toll)


async def _ask(
    client: httpx.AsyncClient,
    url: str,
    body: dict[str, Any],
    intent: str,
    moment: Moment,
    toll: Toll,
) -> Visit:
    """Make a request; after a refusal wait as long as it says, at most 1 s, and repeat."""
    while True:
        result = await visit(
            client,
            url,
            body,
            cancel_at=moment if intent == "cancels" else None,
            leave_at=moment if intent == "leaves" else None,
        )
        if not result.outcome.startswith("refused"):
            return result
        toll.asked_again += 1
        await asyncio.sleep(min(result.retry_after_s, 1.0))


def judge(intent: str, result: Visit, pictures: dict[int, str], toll: Toll) -> None:
    """Record each fault of a visit; `pictures` has the digests of the expected ones."""
    other_outcomes = {"stays": set(), "cancels": {"cancelled"}, "leaves": {"left"}}[intent]
    if result.outcome not in {"done", *other_outcomes}:
        toll.wrong.append(f"one who {intent} was told: {result.outcome}")
    if result.outcome == "done" and result.pictures.keys() != pictures.keys():
        toll.wrong.append(f"done with the pictures {sorted(result.pictures)}")
    if any(pictures.get(i) != digest for i, digest in result.pictures.items()):
        toll.wrong.append("a picture is not the one that is drawn undisturbed")
    if result.duplicates:
        toll.wrong.append("something came twice")


def judge_stops(toll: Toll) -> None:
    """Record a fault if early stops, before the request can have been done, have no effect.

    Some of those requests may be done, because a visitor may receive an event late.
    """
    early = [
        result
        for _, result in toll.visits
        if result.stopped_s is not None and result.stopped_s < EARLY_S and result.drawn <= 1 / 2
    ]
    done = sum(result.outcome == "done" for result in early)
    if done > max(1, len(early) // 2):
        toll.wrong.append(f"{done} of {len(early)} that were stopped in time are done")


# --- mishaps ---


async def _mishaps(
    plan: Plan,
    instance: Instance,
    proxy: Proxy,
    stops_s: Iterator[float],
    toll: Toll,
    rng: random.Random,
    over: Callable[[], bool],
) -> None:
    """Inject one fault after another into an instance until `over()`; leave it running."""

    async def killed() -> None:
        await kill(instance, toll)

    async def stopped() -> None:
        instance.signal(signal.SIGSTOP)
        await asyncio.sleep(next(stops_s))
        instance.signal(signal.SIGCONT)

    async def delayed() -> None:
        proxy.delay_s = rng.uniform(0.1, 1.0)
        await asyncio.sleep(2.0)
        proxy.delay_s = 0.0

    async def reset() -> None:
        proxy.reset()

    async def truncated() -> None:
        proxy.truncate(rng.randrange(1, 60_000))

    others: list[Callable[[], Awaitable[None]]] = [stopped, delayed, reset, truncated]
    while not over():
        calm_until = len(toll.visits) + CALM_VISITS
        while len(toll.visits) < calm_until and not over():
            await asyncio.sleep(0.02)
        await asyncio.sleep(rng.uniform(0, 0.5))
        mishap = killed
        if toll.mishaps["killed"] >= plan.kills or rng.random() < 0.4:
            # Suspensions are long, so they are rare: otherwise little else would happen.
            mishap = rng.choices(others, [1, 4, 4, 4])[0]
        toll.mishaps[mishap.__name__] += 1
        await mishap()


async def kill(instance: Instance, toll: Toll) -> None:
    """Kill an instance, and restart it."""
    began = time.monotonic()
    instance.kill()
    await start_all([instance])
    toll.restart_s.append(time.monotonic() - began)


async def _ended(
    client: httpx.AsyncClient,
    front: Instance,
    requests: Sequence[Expected],
    toll: Toll,
    number: signal.Signals,
    outcomes: set[str],
) -> None:
    """End the front-end under load by a signal, and restart it; then all requests must succeed.

    `outcomes` are those that its requests may have.
    """
    tasks = [asyncio.create_task(visit(client, front.url, body)) for body, _ in requests]
    await asyncio.sleep(STEP_MS * STEPS / 2000)
    front.signal(number)
    counts = Counter(result.outcome for result in await asyncio.gather(*tasks))
    if counts.keys() - outcomes:
        toll.wrong.append(f"when the front-end got {number.name}: {dict(counts)}")
    await asyncio.to_thread(front.process.wait, 60)
    await start_all([front])
    toll.mishaps[f"front-end {number.name}"] += 1
    await _all_right(client, front, requests, toll)


async def _disk_full(
    client: httpx.AsyncClient,
    instances: list[Instance],
    front: Instance,
    requests: Sequence[Expected],
    toll: Toll,
) -> None:
    """Let no process write to a file.

    The API must draw as before. The page needs a file for each picture: it must report an error,
    and succeed when there is room again.
    """
    limits = {instance: _may_write(instance, 0) for instance in (*instances, front)}
    toll.mishaps["disk full"] += 1
    await _all_right(client, front, requests, toll)
    endings = [await page_request(client, front.url)]
    for instance, limit in limits.items():
        _may_write(instance, limit)
    endings.append(await page_request(client, front.url))
    if endings != ["error", "complete"]:
        toll.wrong.append(f"the page, with a full disk and with room again: {endings}")


async def _all_right(
    client: httpx.AsyncClient, front: Instance, requests: Sequence[Expected], toll: Toll
) -> None:
    """Make all requests at once; record a fault for each that does not get its pictures."""
    results = await asyncio.gather(*(visit(client, front.url, body) for body, _ in requests))
    for result, (_, pictures) in zip(results, requests, strict=True):
        judge("stays", result, pictures, toll)


def _may_write(instance: Instance, size: int) -> int:
    """Set a process's limit on the size of files, in bytes; return the limit before."""
    soft, hard = resource.prlimit(instance.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(instance.process.pid, resource.RLIMIT_FSIZE, (size, hard))
    return soft


async def settled(client: httpx.AsyncClient, front: Instance, toll: Toll) -> None:
    """Require that within a minute no request waits or runs any more."""
    deadline = time.monotonic() + 60
    body: dict[str, Any] = {}
    while time.monotonic() < deadline:
        body = (await client.get(f"{front.url}/readyz")).json()
        if body == {"ready": True, "waiting": 0, "running": 0}:
            return
        await asyncio.sleep(0.1)
    toll.wrong.append(f"in the end it still says {body}")


if __name__ == "__main__":
    main()
