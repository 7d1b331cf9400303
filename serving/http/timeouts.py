"""Limits for slow and laborious clients, of heads of requests and of reading an answer."""

import asyncio
import re
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from serving.http.addresses import network_of
from serving.requests.shares import Shares

HEAD_WITHIN_S = 10.0
# A client that reads fewer bytes of an answer in this time is cut off; it holds a connection.
TAKE_WITHIN_S = 60.0
TAKE_AT_LEAST = 2**16
# Limits of a request's head, whose lines and fields cost far more time than their bytes.
MAX_LINES = 200
MAX_FIELDS = 500  # of its query
# Parts of a body that may be small, and the bytes that further ones must have on average: each part
# costs time of the event loop. Networks deliver about 1,400 bytes at a time.
SMALL_PARTS, PART_BYTES = 100, 256
_HEAD_END = re.compile(rb"\n\r?\n")


class BoundedConnection(h11.Connection):
    """HTTP/1.1 connection that takes no body in very many small parts.

    Attributes:
        is_laborious: whether a body had too many; no more of it is read then.
    """

    is_laborious = False
    _parts = _bytes = 0  # of the body so far

    def start_next_cycle(self) -> None:
        """Begin with the next request."""
        super().start_next_cycle()
        self._parts = self._bytes = 0

    def next_event(self) -> Any:
        """Return the next part of a request, or `h11.NEED_DATA`."""
        event = super().next_event()
        if isinstance(event, h11.Data):
            self._parts += 1
            self._bytes += len(event.data)
            self.is_laborious = self._parts > SMALL_PARTS + self._bytes // PART_BYTES
        return h11.NEED_DATA if self.is_laborious else event


class PatientProtocol(H11Protocol):
    """HTTP/1.1 protocol that closes the connections of slow and of laborious clients.

    A client is too slow if the headers of its next request take longer than `HEAD_WITHIN_S`, or if
    it reads less than `TAKE_AT_LEAST` bytes of an answer in `TAKE_WITHIN_S`. It is laborious if the
    head of a request has too many lines or fields, or a body too many small parts.

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
        self.conn = BoundedConnection(h11.SERVER, 2**16)
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

    def handle_events(self) -> None:
        """Handle what has arrived, unless that would take long."""
        if self.conn.their_state is h11.IDLE:
            head = _HEAD_END.split(self.conn.trailing_data[0], 1)[0]
            if head.count(b"\n") > MAX_LINES or head.count(b"&") > MAX_FIELDS:
                self.send_400_response("The request has too many headers, or fields in its query.")
                return
        super().handle_events()
        if self.conn.is_laborious:
            self.transport.abort()

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
