"""Life of a request apart from its drawing: admission, queue, endings, and closing."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence

from serving.generator import (
    ErrorKind,
    Event,
    Length,
    Load,
    Model,
    Queued,
    Request,
    RequestError,
    Started,
)
from serving.logs import log_fields
from serving.messages import Code, Message
from serving.metrics import Observer
from serving.requests.admission import check, expand
from serving.requests.eta import Pace
from serving.requests.fair_queue import FairQueue
from serving.requests.rate_limits import RateLimits
from serving.requests.record import Record
from serving.requests.registry import Limits, Registry

log = logging.getLogger(__name__)

# Requests that are drawn but whose files are still being encoded; they hold memory.
_MAX_FINISHING = 2
# Seconds in which stopped requests must end; a step may take as long.
STOPS_WITHIN_S = 5.0
# A quarter of the queue is kept for addresses that have nothing in it, and another quarter for
# visitors that have nothing in it. So neither one address nor one visitor can fill the queue.
_KEPT_FREE = 4
# Seconds that a request may have waited and still be passed over by others, whose LoRAs are in
# use. It is about the time of one request for SDXL's pictures on one chip. So a change of LoRAs is
# shared by requests that come close together, and nobody waits much longer than in the fair order.
PASSED_OVER_S = 10.0
# Live pictures that may wait: of one address, whose visitors can have one each, and in all.
MOST_LIVE_EACH, MOST_LIVE = 8, 64


class RequestLifecycle(ABC):
    """Base class of a `serving.generator.Generator`; a subclass adds the drawing.

    All methods run on one event loop.
    """

    def __init__(self, model: Model, limits: Limits, rates: RateLimits, observer: Observer) -> None:
        self.model = model
        self._max_waiting = limits.max_waiting
        self._blocked = limits.blocked
        self._rates = rates
        self._observer = observer
        self._registry = Registry(limits, self._ended)
        self._queue: FairQueue[Record] = FairQueue()
        self._live: FairQueue[Record] = FairQueue()  # of live requests, which come after all others
        self._pace = Pace()
        self._drawing: set[str] = set()  # ids of requests that occupy devices
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closing = False
        observer.watch(model, lambda: self.load)

    # --- for the subclass to define ---

    @property
    @abstractmethod
    def _parallel(self) -> int:
        """Number of requests that can be drawn at a time."""

    def _place(self, record: Record) -> bool:
        """Reserve what a request needs to be drawn at once; return False if nothing is free."""
        return True

    def _suits(self, request: Request) -> bool:
        """Return whether a request can be drawn without a change of LoRAs."""
        return True

    @property
    def _put_off(self) -> int:
        """Number of requests that were begun and now wait to begin again."""
        return 0

    @abstractmethod
    async def measure(self, prompt: str) -> Length | None:
        """See `serving.generator.Generator.measure`."""

    @abstractmethod
    async def _draw(self, record: Record) -> None:
        """Publish a request's events up to its ending; call `_free` when the next one may begin."""

    @abstractmethod
    def _stop(self, record: Record) -> None:
        """Make `_draw` stop soon, if it runs: the request has ended, for whatever reason."""

    # --- public interface ---

    @property
    def load(self) -> Load:
        """See `serving.generator.Generator.load`."""
        running = len(self._registry.under_way()) - len(self._queue) - len(self._live)
        stuck = self.stuck
        accepting = not self._closing and self._parallel > 0 and not stuck
        return Load(len(self._queue), running, self._max_waiting, accepting, stuck)

    @property
    def stuck(self) -> bool:
        """See `serving.generator.Generator.stuck`."""
        return False

    @property
    def at_work(self) -> bool:
        """See `serving.generator.Generator.at_work`."""
        return False

    async def open(self) -> None:
        """See `serving.generator.Generator.open`."""
        return

    async def submit(self, request: Request) -> None:
        """See `serving.generator.Generator.submit`."""
        try:
            request = expand(request, self.model)
            self._admit(request)
            record = self._registry.take_in(request)
        except RequestError as error:
            self._observer.refused(request, error)
            raise
        self._queue_of(request).push(request.address, request.visitor, record)
        if not (request.live and self._queue):  # nothing could begin
            self._begin_next()

    async def take_up(self, request_id: str) -> None:
        """See `serving.generator.Generator.take_up`."""
        record = self._registry.find(request_id)
        if record.abandoned and (stopping := self._tasks.get(request_id)):
            await asyncio.wait([stopping])
            record = self._registry.find(request_id)
        if record.abandoned:
            await self.submit(record.request)

    def events(self, request_id: str) -> AsyncGenerator[Event]:
        """See `serving.generator.Generator.events`."""
        return self._registry.events(request_id)

    def cancel(self, request_id: str) -> None:
        """See `serving.generator.Generator.cancel`."""
        self._registry.end(
            self._registry.find(request_id), ErrorKind.CANCELLED, Message(Code.CANCELLED)
        )

    async def close(self, within_s: float) -> None:
        """See `serving.generator.Generator.close`."""
        self._closing = True
        for record in [*self._queue, *self._live]:  # once closing, no positions are published
            self._registry.end(record, ErrorKind.STOPPING, Message(Code.STOPPING))
        if self._tasks:
            await asyncio.wait([*self._tasks.values()], timeout=within_s)
        for record in self._registry.under_way():
            self._registry.end(record, ErrorKind.STOPPING, Message(Code.STOPPING))
        if self._tasks:
            await asyncio.wait([*self._tasks.values()], timeout=STOPS_WITHIN_S)

    @abstractmethod
    async def thumbnail(self, lora: str) -> bytes | None:
        """See `serving.generator.Generator.thumbnail`."""

    # --- queue and tasks ---

    def _queue_of(self, request: Request) -> FairQueue[Record]:
        return self._live if request.live else self._queue

    def _admit(self, request: Request) -> None:
        if request.id in self._tasks:  # a request with this id is still drawn
            raise RequestError(Message(Code.DUPLICATE), ErrorKind.DUPLICATE, field="id")
        if self._closing:
            raise RequestError(Message(Code.STOPPING), ErrorKind.STOPPING)
        if self._parallel == 0 or self.stuck:
            raise RequestError(Message(Code.UNAVAILABLE), ErrorKind.UNAVAILABLE)
        check(request, self.model, self._blocked)
        if request.live:  # it takes neither a place nor a share of its visitor's requests
            self._drop_older(request)
            return
        places = self._places_for(request)
        if len(self._queue) >= places:
            wait_s = self._until_free_s()
            message = Message(Code.FULL, {"places": places, "wait_s": wait_s})
            raise RequestError(message, ErrorKind.FULL, retry_after_s=wait_s)
        self._rates.admit(request)

    def _drop_older(self, newest: Request) -> None:
        """End the live pictures that a new one replaces.

        These are the one of its visitor, and the oldest where too many wait: of its address, or
        in all.
        """

        def is_neighbour(record: Record) -> bool:
            return record.request.address == newest.address

        for record in filter(is_neighbour, self._live_under_way()):
            if record.request.visitor == newest.visitor:
                self._drop(record)
        for most, counts in ((MOST_LIVE_EACH, is_neighbour), (MOST_LIVE, lambda _: True)):
            waiting = [each for each in self._live_under_way() if each.started_at is None]
            too_many = list(filter(counts, waiting))[: 1 - most]
            for record in too_many:
                self._drop(record)

    def _live_under_way(self) -> list[Record]:
        """Return the records of live requests that have not ended, the oldest first."""
        return [record for record in self._registry.under_way() if record.request.live]

    def _drop(self, record: Record) -> None:
        self._registry.end(record, ErrorKind.CANCELLED, Message(Code.CANCELLED))

    def _places_for(self, request: Request) -> int:
        """Return the queue length at which this request is refused."""
        address, visitor = request.address, request.visitor
        counts = [self._queue.count(address)]
        if visitor != address:  # an API client without a key has only its address
            counts.append(self._queue.count(address, visitor))
        kept_free = self._max_waiting // _KEPT_FREE
        return self._max_waiting - kept_free * sum(count > 0 for count in counts)

    def _begin_next(self) -> None:
        while self._has_room() and (record := self._next()):
            request_id = record.request.id
            self._drawing.add(request_id)
            self._registry.publish(record, Started(1))
            task = self._tasks[request_id] = asyncio.create_task(self._run(record))
            # A callback, not the end of `_run`: a task cancelled before it begins never runs.
            task.add_done_callback(lambda _, record=record: self._over(record))
        # Requests that wait take the devices from live pictures.
        drawn = [record for record in self._live_under_way() if record.is_being_drawn]
        for record in drawn[: len(self._queue)]:
            self._drop(record)
        self._announce_positions()

    def _next(self) -> Record | None:
        """Take the next request that can begin from the queues; live ones are the last."""
        found = self._queue.pop(self._place, self._arranged)
        return self._live.pop(self._place) if found is None and not self._queue else found

    def _arranged(self, waiting: Sequence[Record]) -> Sequence[Record]:
        """Put requests that need no change of LoRAs first; they pass over none that waited long."""
        since = time.monotonic() - PASSED_OVER_S
        late = (place for place, each in enumerate(waiting) if each.accepted_at < since)
        first_late = next(late, len(waiting))
        early = sorted(waiting[:first_late], key=lambda each: not self._suits(each.request))
        return [*early, *waiting[first_late:]]

    def _has_room(self) -> bool:
        most = self._parallel + _MAX_FINISHING
        at_work = len(self._tasks) - self._put_off
        return len(self._drawing) < self._parallel and at_work < most

    async def _run(self, record: Record) -> None:
        try:
            if not record.ending:  # it may have been stopped before it began
                await self._draw(record)
        except Exception as error:  # one request must not hurt the next
            log.error("A request failed", exc_info=error, extra=log_fields(record.request))
            self._registry.end(record, ErrorKind.FAILED, Message(Code.FAILED))

    def _over(self, record: Record) -> None:
        """Remove the task of a request that is over, and free its devices."""
        del self._tasks[record.request.id]
        self._free(record)

    def _free(self, record: Record) -> None:
        """Mark a request as no longer using the devices, and begin the next one."""
        self._drawing.discard(record.request.id)
        self._begin_next()

    def _ended(self, record: Record) -> None:
        request = record.request
        self._queue_of(request).remove(request.address, request.visitor, record)
        self._stop(record)
        if not (self._closing or request.live):
            self._announce_positions()
        self._observer.ended(record)

    def _announce_positions(self) -> None:
        wait_s = self._until_free_s()
        for position, record in enumerate(self._arranged(list(self._queue)), start=1):
            self._registry.publish(record, Queued(position, wait_s))
            takes_s = self._pace.expect(self._work(record))
            if wait_s is not None and takes_s is not None:
                wait_s += takes_s / max(1, self._parallel)

    def _until_free_s(self) -> float | None:
        """Return the seconds until the next request can begin; None before anything was drawn."""
        drawn = [record for record in self._registry.under_way() if record.is_being_drawn]
        if len(drawn) < self._parallel:
            return self._pace.expect(0)
        left = (self._work(each) * each.steps_left / each.request.steps for each in drawn)
        return self._pace.expect(min(left, default=0))

    def _work(self, record: Record) -> int:
        """Return how often a request evaluates the network."""
        return record.request.evaluations(self.model.scheduler)

    def _observe_pace(self, record: Record, seconds: float) -> None:
        """Learn from a request that was drawn to the end in this time.

        Live ones are left out: few steps make each step look slow.
        """
        if record.request.live:
            return
        self._pace.observe(self._work(record), seconds)
