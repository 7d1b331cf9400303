"""Calls of the HTTP APIs."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
from mcp import ClientSession, types
from mcp.client.streamable_http import streamable_http_client

from serving.http.limits import MCP_PATH as PATH
from tests.web import Site

BODY = {"prompt": "a red star", "seed": 7}
Event = tuple[str, dict[str, Any]]


def read(response: httpx.Response) -> Iterator[Event]:
    """Yield the events of a stream."""
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def generate(site: Site, **changes: Any) -> list[Event]:
    with httpx.stream("POST", f"{site.url}/v1/generate", json=BODY | changes, timeout=30) as sent:
        assert sent.status_code == 200, sent.read()
        return list(read(sent))


class Background:
    """A request made in a thread beside the test."""

    def __init__(self, site: Site, **changes: Any) -> None:
        self.events: list[Event] = []
        self._thread = threading.Thread(target=self._run, args=(site, changes))
        self._thread.start()

    def _run(self, site: Site, changes: dict[str, Any]) -> None:
        self.events.extend(generate(site, **changes))

    def finished(self) -> list[Event]:
        self._thread.join(60)
        return self.events


def post(site: Site, body: Any, path: str = "/v1/generate", **others: Any) -> httpx.Response:
    return httpx.post(site.url + path, json=body, timeout=30, **others)


def metric(site: Site, name: str) -> float:
    lines = httpx.get(f"{site.url}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


T = TypeVar("T")


@asynccontextmanager
async def connected(site: Site) -> AsyncIterator[ClientSession]:
    async with (
        streamable_http_client(site.url + PATH) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        yield session


def ask(site: Site, work: Callable[[ClientSession], Awaitable[T]]) -> T:
    async def run() -> T:
        async with connected(site) as session:
            return await work(session)

    return asyncio.run(run())


def call(site: Site, **arguments: Any) -> types.CallToolResult:
    return ask(site, lambda session: session.call_tool("generate", arguments))
