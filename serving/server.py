"""The web server, and how it ends: requests first, connections then."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from serving.generator import Generator
from serving.http_guard import HEAD_WITHIN_S, PatientProtocol

_MAX_CONNECTIONS = 1000
# For connections that are still open when every request has ended.
_GOODBYE_S = 2


def config(app: Any, host: str, port: int) -> uvicorn.Config:
    """How every application is served here."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        proxy_headers=False,  # `serving.http_guard` knows how many proxies to trust
        server_header=False,
        http=PatientProtocol,
        ws="none",
        limit_concurrency=_MAX_CONNECTIONS,
        # Longer than clients keep theirs: closed while it is used it looks like a lost server.
        timeout_keep_alive=int(HEAD_WITHIN_S),
        timeout_graceful_shutdown=_GOODBYE_S,
    )


class Server(uvicorn.Server):
    """Serves until it is told to stop.

    Then no new request is taken in, what waits is told so, and what runs has `stop_within_s`
    seconds to finish. Meanwhile everything but drawing is still answered. `end_streams` then ends
    what is open without a request.
    """

    def __init__(
        self,
        app: Any,
        generator: Generator,
        host: str,
        port: int,
        stop_within_s: float,
        end_streams: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config(app, host, port))
        self._generator = generator
        self._stop_within_s = stop_within_s
        self._end_streams = end_streams

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Opens the generator before the first connection."""
        await self._generator.open()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the requests before the connections; a second Ctrl+C ends the wait for them."""
        closing = asyncio.create_task(self._generator.close(self._stop_within_s))
        while not closing.done() and not self.force_exit:
            await asyncio.wait([closing], timeout=0.1)
        self._end_streams()
        await super().shutdown(sockets)
