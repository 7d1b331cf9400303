"""Drawer that sends requests to other instances over HTTP. Needs no model and no JAX."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from pipeline.facts import Facts, digest_of, without_offers
from serving.generator import (
    Error,
    ErrorKind,
    Image,
    Length,
    Pictured,
    Queued,
    RequestError,
    Started,
    Step,
)
from serving.generators.backends import Backend, Backends
from serving.generators.client import (
    ELSEWHERE,
    BackendError,
    Client,
    check,
    fetch_length,
    fetch_thumbnail,
    stream,
)
from serving.http import schemas
from serving.logs import log_fields
from serving.messages import Code, Message
from serving.metrics import Observer
from serving.requests import admission
from serving.requests.lifecycle import MAX_FINISHING, Drawer
from serving.requests.record import Record

log = logging.getLogger(__name__)

# Attempts per request. Five survive bad luck; a request that crashes instances stops here.
ATTEMPTS = 5
# Steps before the end of a request at which others are sent: its slots are free when they arrive.
# Instances queue steps ahead, so they let other pictures in a few steps before they tell the last.
_AHEAD = 3
# Reasons after which an instance is still healthy.
_PASSING = {"full", "too_many", "abandoned"}
# Reasons for which the request did not begin: they do not count as an attempt.
_NOT_BEGUN = {"full", "too_many"}


@dataclass(eq=False)
class _Sent:
    """A request that has begun.

    Attributes:
        facts: about the model that it began with.
        backends: the instances that it was sent to.
        next_backend: resolves to the instance that will draw it; None while it has one.
        task: draws it, once that has begun.
    """

    record: Record
    facts: Facts
    backends: list[Backend] = field(default_factory=list)
    next_backend: "asyncio.Future[Backend] | None" = None
    task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> "asyncio.Future[Backend] | None":
        """The future that it waits for, if no instance was found for it yet."""
        future = self.next_backend
        return None if future is None or future.done() else future


class RemoteDrawer(Drawer):
    """Drawer that sends requests to other instances.

    Requests wait here, in one queue that is fair to visitors. An instance is sent requests while it
    has a free slot for a picture. A request whose instance is lost begins again on another one,
    with the same seed and so with the same pictures. It keeps the model it began with for as long
    as an instance has it.
    """

    def __init__(
        self, client: Client, urls: Sequence[str], facts: Facts, observer: Observer
    ) -> None:
        self._client = client
        self._observer = observer
        self._sent: dict[str, _Sent] = {}  # by the id of the request
        self.backends = Backends(client, urls, facts, self._check_waiting)

    @property
    def facts(self) -> Facts:
        """See `Drawer.facts`."""
        return self.backends.facts

    @property
    def slots(self) -> int:
        """See `Drawer.slots`."""
        return self.backends.slots

    @property
    def slots_in_use(self) -> int:
        """See `Drawer.slots_in_use`."""
        return self.backends.slots_in_use

    @property
    def has_room(self) -> bool:
        """See `Drawer.has_room`."""
        num_drawn = sum(len(backend.drawing) for backend in self.backends)
        num_waiting = sum(sent.waiting is not None for sent in self._sent.values())
        # Requests that are drawn, and whose pictures are still being sent.
        return len(self._sent) - num_drawn - num_waiting < MAX_FINISHING * self.slots

    @property
    def takes_all(self) -> bool:
        """See `Drawer.takes_all`."""
        return True

    @property
    def suits(self) -> Callable[[Record], bool]:
        """See `Drawer.suits`."""
        return lambda record: self.backends.suits(record.request)

    async def open(self) -> None:
        """See `Drawer.open`."""
        self.backends.open()

    async def close(self) -> None:
        """See `Drawer.close`."""
        self.backends.close()
        await self._client.aclose()

    async def measure(self, prompt: str, prompt_syntax: str, steps: int | None) -> Length | None:
        """See `Drawer.measure`."""
        body = {"prompt": prompt, "prompt_syntax": prompt_syntax, "num_inference_steps": steps}
        for backend in self.backends.usable:
            return await fetch_length(self._client, backend.url, body)
        return None

    async def thumbnail(self, kind: Pictured, name: str) -> bytes | None:
        """See `Drawer.thumbnail`."""
        for backend in self.backends.usable:
            entries = getattr(backend.facts, kind, ())
            if any(entry.name == name and entry.pictured for entry in entries):
                return await fetch_thumbnail(self._client, backend.url, kind, name)
        return None

    # --- turns

    def place(self, record: Record) -> bool:
        """See `Drawer.place`."""
        if record.turns > 1:
            return self.backends.best(record.request, self.facts) is not None
        if self.backends.reserve(record.request, self.facts) is None:
            return False
        self._sent[record.request.id] = _Sent(record, self.facts)
        return True

    def stop(self, record: Record) -> None:
        """See `Drawer.stop`."""
        # Closing the connection makes the instance stop within two steps.
        sent = self._sent.get(record.request.id)
        if sent and sent.task and sent.task is not asyncio.current_task():
            sent.task.cancel()

    def end(self, record: Record) -> None:
        """See `Drawer.end`."""
        for backend in self.backends:  # it may have ended before it was sent
            backend.finish(record.request.id)
        del self._sent[record.request.id]
        self._begin_again()

    # --- drawing

    async def draw(self, record: Record) -> None:
        """See `Drawer.draw`."""
        sent = self._sent[record.request.id]
        sent.task = asyncio.current_task()
        attempt, reason = 1, ""
        while attempt <= ATTEMPTS:
            backend = await self._backend_for(sent)
            sent.backends.append(backend)
            if reason:
                self._observer.retried(reason)
                self.requests.publish(record, Started(attempt))
                reason = ""
            try:
                await self._draw_at(backend, sent, attempt)
                return
            except BackendError as error:
                log.warning("%s %s", backend.url, error, extra=log_fields(record.request))
                if record.ending:  # it is over: do not begin it again
                    return
                if error.reason in _PASSING:
                    self.backends.rest(backend, error.retry_after_s, self._begin_next)
                if error.reason not in _NOT_BEGUN:
                    attempt, reason = attempt + 1, error.reason
        self._fail(record, ErrorKind.UNAVAILABLE, Code.UNAVAILABLE)

    async def _backend_for(self, sent: _Sent) -> Backend:
        """Return the instance that is to draw a request; its `drawing` has the request's id.

        If no instance can draw it now, wait for one until the request's deadline. Other requests
        can begin meanwhile.
        """
        for backend in self.backends:
            if sent.record.request.id in backend.drawing:
                return backend
        sent.next_backend = asyncio.get_running_loop().create_future()
        self._begin_next()
        try:
            return await sent.next_backend
        finally:
            sent.next_backend = None

    def _begin_next(self) -> None:
        self._begin_again()
        self.requests.begin_next()

    def _begin_again(self) -> None:
        """Reserve instances for the requests that begin again: they come before the queue."""
        for sent in self._sent.values():
            if (waiting := sent.waiting) is None:
                continue
            if not self._goes_on(sent):
                waiting.cancel()
            elif backend := self.backends.reserve(sent.record.request, sent.facts, sent.backends):
                waiting.set_result(backend)

    def _goes_on(self, sent: _Sent) -> bool:
        """Return whether a request can begin again; end it if it cannot.

        If no instance has the model and the files that it began with, it begins again with those
        of now. It cannot if some of its pictures are there: the others must not be drawn otherwise.
        """
        record, request = sent.record, sent.record.request
        digest = digest_of(request, sent.facts)
        if digest == digest_of(request, self.facts):
            return True
        if any(backend.has_all(request, digest) for backend in self.backends):
            return True
        if record.images:
            self._fail(record, ErrorKind.UNAVAILABLE, Code.REPLACED)
        else:
            self._end_if_impossible(record)
            sent.facts = self.facts
        return not record.ending

    def _end_if_impossible(self, record: Record) -> None:
        """End a request that the model cannot draw, not even with the sizes that are to come."""
        facts = replace(self.facts, more_sizes=self.facts.more_sizes + self.facts.coming_sizes)
        try:
            admission.check_fields(record.request, facts)
        except RequestError as error:
            self._fail(record, error.kind, Code.REPLACED)

    def _check_waiting(self, old_facts: Facts) -> None:
        """End the waiting requests that no instance can draw any more, and begin others."""
        if without_offers(self.facts) != without_offers(old_facts):
            self._observer.watch(self.facts, lambda: self.requests.load)
            for record in self.requests.waiting:
                self._end_if_impossible(record)
        for record in self.requests.waiting:
            try:
                admission.check_named(record.request, self.facts)
            except RequestError as error:  # no instance has them any more
                self.requests.publish(record, Error(error.kind, error.message))
        self._begin_next()

    def _fail(self, record: Record, kind: ErrorKind, code: Code) -> None:
        self.requests.publish(record, Error(kind, Message(code)))

    async def _draw_at(self, backend: Backend, sent: _Sent, attempt: int) -> None:
        record, request = sent.record, sent.record.request
        began = time.monotonic()
        # A new id for each attempt: an instance refuses an id that it knows, and it may know ids
        # from before a restart of this process.
        new_id = f"{request.id[:48]}-{attempt}-{secrets.token_hex(4)}"
        body = schemas.from_request(request) | {"id": new_id, "keep": False}
        answers = stream(self._client, backend.url, body, digest_of(request, sent.facts))
        try:
            async with (
                asyncio.timeout(None) as backend.streams[request.id],
                aclosing(answers) as events,
            ):
                async for event in events:
                    backend.silent = 0
                    if isinstance(event, Queued | Started):
                        continue  # the lifecycle publishes its own
                    if isinstance(event, Error) and event.kind in ELSEWHERE:
                        raise BackendError(str(event.message), str(event.kind))
                    check(event, record, sent.facts)
                    self.requests.publish(record, event)
                    if isinstance(event, Step):
                        self._hear_step(backend, record, event, began)
                    elif isinstance(event, Image):
                        self.requests.extend(record)
                        backend.finish(request.id, pictures=1)
                        self._begin_next()
        except TimeoutError as error:
            raise BackendError("stopped responding", "silent") from error
        except BackendError as error:
            if error.reason not in _PASSING:
                backend.healthy = False
            raise
        finally:
            backend.finish(request.id)
            del backend.streams[request.id]

    def _hear_step(self, backend: Backend, record: Record, step: Step, began: float) -> None:
        if step.done == step.total:
            self.requests.observe_pace(record, time.monotonic() - began)
        if step.total - step.done <= min(_AHEAD, step.total // 4):
            backend.finish(record.request.id)
            self._begin_next()
