"""Life of a request apart from its drawing: admission, queue, endings, and closing."""

import asyncio
import logging
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial
from itertools import islice
from typing import Protocol

from pipeline.drawing.scheduler import FRONT, Rules, Scheduler
from pipeline.facts import Facts
from pipeline.text.prompt_syntax import PLAIN
from serving.generator import (
    ErrorKind,
    Event,
    Length,
    Load,
    Pictured,
    Queued,
    Request,
    RequestError,
    Started,
)
from serving.logs import log_fields
from serving.messages import Code, Message
from serving.metrics import Observer
from serving.requests.admission import check_digest, check_fields, check_words, expand
from serving.requests.eta import Pace
from serving.requests.rate_limits import RateLimits
from serving.requests.record import Record
from serving.requests.registry import Limits, Registry
from serving.requests.shares import Shares
from serving.requests.workers import Workers

log = logging.getLogger(__name__)

# Pictures for each slot that are drawn but whose files are still being encoded; they hold memory.
MAX_FINISHING = 2
# Seconds in which stopped requests must end; a step may take as long.
STOPS_WITHIN_S = 5.0
# A quarter of the queue is kept for addresses that have nothing in it, and another quarter for
# visitors that have nothing in it. So neither one address nor one visitor can fill the queue.
_KEPT_FREE = 4
# Seconds in which those at the front of the queue are told their places: changes that come closer
# together are told as one.
TOLD_S = 0.1
# Seconds in which the others begin to be told theirs, and between `FRONT` and the next of them:
# a long queue leaves time for all else.
FAR_TOLD_S, FAR_PAUSE_S = 1.0, 0.01
# Live pictures that may wait: of one address, whose visitors can have one each, and in all.
MOST_LIVE_EACH, MOST_LIVE = 8, 64
# Bytes of the pictures that requests under way start from: in all, and of one address.
MOST_INPUT_BYTES, MOST_INPUT_BYTES_EACH = 2**28, 2**26
# Requests whose words are being read, or that wait for that: in all, and of one address.
MOST_READ, MOST_READ_EACH = 256, 64


class Drawer(Protocol):
    """Draws the pictures of a `RequestLifecycle`'s requests, in this process or elsewhere.

    Attributes:
        requests: the requests.
    """

    requests: "RequestLifecycle"

    def connect(self, requests: "RequestLifecycle") -> None:
        """Draw these requests; called once, before all other methods."""
        self.requests = requests

    @property
    @abstractmethod
    def facts(self) -> Facts:
        """The facts about the model that draws; they may change."""

    @property
    @abstractmethod
    def slots(self) -> int:
        """The number of pictures that can be drawn at a time."""

    @property
    @abstractmethod
    def slots_in_use(self) -> int:
        """The number of slots that pictures have."""

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Whether a request can have a turn, if others do not need it more."""

    @property
    def stuck(self) -> bool:
        """See `serving.generator.Generator.stuck`."""
        return False

    @property
    def at_work(self) -> bool:
        """See `serving.generator.Generator.at_work`."""
        return False

    @property
    def takes_all(self) -> bool:
        """Whether a request is drawn as a whole with its last turn, not a picture with each."""
        return False

    @property
    def suits(self) -> Callable[[Record], bool] | None:
        """See `pipeline.drawing.scheduler.Rules`."""
        return None

    @abstractmethod
    async def open(self) -> None:
        """See `serving.generator.Generator.open`."""

    @abstractmethod
    async def close(self) -> None:
        """Stop all work beside the drawing: no request is left."""

    def read_ahead(self, record: Record) -> None:
        """Begin to read the model and the LoRAs of a request that waits for others."""

    @abstractmethod
    def place(self, record: Record) -> bool:
        """Reserve what a request's turn needs, if there is room; return False if it must wait."""

    @abstractmethod
    async def draw(self, record: Record) -> None:
        """Publish a request's events up to its ending."""

    @abstractmethod
    def stop(self, record: Record) -> None:
        """Make `draw` stop soon, if it runs: the request has ended, for whatever reason."""

    @abstractmethod
    def end(self, record: Record) -> None:
        """Free what a request had, whose `draw` is over or never ran."""

    @abstractmethod
    async def measure(self, prompt: str, prompt_syntax: str, steps: int | None) -> Length | None:
        """See `serving.generator.Generator.measure`."""

    @abstractmethod
    async def thumbnail(self, kind: Pictured, name: str) -> bytes | None:
        """See `serving.generator.Generator.thumbnail`."""


class RequestLifecycle:
    """A `serving.generator.Generator`: the life of requests, whose pictures a `Drawer` draws.

    All methods run on one event loop.
    """

    def __init__(self, drawer: Drawer, limits: Limits, observer: Observer) -> None:
        drawer.connect(self)
        self._drawer = drawer
        self._max_waiting = limits.max_waiting
        self._blocked = limits.blocked
        self._rates = RateLimits(limits.rate_per_address, limits.rate_per_session)
        self._observer = observer
        self._registry = Registry(limits, self._ended)
        rules = Rules[Record](
            pictures=lambda record: record.turns,
            evaluations=self._evaluations,
            since=lambda record: record.accepted_at,
            group=lambda record: record.request.group,
            enter=lambda record: drawer.place(record),
            has_room=lambda: drawer.has_room,
            read_ahead=drawer.read_ahead,
            suits=drawer.suits,
            programs=lambda record: self.facts.programs_of(record.request.model),
        )
        self._scheduler = Scheduler(rules, resident=("", ""))
        # Numbers of requests in it of which no picture has begun: in all, by address and visitor.
        self._waiting: Counter[tuple[str, ...]] = Counter()
        self._live_under_way: dict[Record, None] = {}  # that have not ended, the oldest first
        self._pace = Pace()
        self._inputs = Shares(MOST_INPUT_BYTES, MOST_INPUT_BYTES_EACH)
        self._readers = Workers(1, MOST_READ, MOST_READ_EACH)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._begun: dict[str, Record] = {}  # the records of these tasks
        self._beginning: asyncio.Handle | None = None  # of `begin_next`, after endings
        self._told_at = -math.inf  # the loop's time when places were told last
        self._tells_at: asyncio.TimerHandle | None = None  # when they are told next
        self._front: set[Record] = set()  # that were told their places last
        self._far_changed = False  # whether the others are to be told theirs
        self._telling: asyncio.Task[None] | None = None  # tells them
        self._closing = False
        observer.watch(self.facts, lambda: self.load)

    # --- the interface of `serving.generator.Generator` ---

    @property
    def facts(self) -> Facts:
        """See `serving.generator.Generator.facts`."""
        return self._drawer.facts

    @property
    def load(self) -> Load:
        """See `serving.generator.Generator.load`."""
        waiting = self._waiting[()]
        running = self._registry.count_under_way() - waiting - len(self._scheduler.live)
        slots, stuck = self._drawer.slots, self.stuck
        accepting = not self._closing and slots > 0 and not stuck
        in_use = self._drawer.slots_in_use
        return Load(waiting, running, self._max_waiting, accepting, stuck, slots, in_use)

    @property
    def stuck(self) -> bool:
        """See `serving.generator.Generator.stuck`."""
        return self._drawer.stuck

    @property
    def at_work(self) -> bool:
        """See `serving.generator.Generator.at_work`."""
        return self._drawer.at_work

    async def open(self) -> None:
        """See `serving.generator.Generator.open`."""
        await self._drawer.open()

    async def measure(
        self, prompt: str, prompt_syntax: str = PLAIN, steps: int | None = None
    ) -> Length | None:
        """See `serving.generator.Generator.measure`."""
        return await self._drawer.measure(prompt, prompt_syntax, steps)

    async def thumbnail(self, kind: Pictured, name: str) -> bytes | None:
        """See `serving.generator.Generator.thumbnail`."""
        return await self._drawer.thumbnail(kind, name)

    async def submit(self, request: Request) -> None:
        """See `serving.generator.Generator.submit`."""
        try:
            request = expand(request, self.facts)
            self._check_id(request)
            check_digest(request, self.facts)
            check_fields(request, self.facts)
            self._check_room(request)
            work = partial(check_words, request, self._blocked)
            await self._readers.run(request.address, work)
            self._check_id(request)  # others may have been admitted meanwhile
            self._check_room(request)
            self._admit(request)
        except RequestError as error:
            self._observer.refused(request, error)
            raise
        record = self._registry.take_in(request)
        self._inputs.take(request.address, request.input_bytes)
        record.turns = request.images or 1
        if request.live:
            self._live_under_way[record] = None
        else:
            self._count_waiting(request, 1)
        self._scheduler.push(request.address, request.visitor, record, request.live)
        if not (request.live and self._scheduler):  # nothing could begin
            self.begin_next()

    async def take_up(self, request_id: str) -> None:
        """See `serving.generator.Generator.take_up`."""
        record = self._registry.find(request_id)
        if record.abandoned and (stopping := self._tasks.get(request_id)):
            await asyncio.wait([stopping])
            record = self._registry.find(request_id)
        if record.abandoned and record.lost_input:
            raise RequestError(Message(Code.INPUT_GONE), ErrorKind.UNKNOWN, field="image")
        if record.abandoned:
            await self.submit(record.request)

    def events(self, request_id: str, pause_s: float | None = None) -> AsyncGenerator[Event]:
        """See `serving.generator.Generator.events`."""
        return self._registry.events(request_id, pause_s)

    def cancel(self, request_id: str) -> None:
        """See `serving.generator.Generator.cancel`."""
        self._registry.end(
            self._registry.find(request_id), ErrorKind.CANCELLED, Message(Code.CANCELLED)
        )

    async def close(self, within_s: float) -> None:
        """See `serving.generator.Generator.close`."""
        self._closing = True
        for pending in (self._telling, self._tells_at):
            if pending:
                pending.cancel()
        waiting = (record for record in self._scheduler if record.started_at is None)
        for record in [*waiting, *self._scheduler.live]:  # once closing, no positions are published
            self._registry.end(record, ErrorKind.STOPPING, Message(Code.STOPPING))
        if self._tasks:
            await asyncio.wait([*self._tasks.values()], timeout=within_s)
        for record in self._registry.under_way():
            self._registry.end(record, ErrorKind.STOPPING, Message(Code.STOPPING))
        if self._tasks:
            await asyncio.wait([*self._tasks.values()], timeout=STOPS_WITHIN_S)
        await self._drawer.close()

    # --- for the drawer ---

    @property
    def waiting(self) -> list[Record]:
        """The requests that have turns to come, live ones left out."""
        return list(self._scheduler)

    def suits(self, record: Record) -> bool:
        """Return whether a request can be drawn beside the pictures in the slots."""
        return self._scheduler.suits(record)

    def publish(self, record: Record, event: Event) -> None:
        """Send an event to the followers of a request; do nothing if the request has ended."""
        self._registry.publish(record, event)

    def extend(self, record: Record) -> None:
        """Let the time in which a request must end begin again, as one of its pictures begins."""
        self._registry.extend(record)

    def observe_pace(self, record: Record, seconds: float) -> None:
        """Learn from a picture that was drawn to the end in this time.

        Live ones are left out: few steps make each step look slow.
        """
        if not record.request.live:
            self._pace.observe(self._evaluations(record), seconds)

    def begin_next(self) -> None:
        """Give turns to the requests that are next, as far as there is room."""
        while record := self._scheduler.next():
            self._begin(record)
        # Requests that wait take the slots from live pictures.
        drawn = [record for record in self._live_under_way if record.is_being_drawn]
        for record, _ in list(zip(drawn, self._scheduler.in_turn(), strict=False)):
            self._drop(record)
        self._announce_positions()

    # --- queue and tasks ---

    def _check_id(self, request: Request) -> None:
        """Raise RequestError if a request's id is in use, or nothing can be drawn."""
        # A request that has ended may still be drawn.
        if request.id in self._tasks or not self._registry.is_free(request.id):
            raise RequestError(Message(Code.DUPLICATE), ErrorKind.DUPLICATE, field="id")
        if self._closing:
            raise RequestError(Message(Code.STOPPING), ErrorKind.STOPPING)
        if self._drawer.slots == 0 or self.stuck:
            raise RequestError(Message(Code.UNAVAILABLE), ErrorKind.UNAVAILABLE)

    def _check_room(self, request: Request) -> None:
        """Raise RequestError if a request has no place."""
        if not self._inputs.has_room_for(request.address, request.input_bytes):
            raise RequestError(Message(Code.NO_ROOM_FOR_UPLOADS), ErrorKind.FULL, field="image")
        if request.live:  # it takes neither a place nor a share of its visitor's requests
            return
        places = self._places_for(request)
        if self._waiting[()] >= places:
            wait_s = self._until_free_s()
            message = Message(Code.FULL, {"places": places, "wait_s": wait_s})
            raise RequestError(message, ErrorKind.FULL, retry_after_s=wait_s)

    def _admit(self, request: Request) -> None:
        """Count a request that was checked, or raise RequestError if there were too many."""
        if request.live:
            self._drop_older(request)
        else:
            self._rates.admit(request.address, request.visitor)

    def _drop_older(self, request: Request) -> None:
        """End the live pictures that a new one replaces.

        These are the one of its visitor, and the oldest where too many wait: of its address, or
        in all.
        """

        def is_neighbour(record: Record) -> bool:
            return record.request.address == request.address

        for record in [*filter(is_neighbour, self._live_under_way)]:
            if record.request.visitor == request.visitor:
                self._drop(record)
        for limit, counts in ((MOST_LIVE_EACH, is_neighbour), (MOST_LIVE, lambda _: True)):
            waiting = [record for record in self._live_under_way if record.started_at is None]
            surplus = list(filter(counts, waiting))[: 1 - limit]
            for record in surplus:
                self._drop(record)

    def _drop(self, record: Record) -> None:
        self._registry.end(record, ErrorKind.CANCELLED, Message(Code.CANCELLED))

    def _places_for(self, request: Request) -> int:
        """Return the queue length at which this request is refused."""
        address, visitor = request.address, request.visitor
        takes = [self._waiting[address,] > 0]
        if visitor != address:  # an API client without a key has only its address
            takes.append(self._waiting[address, visitor] > 0)
        return self._max_waiting - self._max_waiting // _KEPT_FREE * sum(takes)

    def _count_waiting(self, request: Request, change: int) -> None:
        for key in ((), (request.address,), (request.address, request.visitor)):
            self._waiting[key] += change
            if not self._waiting[key]:
                del self._waiting[key]

    def _begin_after_endings(self) -> None:
        self._beginning = None
        self.begin_next()

    def _begin(self, record: Record) -> None:
        """Begin a request, or go on with it, after a turn of it."""
        record.turns -= 1
        if record.turns and self._drawer.takes_all:
            return
        request_id = record.request.id
        if request_id in self._tasks:
            self._registry.extend(record)
            return
        if not record.request.live:
            self._count_waiting(record.request, -1)
        self._begun[request_id] = record
        self._registry.publish(record, Started(1))
        task = self._tasks[request_id] = asyncio.create_task(self._run(record))
        # A callback, not the end of `_run`: a task cancelled before it begins never runs.
        task.add_done_callback(lambda _: self._over(record))

    async def _run(self, record: Record) -> None:
        try:
            if not record.ending:  # it may have been stopped before it began
                await self._drawer.draw(record)
        except Exception as error:  # one request must not hurt the next
            log.error("A request failed", exc_info=error, extra=log_fields(record.request))
            self._registry.end(record, ErrorKind.FAILED, Message(Code.FAILED))

    def _over(self, record: Record) -> None:
        """Remove the task of a request that is over, and begin others in its place."""
        del self._tasks[record.request.id]
        del self._begun[record.request.id]
        self._drawer.end(record)
        self.begin_next()

    def _ended(self, record: Record) -> None:
        request = record.request
        self._inputs.give_back(request.address, request.input_bytes)
        record.drop_input()
        self._scheduler.remove(record)
        self._live_under_way.pop(record, None)
        if record.started_at is None and not request.live:
            self._count_waiting(request, -1)
        self._drawer.stop(record)
        if not (self._closing or self._beginning):
            # Others may have waited for it. Later, because this may run inside `begin_next`.
            self._beginning = asyncio.get_running_loop().call_soon(self._begin_after_endings)
        self._observer.ended(record)

    def _announce_positions(self) -> None:
        """Tell those at the front of the queue their places soon, and the others in a while."""
        if self._closing or self._tells_at:
            return
        loop = asyncio.get_running_loop()
        due_at = self._told_at + TOLD_S
        if loop.time() >= due_at:
            self._announce_front()
        else:
            self._tells_at = loop.call_at(due_at, self._announce_front)

    def _announce_front(self) -> None:
        self._tells_at = None
        self._told_at = asyncio.get_running_loop().time()
        announced = list(islice(self._announced(), FRONT))
        self._front = set(announced)
        if len(announced) < FRONT:
            return
        self._far_changed = True
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._announce_far())

    async def _announce_far(self) -> None:
        """Tell those behind the front their places, as long as these change."""
        while self._far_changed:
            await asyncio.sleep(FAR_TOLD_S)
            self._far_changed = False
            announced = self._announced(lambda record: record in self._front)
            for number, _ in enumerate(announced, start=1):
                if number % FRONT == 0:
                    await asyncio.sleep(FAR_PAUSE_S)

    def _announced(
        self, is_excepted: Callable[[Record], bool] = lambda _: False
    ) -> Iterator[Record]:
        """Iterate over turns, and tell those that wait their places as these are read."""
        wait_s = self._until_free_s()
        seen_records: set[Record] = set()
        for record in self._scheduler.in_turn():
            if record.started_at is None and record not in seen_records:
                seen_records.add(record)
                if not is_excepted(record):
                    self._registry.publish(record, Queued(len(seen_records), wait_s))
            yield record
            takes_s = self._pace.expect(self._evaluations(record) / max(1, self._drawer.slots))
            if wait_s is not None and takes_s is not None:
                wait_s += takes_s

    def _until_free_s(self) -> float | None:
        """Return the seconds until the next picture can begin; None before anything was drawn."""
        if self._drawer.slots_in_use < self._drawer.slots:
            return self._pace.expect(0)
        records = [record for record in self._begun.values() if record.is_being_drawn]
        evaluations_left = (
            self._evaluations(record) * record.steps_left / max(1, record.request.drawn_steps)
            for record in records
        )
        return self._pace.expect(min(evaluations_left, default=0))

    def _evaluations(self, record: Record) -> int:
        """Return how often the network is evaluated for each picture of a request."""
        request = record.request
        return request.evaluations(self.facts.for_known(request.model).scheduler)
