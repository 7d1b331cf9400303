"""Generator that sends requests to other instances over HTTP. Needs no model and no JAX."""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from pipeline.drawing.scheduler import Rules
from pipeline.facts import Facts, differences, digest_of, merged, without_offers
from pipeline.text.prompt_syntax import PLAIN
from serving.generator import (
    Error,
    ErrorKind,
    Image,
    Length,
    Pictured,
    Queued,
    Request,
    RequestError,
    Started,
    Step,
)
from serving.generators.client import (
    ELSEWHERE,
    BackendError,
    Client,
    LoopError,
    fetch_length,
    fetch_model,
    fetch_thumbnail,
    stream,
)
from serving.generators.compatibility import check
from serving.http import schemas
from serving.logs import log_fields
from serving.messages import Code, Message
from serving.metrics import Observer
from serving.requests import admission
from serving.requests.lifecycle import MAX_FINISHING, RequestLifecycle
from serving.requests.record import Record
from serving.requests.registry import Limits

log = logging.getLogger(__name__)

# Attempts per request. Five survive bad luck; a request that crashes instances stops here.
ATTEMPTS = 5
HEALTH_S = 5.0  # seconds between two health checks of an instance
# Health checks in a row without an answer after which the requests of an instance begin again
# elsewhere, and its model no longer counts.
_LOOKS = 2
# Health checks in a row without an answer after which an instance that was added later is removed.
LAST_LOOKS = 24
# Steps before the end of a request at which others are sent: its slots are free when they arrive.
# Instances queue steps ahead, so they let other pictures in a few steps before they tell the last.
_AHEAD = 3
# Limits of the seconds for which an instance that refused a request is sent nothing.
_LEAST_REST_S, _MOST_REST_S = 0.5, 60.0


@dataclass(frozen=True)
class _PutOff:
    """A request that waits for an instance.

    Attributes:
        tried: instances that did not finish it.
        backend: resolves to the instance that will draw it.
    """

    record: Record
    tried: list["Backend"]
    backend: "asyncio.Future[Backend]"


@dataclass
class Backend:
    """One other instance.

    Attributes:
        other_requests: number of its requests from elsewhere, at the last health check.
        drawing: number of unfinished pictures of each request from here that it draws or will draw
            next, by the request's id.
        streams: time limit of each open stream of events, by the id of its request.
        resting: whether it is sent nothing for a moment, because it refused a request.
        silent: unanswered health checks since it last answered or sent an event.
        stays: whether it is kept however long it is silent.
        healthy: whether it answers and accepts requests, whatever its model is.
        in_use: the model and the LoRAs of the latest request that it was sent.
        sent_at: `time.monotonic()` of that request.
        facts: about its model, at the last health check; None before the first one, while it
            refuses, and after `_LOOKS` unanswered ones.
    """

    url: str
    stays: bool = True
    healthy: bool = True
    other_requests: int = 0
    drawing: dict[str, int] = field(default_factory=dict)
    streams: dict[str, asyncio.Timeout] = field(default_factory=dict)
    resting: bool = False
    silent: int = 0
    in_use: tuple[str, str] = "", ""
    sent_at: float = 0.0
    facts: Facts | None = None

    @property
    def undecided(self) -> bool:
        """Whether it may be used although its model is not known yet."""
        return self.healthy and self.facts is None

    @property
    def pictures(self) -> int:
        """The number of unfinished pictures that it draws for requests from here."""
        return sum(self.drawing.values())

    def draws(self, request: Request, digest: str) -> bool:
        """Return whether it has a free slot and draws a request with what its digest stands for.

        If the request has more pictures than there are free slots, the others wait there.
        """
        if not self.healthy or self.resting or self.facts is None:
            return False
        return (
            self.pictures < self.facts.images_per_request
            and request.size in (facts := self.facts.for_known(request.model)).sizes
            and request.enlarge in ("", *facts.size_names)
            and self.has_all(request, digest)
        )

    def has_all(self, request: Request, digest: str) -> bool:
        """Return whether it has the model and the files that a request's digest stands for."""
        return self.facts is not None and digest_of(request, self.facts) == digest

    def agrees(self, facts: Facts) -> bool:
        """Return whether it is known to draw the same pictures as `model`."""
        return self.facts is not None and not differences(self.facts, facts)


class RemoteGenerator(RequestLifecycle):
    """A `serving.generator.Generator` that sends requests to other instances.

    Requests wait here, in one queue that is fair to visitors. An instance is sent requests while it
    has a free slot for a picture. A request whose instance is lost begins again on another one,
    with the same seed and so with the same pictures.

    `model` is the model of the instances, at first the one that the first instance reported. It
    changes when more than half of the instances have another model, or when none has this one any
    more. A request keeps the model it began with for as long as an instance has it.
    """

    def __init__(
        self,
        client: Client,
        urls: Sequence[str],
        facts: Facts,
        limits: Limits,
        observer: Observer,
    ) -> None:
        self._client = client
        self._backends = [Backend(url) for url in urls]
        self._watching: set[asyncio.Task[None]] = set()
        self._again: dict[str, _PutOff] = {}
        self._begun_with: dict[str, Facts] = {}  # by the id of a request
        super().__init__(facts, limits, observer)

    async def close(self, within_s: float) -> None:
        """See `serving.generator.Generator.close`."""
        await super().close(within_s)
        for watching in self._watching:
            watching.cancel()
        await self._client.aclose()

    async def open(self) -> None:
        """See `serving.generator.Generator.open`."""
        for backend in self._backends:
            self._watch(backend)

    def add(self, url: str) -> None:
        """Add an instance, which is used until it is silent for long; ignore one already added."""
        if all(backend.url != url for backend in self._backends):
            log.info("Found the instance %s", url)
            backend = Backend(url, stays=False, healthy=False)  # until its first check
            self._backends.append(backend)
            self._watch(backend)

    async def measure(
        self, prompt: str, prompt_syntax: str = PLAIN, steps: int | None = None
    ) -> Length | None:
        """See `serving.generator.Generator.measure`."""
        for backend in self._backends:
            if self._takes_new(backend):
                body = {
                    "prompt": prompt,
                    "prompt_syntax": prompt_syntax,
                    "num_inference_steps": steps,
                }
                return await fetch_length(self._client, backend.url, body)
        return None

    async def thumbnail(self, kind: Pictured, name: str) -> bytes | None:
        """See `serving.generator.Generator.thumbnail`."""
        for backend in self._backends:
            entries = getattr(backend.facts, kind, ())
            if self._takes_new(backend) and any(
                entry.name == name and entry.pictured for entry in entries
            ):
                return await fetch_thumbnail(self._client, backend.url, kind, name)
        return None

    @property
    def _slots(self) -> int:
        backends = [backend for backend in self._backends if self._takes_new(backend)]
        slots = sum((backend.facts or self.facts).images_per_request for backend in backends)
        # Instances that get no new requests may still finish pictures; count these too.
        pictures = sum(
            backend.pictures for backend in self._backends if not self._takes_new(backend)
        )
        return slots + pictures if slots else 0

    @property
    def _slots_in_use(self) -> int:
        return sum(
            min(backend.pictures, (backend.facts or self.facts).images_per_request)
            for backend in self._backends
        )

    def _takes_new(self, backend: Backend) -> bool:
        """Return whether new requests can be sent to an instance."""
        return backend.undecided or (backend.healthy and backend.agrees(self.facts))

    def _stop(self, record: Record) -> None:
        # Closing the connection makes the instance stop within one step.
        if (task := self._tasks.get(record.request.id)) and task is not asyncio.current_task():
            task.cancel()

    async def _draw(self, record: Record) -> None:
        tried_backends: list[Backend] = []
        attempt, reason = 1, ""
        while attempt <= ATTEMPTS:
            backend = await self._backend_for(record, tried_backends)
            tried_backends.append(backend)
            if reason:
                self._observer.retried(reason)
                self._registry.publish(record, Started(attempt))
                reason = ""
            try:
                await self._draw_at(backend, record, attempt)
                return
            except BackendError as error:
                log.warning("%s %s", backend.url, error, extra=log_fields(record.request))
                if record.ending:  # it is over: do not begin it again
                    return
                if error.reason in _PASSING:
                    self._rest(backend, error.retry_after_s)
                if error.reason not in _NOT_BEGUN:
                    attempt, reason = attempt + 1, error.reason
        self._registry.end(record, ErrorKind.UNAVAILABLE, Message(Code.UNAVAILABLE))

    async def _backend_for(self, record: Record, tried_backends: list[Backend]) -> Backend:
        """Return the instance that is to draw a request; its `drawing` has the request's id.

        If no instance can draw it now, wait for one until the request's deadline. Other requests
        can begin meanwhile.
        """
        for backend in self._backends:
            if record.request.id in backend.drawing:
                return backend
        waiting = _PutOff(record, tried_backends, asyncio.get_running_loop().create_future())
        self._again[record.request.id] = waiting
        self._begin_next()
        try:
            return await waiting.backend
        finally:
            del self._again[record.request.id]

    def _begin_next(self) -> None:
        # Requests that begin again come before the queue.
        for request_id, waiting in self._again.items():
            if waiting.backend.done():
                continue
            if not self._goes_on(waiting.record):
                waiting.backend.cancel()
            elif backend := self._find(waiting.record, waiting.tried, self._begun_with[request_id]):
                waiting.backend.set_result(backend)
        super()._begin_next()

    def _goes_on(self, record: Record) -> bool:
        """Return whether a request can begin again; end it if it cannot.

        If no instance has the model and the files that it began with, it begins again with those
        of now. It cannot if some of its pictures are there: the others must not be drawn otherwise.
        """
        request, facts = record.request, self._begun_with[record.request.id]
        digest = digest_of(request, facts)
        if digest == digest_of(request, self.facts):
            return True
        if any(backend.has_all(request, digest) for backend in self._backends):
            return True
        if record.images:
            self._registry.end(record, ErrorKind.UNAVAILABLE, Message(Code.REPLACED))
        else:
            self._end_if_impossible(record)
            self._begun_with[record.request.id] = self.facts
        return not record.ending

    def _end_if_impossible(self, record: Record) -> None:
        """End a request that the model cannot draw, not even with the sizes that are to come."""
        facts = replace(self.facts, more_sizes=self.facts.more_sizes + self.facts.coming_sizes)
        try:
            admission.check_fields(record.request, facts)
        except RequestError as error:
            self._registry.end(record, error.kind, Message(Code.REPLACED))

    @property
    def _rules(self) -> Rules[Record]:
        return replace(super()._rules, suits=lambda record: self._suits(record.request))

    def _suits(self, request: Request) -> bool:
        digest = digest_of(request, self.facts)
        return any(
            backend.in_use == request.group and backend.draws(request, digest)
            for backend in self._backends
        )

    @property
    def _finishing(self) -> int:
        """Number of requests that are drawn, and whose pictures are still being sent."""
        num_drawn = sum(len(backend.drawing) for backend in self._backends)
        num_put_off = sum(not waiting.backend.done() for waiting in self._again.values())
        return len(self._tasks) - num_drawn - num_put_off

    def _begin(self, record: Record) -> None:
        """Begin a request with its last turn: it is sent as a whole."""
        if record.turns > 1:
            record.turns -= 1
        else:
            super()._begin(record)

    @property
    def _has_room(self) -> bool:
        return self._finishing < MAX_FINISHING * self._slots

    def _place(self, record: Record) -> bool:
        if record.turns > 1:
            return self._best(record.request, [], self.facts) is not None
        if self._find(record, [], self.facts) is None:
            return False
        self._begun_with[record.request.id] = self.facts
        return True

    def _find(self, record: Record, tried_backends: list[Backend], facts: Facts) -> Backend | None:
        """Reserve a free instance for a request; None if none is free."""
        request = record.request
        if backend := self._best(request, tried_backends, facts):
            backend.drawing[request.id] = request.images or 1
            backend.in_use, backend.sent_at = request.group, time.monotonic()
        return backend

    def _best(
        self, request: Request, tried_backends: list[Backend], facts: Facts
    ) -> Backend | None:
        """Return the instance that suits a request best; None if none is free.

        Instances that were not tried come first, then those that have its model and LoRAs in use,
        then those with most room, and of these the one that was sent nothing for the longest time.
        """

        def rank(backend: Backend) -> tuple[int, bool, int, float]:
            load = backend.pictures + backend.other_requests
            return (
                tried_backends.count(backend),
                backend.in_use != request.group,
                load,
                backend.sent_at,
            )

        digest = digest_of(request, facts)
        backends = [backend for backend in self._backends if backend.draws(request, digest)]
        return min(backends, key=rank, default=None)

    def _over(self, record: Record) -> None:
        for backend in self._backends:  # it may have ended before it was sent
            backend.drawing.pop(record.request.id, None)
        del self._begun_with[record.request.id]
        super()._over(record)

    def _rest(self, backend: Backend, retry_after_s: float | None) -> None:
        """Send an instance nothing for the time that it asked for, within limits."""

        def over() -> None:
            backend.resting = False
            self._begin_next()

        backend.resting = True
        rest_s = min(max(_LEAST_REST_S, retry_after_s or 0.0), _MOST_REST_S)
        asyncio.get_running_loop().call_later(rest_s, over)

    async def _draw_at(self, backend: Backend, record: Record, attempt: int) -> None:
        request = record.request
        began = time.monotonic()
        # A new id for each attempt: an instance refuses an id that it knows, and it may know ids
        # from before a restart of this process.
        own_id = f"{request.id[:48]}-{attempt}-{secrets.token_hex(4)}"
        body = schemas.from_request(request) | {"id": own_id, "keep": False}
        facts = self._begun_with[request.id]
        answers = stream(self._client, backend.url, body, digest_of(request, facts))
        try:
            async with (
                asyncio.timeout(None) as backend.streams[request.id],
                aclosing(answers) as events,
            ):
                async for event in events:
                    backend.silent = 0
                    if isinstance(event, Queued | Started):
                        continue  # this generator publishes its own
                    if isinstance(event, Error) and event.kind in ELSEWHERE:
                        raise BackendError(str(event.message), str(event.kind))
                    check(event, record, facts)
                    self._registry.publish(record, event)
                    if isinstance(event, Step):
                        self._hear_step(backend, record, event, began)
                    elif isinstance(event, Image):
                        self._registry.extend(record)
                        self._leave(backend, record, pictures=1)
        except TimeoutError as error:
            raise BackendError("stopped responding", "silent") from error
        except BackendError as error:
            if error.reason not in _PASSING:
                backend.healthy = False
            raise
        finally:
            backend.drawing.pop(request.id, None)
            del backend.streams[request.id]

    def _hear_step(self, backend: Backend, record: Record, step: Step, began: float) -> None:
        if step.done == step.total:
            self._observe_pace(record, time.monotonic() - began)
        if step.total - step.done <= min(_AHEAD, step.total // 4):
            self._leave(backend, record, pictures=backend.drawing.get(record.request.id, 0))

    def _leave(self, backend: Backend, record: Record, pictures: int) -> None:
        """Let other pictures have the slots of a request's pictures."""
        num_left = backend.drawing.get(record.request.id, 0) - pictures
        if num_left > 0:
            backend.drawing[record.request.id] = num_left
        else:
            backend.drawing.pop(record.request.id, None)
        self._begin_next()

    def _watch(self, backend: Backend) -> None:
        watching = asyncio.create_task(self._keep_watching(backend))
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)

    async def _keep_watching(self, backend: Backend) -> None:
        while backend.stays or backend.silent < LAST_LOOKS:
            try:
                await self._refresh(backend)
            except Exception as error:  # the checks must go on
                log.error("%s cannot be checked", backend.url, exc_info=error)
                backend.healthy, backend.facts = False, None
            self._follow_most()
            self._begin_next()
            await asyncio.sleep(HEALTH_S)
        log.info("Removed the instance %s", backend.url)
        self._backends.remove(backend)

    async def _refresh(self, backend: Backend) -> None:
        try:
            model, load = await fetch_model(self._client, backend.url)
        except (BackendError, LoopError) as error:
            if self._takes_new(backend):
                log.warning("%s is not used: %s", backend.url, error)
            lost = isinstance(error, BackendError) and error.reason == "lost"
            backend.healthy = False
            backend.silent += lost
            if not lost or backend.silent >= _LOOKS:
                backend.facts = None
            if backend.silent >= _LOOKS:
                _give_up(backend)
            return
        was_used, difference = self._takes_new(backend), differences(model, self.facts)
        is_news = backend.facts is None or backend.agrees(self.facts)
        backend.healthy, backend.silent, backend.facts = True, 0, model
        backend.other_requests = max(0, load.waiting + load.running - len(backend.streams))
        if difference and is_news:
            log.warning("%s is not used: it draws with %s", backend.url, difference)
        elif not was_used and not difference:
            log.info("%s is used again", backend.url)

    def _follow_most(self) -> None:
        """Take over the model of more than half of the instances, if it is another one.

        If no instance has the current model any more, take over the most frequent one. An instance
        that is silent for the first time counts only for the current model.
        """
        current_model = without_offers(self.facts)
        pairs = [
            (backend, without_offers(backend.facts)) for backend in self._backends if backend.facts
        ]
        counts = Counter(
            model for backend, model in pairs if backend.healthy or model == current_model
        )
        num_undecided = sum(backend.undecided for backend in self._backends)
        # A tie goes to a model that draws the same pictures, then to the one that comes first.
        rank = {
            model: (count, not differences(model, current_model)) for model, count in counts.items()
        }
        frequent_model = max(counts, key=lambda model: rank[model], default=current_model)
        is_gone = current_model not in counts and not num_undecided
        if frequent_model != current_model and (
            is_gone or 2 * counts[frequent_model] > counts.total() + num_undecided
        ):
            self._take_over(frequent_model)
        self.facts = self._merged(self.facts)
        for record in list(self._scheduler):
            try:
                admission.check_named(record.request, self.facts)
            except RequestError as error:  # no instance has them any more
                self._registry.end(record, error.kind, error.message)

    def _take_over(self, facts: Facts) -> None:
        """Draw with another model from now on; end waiting requests that it cannot draw."""
        old_facts, self.facts = self.facts, facts
        self.facts = self._merged(facts)
        difference = differences(facts, old_facts) or "with other defaults"
        log.warning("The instances have changed their model: %s", difference)
        self._observer.watch(self.facts, lambda: self.load)
        for record in list(self._scheduler):
            self._end_if_impossible(record)

    def _merged(self, facts: Facts) -> Facts:
        """Return facts with what all usable instances offer; the same if there are none."""
        return merged(
            facts,
            [
                backend.facts
                for backend in self._backends
                if self._takes_new(backend) and backend.facts
            ],
        )


def _give_up(backend: Backend) -> None:
    """Make the requests of an instance begin again elsewhere: it may be stopped, or cut off."""
    for timeout in backend.streams.values():
        if not timeout.expired():
            timeout.reschedule(asyncio.get_running_loop().time())


# Reasons after which an instance is still healthy.
_PASSING = {"full", "too_many", "abandoned"}
# Reasons for which the request did not begin: they do not count as an attempt.
_NOT_BEGUN = {"full", "too_many"}
