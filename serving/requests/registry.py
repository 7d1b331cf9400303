"""Registry of requests, which every generator uses: it keeps them and finds them again by id."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from serving.generator import Error, ErrorKind, Event, Request, RequestError, Started
from serving.messages import Code, Message
from serving.requests.blocked_words import BlockedWords
from serving.requests.record import Record
from serving.requests.shares import first_to_go

# Seconds in which a new request needs its first follower.
_FIRST_FOLLOWER_S = 10.0
# Seconds that a live picture may wait. Later, its visitor has typed on or looks elsewhere.
LIVE_WAITING_S = 3.0


@dataclass(frozen=True)
class Limits:
    """Limits of the queue, of the times of a request and of its visitor, and the blocked words."""

    max_waiting: int = 32
    waiting_s: float = 600.0  # from its arrival until a request must have begun
    running_s: float = 300.0  # from its newest turn until it must have ended, or have another one
    grace_s: float = 30.0  # for a request with `keep` that has lost its followers
    kept: int = 32  # results that can be found again, each for `kept_s` seconds
    kept_s: float = 600.0
    kept_bytes: int = 2**28  # of the pictures of all results but the newest
    rate_per_address: int = 0  # requests per minute from one address; 0 sets no limit
    rate_per_session: int = 0  # the same from one open page or API key
    blocked: BlockedWords = field(default_factory=BlockedWords)  # in prompts


class Registry:
    """All requests that are under way, and the recent ones that have ended.

    A request ends exactly once, whatever the reason. `on_end` is then called with its record.
    The registry belongs to one event loop, like the records.
    """

    def __init__(self, limits: Limits, on_end: Callable[[Record], None]) -> None:
        self._limits = limits
        self._ended = on_end
        self._records: dict[str, Record] = {}
        # Records that have ended, oldest first, and the bytes of their pictures.
        self._results: dict[Record, int] = {}
        self._timers: dict[str, dict[str, asyncio.TimerHandle]] = {}

    def is_free(self, request_id: str) -> bool:
        """Return whether a new request can have this id, as no other has, or an abandoned one."""
        record = self._records.get(request_id)
        return record is None or record.abandoned

    def take_in(self, request: Request) -> Record:
        """Create the record of a new request, whose id is free."""
        if old_record := self._records.get(request.id):
            self._forget(old_record)
        record = self._records[request.id] = Record(request)
        self._limit(record, LIVE_WAITING_S if request.live else self._limits.waiting_s)
        self._left(record)  # it has no follower yet
        return record

    def find(self, request_id: str) -> Record:
        """Return the record with this id.

        Raises:
            RequestError: if there is none any more.
        """
        if record := self._records.get(request_id):
            return record
        raise RequestError(Message(Code.UNKNOWN_REQUEST), ErrorKind.UNKNOWN)

    def under_way(self) -> list[Record]:
        """Return the records of the requests that have not ended."""
        return [record for record in self._records.values() if not record.ending]

    def count_under_way(self) -> int:
        """Return the number of requests that have not ended."""
        return len(self._records) - len(self._results)

    def events(self, request_id: str, pause_s: float | None = None) -> AsyncGenerator[Event]:
        """See `serving.generator.Generator.events`."""
        record = self.find(request_id)
        return record.events(lambda: self._left(record), pause_s)

    def publish(self, record: Record, event: Event) -> None:
        """Send an event to the followers of a request; do nothing if the request has ended."""
        if record.ending:
            return
        if isinstance(event, Started) and not record.started_at:
            self.extend(record)
        record.publish(event)
        if record.ending:
            self._keep(record)
            self._ended(record)

    def extend(self, record: Record) -> None:
        """Let the time in which a request must end begin again, as one of its pictures begins."""
        self._limit(record, self._limits.running_s)

    def end(self, record: Record, kind: ErrorKind, message: Message) -> None:
        """End a request with an error."""
        self.publish(record, Error(kind, message))

    def _limit(self, record: Record, seconds: float) -> None:
        self._later("deadline", seconds, record, lambda: self._too_late(record, seconds))

    def _too_late(self, record: Record, seconds: float) -> None:
        code = Code.NOT_STARTED if record.started_at is None else Code.NOT_FINISHED
        self.end(record, ErrorKind.DEADLINE, Message(code, {"seconds": seconds}))

    def _left(self, record: Record) -> None:
        """Start the time in which a request needs a follower: the last one may have left."""
        if not record.followed:
            grace_s = _FIRST_FOLLOWER_S
        else:
            grace_s = self._limits.grace_s if record.request.keep else 0.0
        self._later("grace", grace_s, record, lambda: self._abandon(record))

    def _abandon(self, record: Record) -> None:
        if not record.followers:
            self.end(record, ErrorKind.ABANDONED, Message(Code.ABANDONED))

    def _later(
        self, name: str, seconds: float, record: Record, callback: Callable[[], None]
    ) -> None:
        """Set the timer `name` of a request that is under way, in place of an earlier one."""
        if record.ending:
            return
        timers = self._timers.setdefault(record.request.id, {})
        if name in timers:
            timers[name].cancel()
        timers[name] = asyncio.get_running_loop().call_later(seconds, callback)

    def _keep(self, record: Record) -> None:
        """Keep a result for a while; forget older ones that are too many or too large with it."""
        self._cancel_timers(record)
        if record.request.live:  # nobody asks for it again, and it would push out others
            del self._records[record.request.id]
            return
        self._results[record] = record.bytes
        timer = asyncio.get_running_loop().call_later(self._limits.kept_s, self._forget, record)
        self._timers[record.request.id] = {"kept": timer}
        while len(self._results) > self._limits.kept:
            self._forget(first_to_go((entry, entry.request.address, 1) for entry in self._results))
        while sum(self._results.values()) > self._limits.kept_bytes and len(self._results) > 1:
            old_results = list(self._results.items())[:-1]
            self._forget(
                first_to_go((entry, entry.request.address, size) for entry, size in old_results)
            )

    def _forget(self, record: Record) -> None:
        if record in self._results:
            self._cancel_timers(record)  # a timer would hold the record
            del self._results[record]
            del self._records[record.request.id]

    def _cancel_timers(self, record: Record) -> None:
        for timer in self._timers.pop(record.request.id).values():
            timer.cancel()
