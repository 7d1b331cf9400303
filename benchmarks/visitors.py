"""Visitors that ask for pictures over HTTP: they wait, stop their requests, or leave."""

import base64
import hashlib
import json
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx

# A stream must send something at least every 15 s, if only a keep-alive.
PATIENCE = httpx.Timeout(60.0)
MARKS = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class Moment(NamedTuple):
    """The event called `name` that comes after `before` events of the same name."""

    name: str
    before: int = 0


@dataclass
class Visit:
    """The result of one request.

    Attributes:
        outcome: "done", "left", "broken" (the connection closed without a final event), the kind of
            the error that ended it, or "refused: " and the code of a refusal.
        first_event_s, started_s, done_s: seconds from when the request was due.
        pictures_s: the same for each picture, in the order in which they came.
        recovery_s: for each failed attempt, seconds from its last event to the start of the next.
        pictures: by index, a digest of each file.
        duplicates: pictures that came again, and events after the final one.
        retry_after_s: the seconds after which a refusal allows another attempt.
        changed_at: the name of the event at which the visitor stopped the request or left.
        drawn: the share of the steps that the visitor had received by then.
        stopped_s: seconds from the last event that showed nothing drawn until the server confirmed
            the stop; None if the request was not stopped, or the server did not confirm it.
    """

    outcome: str = "broken"
    first_event_s: float | None = None
    started_s: float | None = None
    done_s: float | None = None
    pictures_s: list[float] = field(default_factory=list)
    recovery_s: list[float] = field(default_factory=list)
    pictures: dict[int, str] = field(default_factory=dict)
    duplicates: int = 0
    retry_after_s: float = 0.0
    changed_at: str = ""
    drawn: float = 0.0
    stopped_s: float | None = None


def many_connections() -> httpx.AsyncClient:
    """Return a client without a limit of connections."""
    return httpx.AsyncClient(limits=httpx.Limits(max_connections=None))


async def visit(
    client: httpx.AsyncClient,
    url: str,
    body: dict[str, Any],
    *,
    due_at: float | None = None,
    cancel_at: Moment | None = None,
    leave_at: Moment | None = None,
) -> Visit:
    """Make a request and follow its events.

    Args:
        client: the client with the connections.
        url: the instance's address.
        body: the request's body.
        due_at: when it should have been sent, by `time.monotonic()`; None means now.
        cancel_at: the event at which the visitor stops the request.
        leave_at: the event at which the visitor closes the connection.
    """
    result = Visit()
    due_at = time.monotonic() if due_at is None else due_at
    with suppress(httpx.HTTPError):
        async with client.stream(
            "POST", f"{url}/v1/generate", json=body, timeout=PATIENCE
        ) as answer:
            if answer.status_code != 200:
                error = json.loads(await answer.aread())["error"]
                result.outcome = f"refused: {error['code']}"
                result.retry_after_s = float(answer.headers.get("Retry-After", 1))
                return result
            await _follow(result, client, url, answer, due_at, cancel_at, leave_at)
    return result


async def _follow(
    result: Visit,
    client: httpx.AsyncClient,
    url: str,
    answer: httpx.Response,
    due_at: float,
    cancel_at: Moment | None,
    leave_at: Moment | None,
) -> None:
    name, last_at, undrawn_at, share = "", due_at, due_at, 0.0
    counts: Counter[str] = Counter()
    async for line in answer.aiter_lines():
        key, _, value = line.partition(": ")
        if key == "event":
            name = value
        if key != "data":
            continue
        now, event = time.monotonic(), json.loads(value)
        _heard(result, name, event, now - due_at, now - last_at)
        last_at = now
        if name in ("queued", "started"):
            undrawn_at, share = now, 0.0
        elif name == "step":
            share = event["done"] / event["total"]
        moment = Moment(name, counts[name])
        counts[name] += 1
        if moment in (cancel_at, leave_at):
            result.changed_at, result.drawn = name, share
        if moment == cancel_at:
            address = url + answer.headers["Content-Location"]
            (await client.delete(address, timeout=PATIENCE)).raise_for_status()
            result.stopped_s = time.monotonic() - undrawn_at
        if moment == leave_at and result.outcome == "broken":
            result.outcome = "left"
            return


def _heard(result: Visit, name: str, event: dict[str, Any], at_s: float, pause_s: float) -> None:
    if result.first_event_s is None:
        result.first_event_s = at_s
    if result.outcome != "broken":
        result.duplicates += 1  # an event follows the final one
    elif name == "started":
        result.started_s = result.started_s or at_s
        if event["attempt"] > 1:
            result.recovery_s.append(pause_s)
    elif name == "image":
        result.pictures_s.append(at_s)
        result.duplicates += event["index"] in result.pictures
        png = base64.b64decode(event["png"])
        result.pictures[event["index"]] = hashlib.sha256(png).hexdigest()
    elif name == "done":
        result.outcome, result.done_s = "done", at_s
    elif name == "error":
        result.outcome = event["kind"]


async def page_request(client: httpx.AsyncClient, url: str) -> str:
    """Make a request through the page's own API.

    Returns:
        How it ended: "complete", "error" or "broken".
    """
    values = {"prompt": "a red star", "steps": 2, "seed": 7}
    route = f"{url}/gradio_api/call/v2/generate"
    try:
        call = await client.post(route, json=values, timeout=PATIENCE)
        stream = await client.get(f"{route}/{call.json()['event_id']}", timeout=PATIENCE)
    except httpx.HTTPError:
        return "broken"
    names = [line for line in stream.text.splitlines() if line.startswith("event: ")]
    return names[-1].removeprefix("event: ")


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Return the percentiles in `MARKS` of some seconds, as milliseconds."""
    ordered = sorted(seconds)
    return {
        name: round(1000 * ordered[min(len(ordered) - 1, int(mark * len(ordered)))], 1)
        for name, mark in MARKS.items()
        if ordered
    }
