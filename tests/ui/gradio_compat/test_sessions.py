"""Sessions of opened pages are forgotten when they are no longer used."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from tests.pages import StandIn
from tests.ui.gradio_compat.mounted import mounted_in
from ui.gradio_compat import sessions
from ui.gradio_compat.sessions import Sessions
from ui.mount import mount
from ui.pictures import files


def test_unused_pages_are_forgotten():
    with gr.Blocks() as page:
        pictures = gr.State([])
    holder = Sessions(page.queue())
    for name in ("left", "used"):
        holder[name][pictures._id] = [name]
    holder.time_last_used["left"] = datetime.now() - timedelta(hours=2)

    async def forget() -> None:
        forgetting = asyncio.create_task(sessions.forget_unused(holder, 3600, 0.01))
        while "left" in holder:
            await asyncio.sleep(0.01)
        forgetting.cancel()

    asyncio.run(asyncio.wait_for(forget(), 60))
    assert list(holder.time_last_used) == ["used"]
    assert holder["used"][pictures._id] == ["used"]
    assert holder["left"][pictures._id] == []  # a new session


def test_an_empty_queue_costs_little(monkeypatch: pytest.MonkeyPatch):
    with gr.Blocks() as page:
        Sessions(page.queue())
    waits = []

    async def note(seconds: float) -> None:
        waits.append(seconds)
        page._queue.close()

    monkeypatch.setattr(asyncio, "sleep", note)
    asyncio.run(page._queue.start_processing())
    assert waits == [0.02]


async def often(tidy: Callable[..., Awaitable[None]], *given: Any) -> None:
    *others, every_s = given
    await tidy(*others, every_s / 1000)


@pytest.mark.lasting
def test_an_application_keeps_a_bounded_number_of_pages_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(sessions, "MOST", 3)
    # Expired files and sessions are removed a thousand times as often as usual.
    for where, name in ((files, "remove_old"), (sessions, "forget_unused")):
        tidy = partial(often, getattr(where, name))
        monkeypatch.setattr(where, name, tidy)
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    app = FastAPI()
    mount(app, StandIn(), "127.0.0.1", 0, keep_files_s=600)
    mounted = mounted_in(app)
    holder = mounted.state_holder
    with TestClient(app) as client:
        for _ in range(5):
            asked = {"prompt": "a red star", "seed": 7}
            call = client.post("/gradio_api/call/v2/generate", json=asked)
            event = call.json()["event_id"]
            assert "event: complete" in client.get(f"/gradio_api/call/v2/generate/{event}").text
        assert len(holder.session_data) == len(holder.time_last_used) == 3
        assert len(list(tmp_path.iterdir())) == 5  # folders with the pictures of each call
        for folder in tmp_path.iterdir():
            os.utime(folder, (0, 0))
        for session in list(holder.time_last_used):
            holder.time_last_used[session] -= timedelta(hours=1)
        deadline = datetime.now() + timedelta(seconds=60)
        while (holder.session_data or any(tmp_path.iterdir())) and datetime.now() < deadline:
            client.get("/healthz")
        assert not any(tmp_path.iterdir())
        assert not holder.session_data
        assert not holder.time_last_used
