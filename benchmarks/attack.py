"""`python -m benchmarks.attack`: how much one address can harm a server and its other visitors.

The server draws with the stand-in, in a separate process. An attacker at 127.0.0.2 sends each kind
of request in `ATTACKS`, as fast as it is answered, for the given minutes in total. During each
attack a visitor at 127.0.0.1 keeps asking for pictures. Afterwards the server's memory is compared
with that before. Writes `benchmarks/results/<date>-attack.json`; ends with status 1 if a visitor
waited for longer than `DRAWN_WITHIN_S`, or if memory grew by more than `MAY_KEEP_MB`.
"""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from benchmarks import record
from benchmarks.processes import Instance, stand_in

ATTACKER = "127.0.0.2"
DRAWN_WITHIN_S = 5.0
MAY_KEEP_MB = 50.0
STEP_MS, STEPS = 20.0, 10
AT_A_TIME = 40

Attack = Callable[[httpx.AsyncClient, "dict[str, int]"], Awaitable[int]]


def _name() -> str:
    return secrets.token_urlsafe(16)


async def _join(client: httpx.AsyncClient, function: int, data: list[Any], session: str) -> int:
    body = {"fn_index": function, "data": data, "session_hash": session}
    return (await client.post("/gradio_api/queue/join", json=body)).status_code


async def large_bodies(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Post 15 MB with an idempotency key, which makes the server keep the answer."""
    url = f"/gradio_api/queue/join?once={_name()}"
    return (await client.post(url, json={"data": ["x" * 15_000_000]})).status_code


async def largest_bodies(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Post 250 kB, each time in a new session."""
    return await _join(client, functions["of_text"], ["x" * 250_000], _name())


async def large_sessions(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Join the queue with a session name of 900 kB."""
    return await _join(client, functions["stop"], [None], "x" * 900_000)


async def made_up_sessions(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Join the queue in a new session for each call."""
    return await _join(client, functions["length"], ["a red star", "(none)", False], _name())


async def unread_answers(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Start a generation through Gradio's API, and never fetch its answer."""
    answer = await client.post("/gradio_api/call/v2/generate", json={"prompt": "a", "steps": 1})
    return answer.status_code


async def followers(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Follow a request that is being drawn, and never fetch the updates."""
    request = {"prompt": "a", "num_inference_steps": 50, "id": _name(), "keep": True}
    async with client.stream("POST", "/v1/generate", json=request):
        return await _join(client, functions["again"], [request["id"], None], _name())


async def uploads(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Upload a file of 1 MB that nothing uses, with its own progress to follow."""
    url = f"/gradio_api/upload?upload_id={_name()}"
    return (await client.post(url, files={"files": ("a.png", b"x" * 1_000_000)})).status_code


async def held_heartbeats(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Hold the heartbeat of a made-up session open until the server closes it, at most 5 s."""
    async with client.stream("GET", f"/gradio_api/heartbeat/{_name()}") as answer:
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                async for _ in answer.aiter_raw():
                    pass
        return answer.status_code


async def idle_connections(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Hold a connection open without a request, until the server closes it, at most 5 s."""
    url = urlsplit(str(client.base_url))
    reader, writer = await asyncio.open_connection(url.hostname, url.port, local_addr=(ATTACKER, 0))
    with suppress(TimeoutError):
        async with asyncio.timeout(5):
            await reader.read()
    writer.close()
    return 0


# Each attack with the number of its concurrent calls.
ATTACKS: dict[Attack, int] = {
    large_bodies: 4,
    largest_bodies: 8,
    large_sessions: 8,
    made_up_sessions: AT_A_TIME,
    unread_answers: AT_A_TIME,
    followers: AT_A_TIME,
    uploads: 8,
    held_heartbeats: 1000,
    idle_connections: 1000,
}


def attack(url: str, how: Attack, seconds: float) -> Counter[int]:
    """Attack a server for `seconds`.

    Returns:
        How often each status was answered; 0 counts idle connections, -1 those that failed.
    """
    functions = functions_of(url)
    answers: Counter[int] = Counter()
    ends = time.monotonic() + seconds

    async def go_on(client: httpx.AsyncClient) -> None:
        while time.monotonic() < ends:
            try:
                answers[await how(client, functions)] += 1
            except (httpx.HTTPError, OSError):
                answers[-1] += 1
                await asyncio.sleep(0.05)

    async def begin() -> None:
        limits = httpx.Limits(max_connections=None)
        transport = httpx.AsyncHTTPTransport(local_address=ATTACKER, limits=limits)
        async with httpx.AsyncClient(transport=transport, base_url=url, timeout=30) as client:
            await asyncio.gather(*(go_on(client) for _ in range(ATTACKS[how])))

    asyncio.run(begin())
    return answers


def attacked(
    attackers: ProcessPoolExecutor, url: str, how: Attack, seconds: float
) -> tuple[Counter[int], list[float]]:
    """Attack from another process, and draw as a visitor meanwhile.

    Returns:
        The attacker's answers by status, and the seconds that the visitor waited for each picture.
    """
    attacking = attackers.submit(attack, url, how, seconds)
    waited = list(visits(url, attacking))
    return attacking.result(), waited


def visits(url: str, until: Future[Any]) -> Iterator[float]:
    """Draw through the API and through the page's route in turns; yield the seconds of each."""
    with httpx.Client(base_url=url, timeout=60) as client:
        for draw in itertools.cycle((_draw_by_api, _draw_by_page)):
            if until.done():
                return
            began = time.monotonic()
            draw(client)
            yield time.monotonic() - began
            time.sleep(0.5)


def _draw_by_api(client: httpx.Client) -> None:
    answer = client.post("/v1/generate", json={"prompt": "a", "seed": 7})
    assert answer.status_code == 200, answer.text
    assert "event: done" in answer.text


def _draw_by_page(client: httpx.Client) -> None:
    """Draw through Gradio's queue, in which every waiting page takes a slot."""
    call = client.post("/gradio_api/call/v2/generate", json={"prompt": "a", "seed": 7})
    assert call.status_code == 200, call.text
    answer = client.get(f"/gradio_api/call/v2/generate/{call.json()['event_id']}")
    assert "event: complete" in answer.text, answer.text


def functions_of(url: str) -> dict[str, int]:
    """Return the `fn_index` of each function of the page, by its API name."""
    config = httpx.get(f"{url}/config", timeout=60).json()
    return {each["api_name"]: each["id"] for each in config["dependencies"]}


def run(instance: Instance, seconds: float) -> dict[str, Any]:
    """Run every attack, for `seconds` in total, and report its effect."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as attackers:
        for how in ATTACKS:  # a warm-up: caches that are filled once are not a leak
            attacked(attackers, instance.url, how, 2.0)
        before = instance.usage().memory_mb
        report: dict[str, Any] = {"memory_before_mb": round(before)}
        for how in ATTACKS:
            each_s = seconds / len(ATTACKS)
            answers, waited = attacked(attackers, instance.url, how, each_s)
            report[how.__name__] = {
                "answers": {str(status): count for status, count in sorted(answers.items())},
                "visitor_waited_s": round(max(waited), 2),
                "memory_mb": round(instance.usage().memory_mb),
            }
    report["memory_after_mb"] = round(instance.usage().memory_mb)
    return report


def main() -> None:
    """Run the attacks, record them, and fail if visitors waited too long or memory grew."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        instance = Instance(stand_in(STEP_MS, "--steps", str(STEPS)), Path(folder) / "log")
        instance.start()
        try:
            instance.wait_until_ready()
            report = run(instance, 60 * options.minutes)
        finally:
            instance.stop()
    record.write("attack", report)
    sys.exit(json.dumps(faults) if (faults := found_wrong(report)) else 0)


def found_wrong(report: dict[str, Any], drawn_within_s: float = DRAWN_WITHIN_S) -> list[str]:
    """Return a sentence for each limit that was exceeded."""
    faults = [
        f"during {name} a visitor waited for {found['visitor_waited_s']} s"
        for name, found in report.items()
        if isinstance(found, dict) and found.get("visitor_waited_s", 0) > drawn_within_s
    ]
    kept = report["memory_after_mb"] - report["memory_before_mb"]
    if kept > MAY_KEEP_MB:
        faults.append(f"{kept} MB of memory were kept")
    return faults


if __name__ == "__main__":
    main()
