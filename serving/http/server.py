"""The web server, and how it ends: requests first, connections then."""

import asyncio
import gc
import math
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

import uvicorn

from serving.generator import Generator
from serving.http.middleware import HEAD_WITHIN_S, MAX_CALLS, MAX_CALLS_EACH, PatientProtocol
from serving.requests.shares import Shares

# Far above the limit of `serving.http.middleware.CallLimit`, which answers politely. Connections
# past this one are closed without an answer, health checks included.
MAX_CONNECTIONS = 2 * MAX_CALLS
MAX_CONNECTIONS_EACH = 2 * MAX_CALLS_EACH
# Pages fetch their pictures, and those that lost touch come back, when the drawing is done.
ANSWERS_ON_S = 5
# For what is still being sent when every request has ended; idle connections end at once.
GOODBYE_S = 10


def config(app: Any, host: str, port: int, *, behind_proxy: bool = False) -> uvicorn.Config:
    """Return how every application is served here.

    `behind_proxy`: all connections come from a trusted proxy, which may open as many as it needs.
    """

    class Protocol(PatientProtocol):
        # One more than uvicorn allows: it answers politely.
        counted = Shares(MAX_CONNECTIONS + 1, MAX_CONNECTIONS_EACH)
        addresses = None if behind_proxy else counted

    return uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        proxy_headers=False,  # `serving.http.middleware` knows how many proxies to trust
        server_header=False,
        http=Protocol,
        ws="none",
        limit_concurrency=MAX_CONNECTIONS,
        # Longer than clients keep theirs: closed while it is used it looks like a lost server.
        timeout_keep_alive=int(HEAD_WITHIN_S),
        timeout_graceful_shutdown=GOODBYE_S,
    )


class Server(uvicorn.Server):
    """Serves until it is told to stop.

    Then no new request is taken in, what waits is told so, and what runs has `stop_within_s`
    seconds to finish. Meanwhile everything but drawing is still answered, as it is until
    `answers_on_s` seconds after the last drawing. `end_streams` then ends what is open without a
    request.
    """

    def __init__(
        self,
        app: Any,
        generator: Generator,
        host: str,
        port: int,
        stop_within_s: float,
        end_streams: Callable[[], None] = lambda: None,
        answers_on_s: float = 0,
        *,
        behind_proxy: bool = False,
    ) -> None:
        super().__init__(config(app, host, port, behind_proxy=behind_proxy))
        self._generator = generator
        self._stop_within_s = stop_within_s
        self._end_streams = end_streams
        self._answers_on_s = answers_on_s
        self._drew_at = -math.inf

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Opens the generator before the first connection."""
        await self._generator.open()
        # Looking for garbage among all that was made for good would stop everybody for a moment.
        gc.collect()
        gc.freeze()
        gc.enable()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the requests before the connections; a second Ctrl+C ends the wait for them."""
        drawing = self._generator.load.running > 0
        if not await self._while_not_forced(self._generator.close(self._stop_within_s)):
            await self._generator.close(0)
        now = time.monotonic()
        until = (now if drawing else self._drew_at) + self._answers_on_s
        await self._while_not_forced(asyncio.sleep(max(0.0, until - now)))
        self._end_streams()
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if self._generator.load.running:
            self._drew_at = time.monotonic()
        return await super().on_tick(counter)

    async def _while_not_forced(self, work: Coroutine[Any, Any, None]) -> bool:
        """Whether it is done: it is cut short at a second Ctrl+C."""
        doing = asyncio.create_task(work)
        while not doing.done() and not self.force_exit:
            await asyncio.wait([doing], timeout=0.1)
        done = doing.done()
        doing.cancel()
        return done
