"""The progress of a request, as a page follows it by the request's id.

A page whose connection breaks follows the request again; the browser's part is in
`gradio_compat/network.js`. What the request has come to at its end, `ui.page.generation` shows.
"""

import math
import time
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing, suppress
from typing import Annotated, Any, TypeAlias

from fastapi import Depends, FastAPI, Path
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.requests import Request

from serving.generator import Event, Generator, Pause, Preview, Queued, RequestError, Started, Step
from serving.http import limits, schemas
from serving.requests.eta import TimeLeft
from ui import i18n, status

# Shortest time between two updates of the bar. With more, the browser would lag behind a stop.
BAR_SECONDS = 0.1
# A page takes the connection for lost when nothing comes: say something after such a pause.
PAUSE_SECONDS = 5.0

Messages: TypeAlias = AsyncGenerator[dict[str, Any]]


def connect(app: FastAPI, generator: Generator) -> None:
    """Add the route that sends the progress of a request until it has ended."""

    # FastAPI does not close the generator of a route whose client leaves, but the dependencies.
    async def progress(
        request_id: Annotated[str, Path(pattern=schemas.ID)], sender: Request
    ) -> AsyncGenerator[Messages]:
        language = i18n.preferred(sender.headers.get("accept-language", ""))
        with limits.follower(sender, request_id):
            async with aclosing(_progress(generator, request_id, language)) as messages:
                yield messages

    @app.get("/following/{request_id}", response_class=EventSourceResponse, include_in_schema=False)
    async def follow(
        messages: Annotated[Messages, Depends(progress)],
    ) -> AsyncIterable[ServerSentEvent]:
        async for message in messages:
            yield ServerSentEvent(data=message)


async def _progress(generator: Generator, request_id: str, language: str) -> Messages:
    """Yield the new status lines and previews, and then that the request has ended."""
    time_left, moved_at = TimeLeft(), -math.inf  # the first step is shown at once
    line: dict[str, Any] = {}  # the newest one, sent or held back
    with suppress(RequestError):  # the page is told when it asks what the request has come to
        await generator.take_up(request_id)
        async with aclosing(generator.events(request_id, PAUSE_SECONDS)) as events:
            async for event in events:
                with i18n.speaking(language):
                    message = _message(event, time_left)
                if "line" in message:
                    line = message
                if isinstance(event, Step):
                    if time.monotonic() - moved_at < BAR_SECONDS:
                        continue
                    moved_at = time.monotonic()
                if isinstance(event, Pause):
                    yield line
                elif message:
                    yield message
    yield {"ended": True}


def _message(event: Event, time_left: TimeLeft) -> dict[str, Any]:
    match event:
        case Queued(position, wait_s):
            return {"line": status.busy(i18n.text("waiting", position=position, left_s=wait_s))}
        case Started(attempt):
            return {"line": status.busy(i18n.text("starting", attempt=attempt))}
        case Step(done, total):
            return {"line": status.progress(done, total, time_left.after(done, total))}
        case Preview(jpegs):
            return {"previews": status.previews(jpegs)}
        case _:
            return {}
