"""Calls that are read beside the event loop: each address has a share of their threads."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from anyio import to_thread

from serving.http import bodies, events
from serving.http.a1111 import answers
from serving.requests.readers import MOST_READING_EACH
from tests.web import Site, serve, wait_until

LENGTH = {"prompt": "a red star"}
CALLS = [
    (events, "explain", "/v1/length", LENGTH),
    (answers, "png_info", "/sdapi/v1/png-info", {"image": "eA=="}),
    (bodies, "_from_json", "/v1/generate", {"prompt": "x" * 2**20}),
]


class Gate:
    """Holds the calls of a function until it is opened; counts those that began."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.began = 0
        self._function = function
        self._opened = threading.Event()

    def __call__(self, *args: Any) -> Any:
        self.began += 1
        assert self._opened.wait(60)
        return self._function(*args)

    def open(self) -> None:
        self._opened.set()


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Iterator[Gate]:
    gate = Gate(getattr(owner, name))
    monkeypatch.setattr(owner, name, gate)
    try:
        yield gate
    finally:
        gate.open()


def status(url: str, body: Any, address: str) -> int:
    headers = {"X-Forwarded-For": address}
    return httpx.post(url, json=body, headers=headers, timeout=60).status_code


@pytest.mark.parametrize(("owner", "name", "path", "body"), CALLS, ids=[call[1] for call in CALLS])
def test_an_address_has_a_share(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, path: str, body: Any
):
    with (
        serve(trusted_proxies=1, a1111="on") as site,
        ThreadPoolExecutor(MOST_READING_EACH + 2) as clients,
        held(monkeypatch, owner, name) as gate,
    ):
        calls = [
            clients.submit(status, site.url + path, body, "192.0.2.1")
            for _ in range(MOST_READING_EACH + 1)
        ]
        wait_until(lambda: any(call.done() for call in calls))
        other = clients.submit(status, site.url + path, body, "192.0.2.2")
        wait_until(lambda: gate.began)
        assert [call.result() for call in calls if call.done()] == [429]
        gate.open()
        assert sum(call.result() == 429 for call in calls) == 1
        assert other.result() != 429


def test_pictures_are_encoded_while_prompts_are_measured(monkeypatch: pytest.MonkeyPatch):
    with serve(trusted_proxies=1) as site, ThreadPoolExecutor(40) as clients:
        with held(monkeypatch, site.pipe, "measure") as gate:
            calls = [
                clients.submit(status, f"{site.url}/v1/length", LENGTH, f"192.0.2.{number}")
                for number in range(40)
            ]
            wait_until(lambda: gate.began)
            drawn = httpx.post(f"{site.url}/v1/generate", json={"prompt": "a", "seed": 7})
            assert "event: done" in drawn.text
            assert not any(call.done() for call in calls)
        assert {call.result() for call in calls} == {200}


@pytest.mark.lasting
def test_a_client_that_hangs_up_gives_its_place_back(monkeypatch: pytest.MonkeyPatch):
    with serve() as site, held(monkeypatch, site.pipe, "measure") as gate:
        for _ in range(2 * MOST_READING_EACH):
            assert hung_up(site)
        gate.open()
        assert httpx.post(f"{site.url}/v1/length", json=LENGTH).status_code == 200


def hung_up(site: Site) -> bool:
    """Hang up in the middle of a call; return whether it was not answered before."""
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{site.url}/v1/length", json=LENGTH, timeout=0.05)
    wait_until(lambda: not site.connections)
    return True


def test_no_answer_needs_a_thread_that_all_share():
    """The default threads are those of Gradio's functions, which strangers can fill."""

    async def take_all() -> None:
        limiter = to_thread.current_default_thread_limiter()
        for _ in range(int(limiter.total_tokens)):
            await limiter.acquire_on_behalf_of(object())

    with serve(a1111="on") as site:
        asyncio.run_coroutine_threadsafe(take_all(), site.loop).result(60)
        drawing = {"prompt": "a", "num_inference_steps": 1, "id": "x" * 16, "keep": True}
        assert "event: done" in httpx.post(f"{site.url}/v1/generate", json=drawing).text
        assert "event: done" in httpx.get(f"{site.url}/v1/requests/{'x' * 16}").text
        for path, answer in (("/v1/generate", 400), ("/v1/nothing", 404), ("/sdapi/v1/x", 404)):
            assert httpx.post(site.url + path, json={}).status_code == answer
