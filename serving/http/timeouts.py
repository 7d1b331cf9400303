"""Time limits for slow clients: of a request's headers and body, and of reading an answer."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from serving.http.addresses import network_of
from serving.requests.shares import Shares

HEAD_WITHIN_S = 10.0
BODY_WITHIN_S = 20.0
# A client that reads fewer bytes of an answer in this time is cut off; it holds a connection.
TAKE_WITHIN_S = 60.0
TAKE_AT_LEAST = 2**16


class PatientProtocol(H11Protocol):
    """HTTP/1.1 protocol that closes the connections of slow clients.

    A client is too slow if the headers of its next request take longer than `HEAD_WITHIN_S`, or if
    it reads less than `TAKE_AT_LEAST` bytes of an answer in `TAKE_WITHIN_S`.

    Attributes:
        addresses: limits of open connections, in all and for each address. None means no limit, for
            use behind a proxy, whose address all connections have.
    """

    addresses: Shares | None = None
    _counted = ""  # the address that this connection is counted for
    _timer: asyncio.TimerHandle | None = None  # for the next request's headers
    _watch: asyncio.TimerHandle | None = None  # for the client to read what is buffered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, and start the timer for the first request."""
        super().connection_made(transport)
        if self.addresses is not None:
            address = network_of(str(transport.get_extra_info("peername", ("",))[0]))
            if not self.addresses.take(address):
                self.transport.abort()
                return
            self._counted = address
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Stop the timer when the headers of a request are complete."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete and self._timer:
            self._timer.cancel()

    def on_response_complete(self) -> None:
        """Start the timer for the next request, unless that came early and has begun."""
        super().on_response_complete()
        if self.cycle.response_complete:
            self._wait()

    def pause_writing(self) -> None:
        """Start to watch whether the client reads what it is sent."""
        super().pause_writing()
        self._check_later()

    def resume_writing(self) -> None:
        """Stop watching the client, unless the connection is closing."""
        super().resume_writing()
        if self._watch and not self.transport.is_closing():
            self._watch.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers, and stop counting the connection."""
        for timer in filter(None, (self._timer, self._watch)):
            timer.cancel()
        if self.addresses is not None and self._counted:
            self.addresses.give_back(self._counted)
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self.loop.call_later(HEAD_WITHIN_S, self._close)

    def _close(self) -> None:
        self.transport.close()  # after the buffer is sent
        self._check_later()

    def _check_later(self) -> None:
        if self._watch:
            self._watch.cancel()
        if unsent := self.transport.get_write_buffer_size():
            self._watch = self.loop.call_later(TAKE_WITHIN_S, self._check, unsent)

    def _check(self, before: int) -> None:
        """Close the connection unless the client read `TAKE_AT_LEAST` bytes, or the whole buffer.

        `before`: bytes that were buffered at the last check.
        """
        if self.transport.get_write_buffer_size() > max(0, before - TAKE_AT_LEAST):
            self.transport.abort()
        else:
            self._check_later()


class PatientBodies:
    """Middleware that aborts a request whose body takes too long."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; the time limit ends when its body is complete."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        complete = False
        deadline = asyncio.get_running_loop().time() + BODY_WITHIN_S

        async def receive_in_time() -> Message:
            nonlocal complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                return {"type": "http.disconnect"}
            complete = not message.get("more_body", False)
            return message

        await self._app(scope, receive_in_time, send)
