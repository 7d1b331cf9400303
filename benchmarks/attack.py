"""`python -m benchmarks.attack`: how much one address can harm a server and its other visitors.

The server draws with the bundled miniature, in a separate process. An attacker at 127.0.0.2 sends
each kind of request in `ATTACKS`, as fast as it is answered, for the given minutes in total. During
each attack a visitor at 127.0.0.1 keeps asking for pictures, and for the model's description.
Afterwards the server's memory is compared with that before. Then each attack is repeated for a few
seconds, and the server is told to stop in the middle of it. Writes
`benchmarks/results/<date>-attack.json`; ends with status 1 if a limit below was exceeded.
"""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from benchmarks import record
from benchmarks.attacks import ATTACKER, ATTACKS, PICTURE, Attack, program
from benchmarks.processes import Instance

DRAWN_WITHIN_S = 5.0  # the visitor's picture
DESCRIBED_WITHIN_S = 2.0  # the model, by /v1/model
STOPS_WITHIN_S = 10.0  # after SIGTERM
MAY_KEEP_MB = 50.0


def attack(url: str, method: Attack, seconds: float) -> Counter[int]:
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
                answers[await method(client, functions)] += 1
            except (httpx.HTTPError, OSError):
                answers[-1] += 1
                await asyncio.sleep(0.05)

    async def begin() -> None:
        limits = httpx.Limits(max_connections=None)
        transport = httpx.AsyncHTTPTransport(local_address=ATTACKER, limits=limits)
        async with httpx.AsyncClient(transport=transport, base_url=url, timeout=30) as client:
            await asyncio.gather(*(go_on(client) for _ in range(ATTACKS[method])))

    asyncio.run(begin())
    return answers


def attacked(
    attackers: ProcessPoolExecutor, url: str, method: Attack, seconds: float
) -> dict[str, Any]:
    """Attack from another process, and draw as a visitor meanwhile.

    Returns:
        The attacker's answers by status, and the most seconds that the visitor waited.
    """
    future = attackers.submit(attack, url, method, seconds)
    waits = list(visits(url, future))
    return {
        "answers": {str(status): count for status, count in sorted(future.result().items())},
        "visitor_waited_s": round(max(drawn_s for drawn_s, _ in waits), 2),
        "model_took_s": round(max(described_s for _, described_s in waits), 2),
    }


def visits(url: str, future: Future[Any]) -> Iterator[tuple[float, float]]:
    """Draw through the API and through the page's route in turns, and ask for the model.

    Yields:
        The seconds of both.
    """
    with httpx.Client(base_url=url, timeout=60) as client:
        for draw in itertools.cycle((_draw_by_api, _draw_by_page)):
            if future.done():
                return
            began = time.monotonic()
            draw(client)
            drawn_at = time.monotonic()
            client.get("/v1/model").raise_for_status()
            yield drawn_at - began, time.monotonic() - drawn_at
            time.sleep(0.5)


def _draw_by_api(client: httpx.Client) -> None:
    answer = client.post("/v1/generate", json={"prompt": "a star", **PICTURE})
    assert answer.status_code == 200, answer.text
    assert "event: done" in answer.text


def _draw_by_page(client: httpx.Client) -> None:
    """Draw through Gradio's queue, in which every waiting page takes a slot."""
    fields = {"prompt": "a star", "steps": 4, "seed": 7}
    call = client.post("/gradio_api/call/v2/generate", json=fields)
    assert call.status_code == 200, call.text
    answer = client.get(f"/gradio_api/call/v2/generate/{call.json()['event_id']}")
    assert "event: complete" in answer.text, answer.text


def functions_of(url: str) -> dict[str, int]:
    """Return the `fn_index` of each function of the page, by its API name."""
    config = httpx.get(f"{url}/config", timeout=60).json()
    return {function["api_name"]: function["id"] for function in config["dependencies"]}


def run(instance: Instance, seconds: float) -> dict[str, Any]:
    """Run every attack, for `seconds` in total, and report its effect."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as attackers:
        seconds_each = seconds / len(ATTACKS)
        for method in ATTACKS:  # a warm-up: caches that are filled once are not a leak
            attacked(attackers, instance.url, method, min(2.0, seconds_each))
        before = instance.usage().memory_mb
        report: dict[str, Any] = {"memory_before_mb": round(before)}
        for method in ATTACKS:
            effect = attacked(attackers, instance.url, method, seconds_each)
            report[method.__name__] = effect | {"memory_mb": round(instance.usage().memory_mb)}
            print(method.__name__, report[method.__name__], flush=True)
    report["memory_after_mb"] = round(instance.usage().memory_mb)
    return report


def stops(instance: Instance, method: Attack) -> float:
    """Start a server, and return the seconds that it takes to stop during an attack."""
    instance.start()
    instance.wait_until_ready()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as attackers:
        future = attackers.submit(attack, instance.url, method, 4.0)
        time.sleep(3.0)
        began = time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            instance.stop(60)
        took_s = time.monotonic() - began
        future.result()
    return round(took_s, 2)


def main() -> None:
    """Run the attacks, record them, and fail if a limit was exceeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        instance = Instance(program(Path(folder)), Path(folder) / "log")
        instance.start()
        try:
            instance.wait_until_ready()
            report = run(instance, 60 * options.minutes)
        finally:
            instance.stop()
        for method in ATTACKS:
            report[method.__name__]["stopped_s"] = stops(instance, method)
    record.write("attack", report)
    sys.exit(json.dumps(faults) if (faults := found_wrong(report)) else 0)


def found_wrong(report: dict[str, Any], patience: float = 1.0) -> list[str]:
    """Return a sentence for each limit that was exceeded; `patience` multiplies those of times."""
    limits = {
        "visitor_waited_s": (DRAWN_WITHIN_S, "a visitor's picture took"),
        "model_took_s": (DESCRIBED_WITHIN_S, "/v1/model took"),
        "stopped_s": (STOPS_WITHIN_S, "the server's end took"),
    }
    faults = [
        f"during {name} {phrase} {effect[key]} s"
        for name, effect in report.items()
        for key, (limit, phrase) in limits.items()
        if isinstance(effect, dict) and effect.get(key, 0) > patience * limit
    ]
    kept_mb = report["memory_after_mb"] - report["memory_before_mb"]
    if kept_mb > MAY_KEEP_MB:
        faults.append(f"{kept_mb} MB of memory were kept")
    return faults


if __name__ == "__main__":
    main()
