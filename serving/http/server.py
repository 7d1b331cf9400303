"""The web server, and its shutdown: it ends the requests before the connections."""

import asyncio
import gc
import math
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

import uvicorn

from serving.generator import Generator
from serving.http.limits import MAX_CALLS, MAX_CALLS_EACH
from serving.http.timeouts import HEAD_WITHIN_S, PatientProtocol
from serving.requests.shares import Shares

# Far above the limits of `serving.http.limits.CallLimit`, which answers with an error.
# Connections over these limits are closed without an answer, health checks included.
MAX_CONNECTIONS = 2 * MAX_CALLS
MAX_CONNECTIONS_EACH = 2 * MAX_CALLS_EACH
# Seconds after the drawing in which pages fetch their pictures, and disconnected pages come back.
ANSWERS_ON_S = 5
# Seconds to send the last answers when every request has ended; idle connections end at once.
GOODBYE_S = 10


def config(app: Any, host: str, port: int, *, behind_proxy: bool = False) -> uvicorn.Config:
    """Return the settings of uvicorn for every application here.

    `behind_proxy`: whether all connections come from a trusted proxy, which then has no limit.
    """

    class Protocol(PatientProtocol):
        # One more than uvicorn's own limit, at which it answers with an error.
        counted = Shares(MAX_CONNECTIONS + 1, MAX_CONNECTIONS_EACH)
        addresses = None if behind_proxy else counted

    return uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        proxy_headers=False,  # `serving.http.addresses` knows how many proxies to trust
        server_header=False,
        http=Protocol,
        ws="none",
        limit_concurrency=MAX_CONNECTIONS,
        # Longer than clients keep idle connections: one that is closed just as a client uses it
        # again looks like a lost server.
        timeout_keep_alive=int(HEAD_WITHIN_S),
        timeout_graceful_shutdown=GOODBYE_S,
    )


class Server(uvicorn.Server):
    """Server that finishes its requests when it is told to stop.

    New requests are then refused, waiting ones end with an error, and running ones have
    `stop_within_s` seconds to finish. All other routes are answered until `answers_on_s` seconds
    after the last drawing. `end_streams` then ends the streams that belong to no request.
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
        """Open the generator before the first connection."""
        await self._generator.open()
        # Exclude the objects made at startup from collection: scanning them pauses every request.
        gc.collect()
        gc.freeze()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the requests before the connections; a second Ctrl+C ends the wait for them."""
        drawing = self._generator.load.running > 0
        if not await self._while_not_forced(self._generator.close(self._stop_within_s)):
            await self._generator.close(0)
        now = time.monotonic()
        deadline = (now if drawing else self._drew_at) + self._answers_on_s
        await self._while_not_forced(asyncio.sleep(max(0.0, deadline - now)))
        self._end_streams()
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Note the time while pictures are drawn; uvicorn calls this ten times a second."""
        if self._generator.load.running:
            self._drew_at = time.monotonic()
        return await super().on_tick(counter)

    async def _while_not_forced(self, work: Coroutine[Any, Any, None]) -> bool:
        """Return whether `work` is done; a second Ctrl+C cancels it."""
        task = asyncio.create_task(work)
        while not task.done() and not self.force_exit:
            await asyncio.wait([task], timeout=0.1)
        is_done = task.done()
        task.cancel()
        return is_done
