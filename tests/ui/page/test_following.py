"""The progress of a request, as a page follows it."""

import asyncio
import gc
import json
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from serving.generator import (
    Done,
    ErrorKind,
    Event,
    Pause,
    Preview,
    Queued,
    RequestError,
    Started,
    Step,
)
from serving.http import app as http_app
from serving.http.limits import MOST_FOLLOWERS
from serving.messages import untranslated
from serving.metrics import Observer
from tests.generators import request
from tests.web import serve, wait_until
from ui import i18n
from ui.page import following

ID = "a-request-of-a-page"


class StandIn:
    """A generator with one request, whose events are known."""

    def __init__(self, *events: Event, refusal: RequestError | None = None) -> None:
        self._events = events
        self._refusal = refusal
        self.taken_up: list[str] = []
        self.left = False

    async def take_up(self, request_id: str) -> None:
        if self._refusal:
            raise self._refusal
        self.taken_up.append(request_id)

    async def events(self, request_id: str, pause_s: float | None = None) -> AsyncGenerator[Event]:
        try:
            for event in self._events:
                yield event
            while not self._events or not isinstance(self._events[-1], Done):
                await asyncio.sleep(0)
                yield Pause()
        finally:
            self.left = True


def followed(stand_in: Any, language: str = "en") -> list[dict[str, Any]]:
    async def collect() -> list[dict[str, Any]]:
        return [message async for message in following._progress(stand_in, ID, language)]

    return asyncio.run(collect())


def texts(messages: Sequence[dict[str, Any]]) -> list[str]:
    lines = [message["line"] for message in messages if "line" in message]
    assert {line["kind"] for line in lines} == {"running"}
    return [line["text"] for line in lines]


def test_steps_are_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(following, "BAR_SECONDS", 0.0)
    stand_in = StandIn(Started(), *(Step(step, 3) for step in (1, 2, 3)), Done())
    *messages, last = followed(stand_in)
    said = texts(messages)
    assert said[0] == i18n.text("starting", attempt=1)
    assert [re.findall(r"Step (\d) of 3", text) for text in said[1:]] == [["1"], ["2"], ["3"]]
    assert last == {"ended": True}
    assert stand_in.taken_up == [ID]
    assert stand_in.left


def test_the_bar_is_not_updated_too_often(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(following, "BAR_SECONDS", 60.0)
    messages = followed(StandIn(*(Step(step, 50) for step in range(1, 51)), Done()))
    assert len(texts(messages)) == 1


def test_queue_position_and_wait_are_shown():
    waits = (Queued(3, 95.0), Queued(2, 12.4), Queued(1, None), Started(1), Started(2))
    said = texts(followed(StandIn(*waits, Done())))
    expected = (
        "Number 3 in the queue, about 2 min",
        "Number 2 in the queue, about 12 s",
        "Next in the queue",
        i18n.text("starting", attempt=1),
        "Trying again, attempt 2",
    )
    assert [text.startswith(start) for text, start in zip(said, expected, strict=True)] == [
        True
    ] * 5


def test_the_pictures_so_far_are_shown():
    previews, last = followed(StandIn(Preview((b"look 0", b"look 1")), Done()))
    assert re.findall('base64,([^"]+)', previews["previews"]) == ["bG9vayAw", "bG9vayAx"]
    assert f'aria-label="{i18n.PREVIEWS}"' in previews["previews"]
    assert last == {"ended": True}


def test_texts_are_in_the_language_of_the_page():
    with i18n.speaking("de"):
        expected = i18n.text("starting", attempt=1)
    assert texts(followed(StandIn(Started(), Done()), "de")) == [expected]


@pytest.mark.parametrize("kind", [ErrorKind.UNKNOWN, ErrorKind.FULL])
def test_a_request_that_cannot_be_followed_has_ended(kind: ErrorKind):
    stand_in = StandIn(refusal=RequestError(untranslated("no"), kind))
    assert followed(stand_in) == [{"ended": True}]


def test_a_silent_request_sends_its_line_again_and_is_left():
    stand_in: Any = StandIn(Queued(1, None))

    async def leave() -> list[dict[str, Any]]:
        progress = following._progress(stand_in, ID, "en")
        messages = [await anext(progress) for _ in range(3)]
        await asyncio.wait_for(progress.aclose(), 30)
        return messages

    line, *pauses = asyncio.run(leave())
    assert "line" in line
    assert pauses == [line, line]
    assert stand_in.left


def test_the_route_sends_events():
    app, stand_in = FastAPI(), StandIn(Started(), Done())
    following.connect(app, stand_in)  # type: ignore[arg-type]
    with TestClient(app) as client:
        answer = client.get(f"/following/{ID}", headers={"Accept-Language": "de"})
        assert client.get("/following/odd").status_code == 422
    assert answer.headers["content-type"].startswith("text/event-stream")
    first, last = [
        json.loads(text.removeprefix("data: ")) for text in answer.text.split("\n\n")[:2]
    ]
    with i18n.speaking("de"):
        assert i18n.text("starting", attempt=1) in first["line"]["text"]
    assert last == {"ended": True}


def test_few_of_an_address_follow_a_request_and_leave_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    build = http_app.build

    def with_page(generator: Any, observer: Observer) -> FastAPI:
        app = build(generator, observer)
        following.connect(app, generator)
        return app

    monkeypatch.setattr(http_app, "build", with_page)
    with serve(held=True) as site, ExitStack() as followers:
        generator = site.server._generator
        submitting = generator.submit(request(id=ID, keep=True))
        asyncio.run_coroutine_threadsafe(submitting, site.loop).result(60)
        for path in (f"/v1/requests/{ID}", f"/following/{ID}") * (MOST_FOLLOWERS // 2):
            answer = followers.enter_context(httpx.stream("GET", site.url + path))
            assert answer.status_code == 200
        refused = httpx.get(f"{site.url}/following/{ID}")
        assert (refused.status_code, "Retry-After" in refused.headers) == (429, True)
        assert refused.json()["error"]["message_code"] == "too_many_connections"
        followers.close()
        record = generator._registry.find(ID)  # type: ignore[attr-defined]
        wait_until(lambda: not record.followers)
        site.loop.call_soon_threadsafe(gc.collect)
        with httpx.stream("GET", f"{site.url}/following/{ID}") as again:
            assert again.status_code == 200
    assert "never retrieved" not in caplog.text
