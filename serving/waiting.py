"""Startup of an instance that sends requests to others: it waits until one of them is ready."""

import asyncio
import logging
import signal
from collections.abc import Sequence
from types import FrameType

import httpx
import uvicorn
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from pipeline.facts import Facts
from serving.generator import ErrorKind, RequestError
from serving.generators.client import BackendError, fetch_model
from serving.http import errors, server
from serving.http.events import HOP_HEADER
from serving.messages import Code, Message

log = logging.getLogger(__name__)

_POLL_S = 1.0
_REPEAT_S = 30.0


class _Server(uvicorn.Server):
    """Server that ends when it is told to; `wait_for_model` then ends the program.

    uvicorn's own server would raise the signal again, inside the event loop.
    """

    status = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop the server on a signal, and set the exit status of the program."""
        self.should_exit = True
        self.status = 130 if sig == signal.SIGINT else 0


async def wait_for_model(
    client: httpx.AsyncClient, urls: Sequence[str], at: uvicorn.Config
) -> Facts:
    """Return the model of the first instance that is ready; answer health checks meanwhile.

    Raises:
        LoopError: if an instance passes requests on itself, perhaps to this one.
        SystemExit: if the program is told to stop meanwhile.
    """
    waiting = _Server(at)
    serving = asyncio.create_task(waiting.serve())
    asking = asyncio.create_task(_first_model(client, urls))
    try:
        await asyncio.wait([serving, asking], return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            raise SystemExit(waiting.status)
        return asking.result()
    finally:
        asking.cancel()
        waiting.should_exit = True
        await serving


async def _first_model(client: httpx.AsyncClient, urls: Sequence[str]) -> Facts:
    """Ask the instances in turn until one is ready, and return its model."""
    log_times: dict[str, float] = {}
    while True:
        for url in urls:
            try:
                return (await fetch_model(client, url))[0]
            except BackendError as error:
                _log_seldom(log_times, f"Waiting for {url}: it {error}")
        await asyncio.sleep(_POLL_S)


def config(host: str, port: int) -> uvicorn.Config:
    """Return the settings of the server that answers during the wait."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        is_loop = HOP_HEADER in Headers(scope=scope)
        kind, code = (
            (ErrorKind.LOOP, Code.LOOP) if is_loop else (ErrorKind.UNAVAILABLE, Code.UNAVAILABLE)
        )
        refusal = errors.refusal(RequestError(Message(code), kind), scope)
        is_alive = scope["path"] == "/healthz"
        answer = JSONResponse({"status": "alive"}) if is_alive else refusal
        await answer(scope, receive, send)

    return server.config(app, host, port)


def _log_seldom(log_times: dict[str, float], message: str) -> None:
    """Log a message, at most every `_REPEAT_S` seconds."""
    now = asyncio.get_running_loop().time()
    if now - log_times.get(message, -_REPEAT_S) >= _REPEAT_S:
        log_times[message] = now
        log.info(message)
