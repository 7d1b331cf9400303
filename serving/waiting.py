"""What an instance that has others draw does until the first of them is ready."""

import asyncio
import logging
from collections.abc import Sequence

import httpx
import uvicorn
from fastapi import FastAPI, Request

from serving import http_errors, server, words
from serving.generator import ErrorKind, Model, RequestError
from serving.http_generate import HOP_HEADER
from serving.remote import BackendError, fetch_model

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_SAY_S = 30.0


async def wait_for_model(
    client: httpx.AsyncClient, urls: Sequence[str], at: uvicorn.Config
) -> Model:
    """The model of the first instance that is ready; health is answered meanwhile.

    Raises:
        LoopError: an instance passes requests on itself, perhaps to this one.
        SystemExit: told to stop meanwhile.
    """
    waiting = uvicorn.Server(at)
    serving = asyncio.create_task(waiting.serve())
    said: dict[str, float] = {}
    try:
        while not serving.done():
            for url in urls:
                try:
                    return (await fetch_model(client, url))[0]
                except BackendError as error:
                    _say(said, f"Waiting for {url}: it {error}")
            await asyncio.wait([serving], timeout=_LOOK_S)
        raise SystemExit(0)
    finally:
        waiting.should_exit = True
        await serving


def config(host: str, port: int) -> uvicorn.Config:
    """The server of an instance that waits."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    http_errors.install(app)

    @app.get("/healthz")
    async def alive() -> dict[str, str]:
        return {"status": "alive"}

    @app.api_route("/{path:path}", methods=["GET", "POST", "DELETE"])
    async def later(path: str, request: Request) -> None:
        if HOP_HEADER in request.headers:
            raise RequestError(words.LOOP, ErrorKind.LOOP)
        raise RequestError(words.UNAVAILABLE, ErrorKind.UNAVAILABLE)

    return server.config(app, host, port)


def _say(said: dict[str, float], message: str) -> None:
    """Logs a message, but not again and again."""
    now = asyncio.get_running_loop().time()
    if now - said.get(message, -_SAY_S) >= _SAY_S:
        said[message] = now
        log.info(message)
