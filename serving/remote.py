"""Requests drawn by other instances of this program, over HTTP. Needs no model and no JAX."""

import asyncio
import dataclasses
import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import httpx
from pydantic import TypeAdapter, ValidationError

from serving import wire, words
from serving.desk import Limits
from serving.generator import (
    Done,
    Error,
    ErrorKind,
    Event,
    Image,
    Length,
    Load,
    Model,
    Preview,
    Queued,
    Started,
    Step,
)
from serving.http_generate import HOP_HEADER
from serving.limits import RateLimits
from serving.observer import Observer
from serving.reception import Reception
from serving.record import Record

log = logging.getLogger(__name__)

# More than any request needs that is only unlucky, and an end for one that is what kills instances.
ATTEMPTS = 5
LENGTH_WITHIN_S = 2.0  # after which a visitor who types has typed on
# Between two looks at an instance, and until it must have answered one.
HEALTH_S = 5.0
ANSWER_S = 5.0
# Looks in a row without an answer, until what an instance draws is begun again elsewhere.
_LOOKS = 2
# The same, until an instance that was not there from the start is forgotten.
LAST_LOOKS = 24
# A stream says something at least every 15 seconds, if only that it lives.
_TIMEOUT = httpx.Timeout(10.0, read=40.0)
# What httpx raises where an instance is lost; and what anyio, below it, does where a connection is
# reset in the moment in which it is made.
_LOST = (httpx.HTTPError, AttributeError)
# httpx counts some connections for ever that were given up before they were made. How many there
# are at a time is limited here by how many instances can draw.
UNLIMITED = httpx.Limits(max_connections=None)
_PNG, _JPEG = b"\x89PNG", b"\xff\xd8\xff"


class BackendError(Exception):
    """An instance that cannot be used, or could not see a request through.

    Attributes:
        reason: one of few words, for the metrics.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class LoopError(Exception):
    """The instance asked passes requests on itself."""


@dataclass
class Backend:
    """One other instance.

    Attributes:
        others: what it had to do at the last look that it was not sent from here.
        drawing: ids of what it is drawing.
        streams: what ends waiting for what it says, by the id of a request.
        silent: looks in a row that it did not answer, with nothing heard of a request meanwhile.
        stays: whether it is looked at for ever, however long it is silent.
        model: what it said that it draws with, at the last look.
    """

    url: str
    stays: bool = True
    healthy: bool = True
    others: int = 0
    drawing: set[str] = field(default_factory=set)
    streams: dict[str, asyncio.Timeout] = field(default_factory=dict)
    silent: int = 0
    model: Model | None = None

    def draws(self, size: tuple[int, int] | None) -> bool:
        """Whether it would do so now; None for the size of who does not ask for one."""
        return self.healthy and (size is None or (bool(self.model) and size in self.model.sizes))


class RemoteGenerator(Reception):
    """A `serving.generator.Generator` that has other instances draw.

    Requests wait here, in one queue that is fair to visitors, and each instance is sent the next
    one when it has drawn the one before. A request whose instance is lost begins again on another,
    with the same seed and so with the same pictures.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        urls: Sequence[str],
        model: Model,
        limits: Limits,
        rates: RateLimits,
        observer: Observer,
    ) -> None:
        self._client = client
        self._backends = [Backend(url) for url in urls]
        self._looking: set[asyncio.Task[None]] = set()
        super().__init__(model, limits, rates, observer)

    async def close(self, within_s: float) -> None:
        """See `serving.generator.Generator.close`."""
        await super().close(within_s)
        for looking in self._looking:
            looking.cancel()
        await self._client.aclose()

    async def open(self) -> None:
        """See `serving.generator.Generator.open`."""
        for backend in self._backends:
            self._look(backend)

    def add(self, url: str) -> None:
        """Has one more instance draw, until it is silent for long; one known already is no news."""
        if all(backend.url != url for backend in self._backends):
            log.info("%s has come", url)
            backend = Backend(url, stays=False, healthy=False)  # until it was looked at
            self._backends.append(backend)
            self._look(backend)

    async def measure(self, prompt: str) -> Length | None:
        """See `serving.generator.Generator.measure`."""
        for backend in self._backends:
            if backend.healthy:
                return await fetch_length(self._client, backend.url, prompt)
        return None

    @property
    def _parallel(self) -> int:
        return sum(backend.healthy for backend in self._backends)

    def _stop(self, record: Record) -> None:
        # Breaking off the connection has the instance stop within one step.
        if (task := self._tasks.get(record.request.id)) and task is not asyncio.current_task():
            task.cancel()

    async def _draw(self, record: Record) -> None:
        tried: list[Backend] = []
        reason = ""
        for attempt in range(1, ATTEMPTS + 1):
            backend = await self._least_busy(record.request.size, tried)
            tried.append(backend)
            if attempt > 1:
                self._observer.retried(reason)
                self._desk.publish(record, Started(attempt))
            try:
                await self._draw_at(backend, record, attempt)
                return
            except BackendError as error:
                log.warning("%s %s", backend.url, error)
                reason = error.reason
        self._desk.end(record, ErrorKind.UNAVAILABLE, words.UNAVAILABLE)

    async def _least_busy(self, size: tuple[int, int] | None, tried: list[Backend]) -> Backend:
        """A healthy instance that draws this size, rather not one that was tried before.

        Where there is none, one may come back: the request's deadline is the end of the wait.
        """
        while not (healthy := [backend for backend in self._backends if backend.draws(size)]):
            await asyncio.sleep(HEALTH_S / 10)
        return min(healthy, key=lambda one: (tried.count(one), len(one.drawing) + one.others))

    async def _draw_at(self, backend: Backend, record: Record, attempt: int) -> None:
        request = record.request
        began = time.monotonic()
        backend.drawing.add(request.id)
        # No instance has drawn under this id before, not even for a front-end that was restarted.
        own_id = f"{request.id[:48]}-{attempt}-{secrets.token_hex(4)}"
        body = wire.from_request(request) | {"id": own_id, "keep": False}
        try:
            async with (
                asyncio.timeout(None) as backend.streams[request.id],
                aclosing(stream(self._client, backend.url, body)) as events,
            ):
                async for event in events:
                    backend.silent = 0
                    if isinstance(event, Queued | Started):
                        continue  # it is this instance that says so
                    if isinstance(event, Error) and event.kind in _ELSEWHERE:
                        raise BackendError(event.message, str(event.kind))
                    _check(event, record, self.model)
                    self._desk.publish(record, event)
                    if isinstance(event, Step) and event.done == event.total:
                        self._speed.observe(request.num_inference_steps, time.monotonic() - began)
                        backend.drawing.discard(request.id)
                        self._free(record)
        except TimeoutError as error:
            raise BackendError("does not answer any more", "silent") from error
        except BackendError as error:
            if error.reason not in _PASSING:
                backend.healthy = False
            raise
        finally:
            backend.drawing.discard(request.id)
            del backend.streams[request.id]

    def _look(self, backend: Backend) -> None:
        looking = asyncio.create_task(self._keep_looking(backend))
        self._looking.add(looking)
        looking.add_done_callback(self._looking.discard)

    async def _keep_looking(self, backend: Backend) -> None:
        while backend.stays or backend.silent < LAST_LOOKS:
            try:
                await self._look_at(backend)
            except Exception as error:  # an instance that is never looked at again would stay lost
                log.error("%s cannot be looked at", backend.url, exc_info=error)
                backend.healthy = False
            self._begin_next()
            await asyncio.sleep(HEALTH_S)
        log.info("%s is forgotten", backend.url)
        self._backends.remove(backend)

    async def _look_at(self, backend: Backend) -> None:
        try:
            model, load = await fetch_model(self._client, backend.url)
            if not _same(model, self.model):
                raise BackendError(f"it draws with {model.name}, not {self.model.name}", "other")
        except (BackendError, LoopError) as error:
            if backend.healthy:
                log.warning("%s is not used: %s", backend.url, error)
            backend.healthy = False
            backend.silent += isinstance(error, BackendError) and error.reason == "lost"
            if backend.silent >= _LOOKS:
                _give_up(backend)
            return
        if not backend.healthy:
            log.info("%s is used again", backend.url)
        backend.healthy, backend.silent, backend.model = True, 0, model
        self.model = replace(self.model, **self._sizes())
        backend.others = max(0, load.waiting + load.running - len(backend.streams))

    def _sizes(self) -> dict[str, tuple[tuple[int, int], ...]]:
        """Those that any instance draws, or will, that can be asked now."""
        models = [each.model for each in self._backends if each.healthy and each.model]
        more = dict.fromkeys(size for model in models for size in model.more_sizes)
        coming = dict.fromkeys(size for model in models for size in model.coming_sizes)
        return {
            "more_sizes": tuple(more),
            "coming_sizes": tuple(size for size in coming if size not in more),
        }


def _give_up(backend: Backend) -> None:
    """Has what an instance draws begun again elsewhere: it may be stopped, or cut off."""
    for until in backend.streams.values():
        if not until.expired():
            until.reschedule(asyncio.get_running_loop().time())


# Endings that another instance may well spare the request.
_ELSEWHERE = {
    ErrorKind.STOPPING,
    ErrorKind.UNAVAILABLE,
    ErrorKind.FULL,
    ErrorKind.TOO_MANY,
    ErrorKind.ABANDONED,
    ErrorKind.DUPLICATE,
    ErrorKind.UNAUTHORISED,
    ErrorKind.LOOP,
}
# Reasons that do not speak against an instance for other requests.
_PASSING = {"full", "too_many", "abandoned"}


@dataclass(frozen=True, kw_only=True)
class _Answer(Model):
    """What an instance says about itself."""

    load: Load


async def fetch_model(client: httpx.AsyncClient, url: str) -> tuple[Model, Load]:
    """The model that an instance draws with, and how busy it is.

    Raises:
        BackendError: it cannot be reached, is not ready, is shutting down, or answers nonsense.
        LoopError: it passes requests on itself.
    """
    try:
        answer = await client.get(f"{url}/v1/model", headers={HOP_HEADER: "1"}, timeout=ANSWER_S)
    except (*_LOST, httpx.InvalidURL) as error:
        raise BackendError(f"cannot be reached: {error!r}", "lost") from error
    if answer.status_code == 508:
        raise LoopError(words.LOOP)
    if answer.status_code != 200:
        raise BackendError(f"answers {answer.status_code}, not 200", "refused")
    try:
        found = TypeAdapter(_Answer).validate_json(answer.content)
    except ValidationError as error:
        raise BackendError(f"does not say what it draws with: {error}", "nonsense") from error
    if not found.load.accepting:
        raise BackendError("takes in nothing at the moment", "stopping")
    fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(Model)}
    return Model(**fields), found.load


async def fetch_length(client: httpx.AsyncClient, url: str, prompt: str) -> Length | None:
    """How long a prompt is for the model of an instance, if it answers."""
    try:
        answer = await client.post(
            f"{url}/v1/length",
            json={"prompt": prompt},
            headers={HOP_HEADER: "1"},
            timeout=LENGTH_WITHIN_S,
        )
        return TypeAdapter(Length).validate_json(answer.raise_for_status().content)
    except (*_LOST, ValidationError):
        return None


async def stream(
    client: httpx.AsyncClient, url: str, body: dict[str, object]
) -> AsyncGenerator[Event]:
    """The events of a request that is sent to an instance, up to its ending.

    Raises:
        BackendError: it is lost, refuses, or answers nonsense.
    """
    headers = {HOP_HEADER: "1"}
    try:
        async with client.stream(
            "POST", f"{url}/v1/generate", json=body, headers=headers, timeout=_TIMEOUT
        ) as answer:
            if answer.status_code != 200:
                yield _refusal(answer.status_code, await answer.aread())
                return
            name = ""
            async for line in answer.aiter_lines():
                kind, _, value = line.partition(": ")
                if kind == "event":
                    name = value
                elif kind == "data":
                    event = wire.to_event(name, value)
                    yield event
                    if isinstance(event, Done | Error):
                        return
    except _LOST as error:
        raise BackendError(f"was lost: {error!r}", "lost") from error
    except ValueError as error:
        raise BackendError(f"answers nonsense: {str(error)[:200]}", "nonsense") from error
    raise BackendError("stopped in mid-request", "lost")


def _check(event: Event, record: Record, model: Model) -> None:
    """Passes what a request like this one can hear of."""
    wanted = record.request.images or model.images_per_request
    if isinstance(event, Image) and not (0 <= event.index < wanted and event.png.startswith(_PNG)):
        raise BackendError(f"sends a picture {event.index} that is none", "nonsense")
    if isinstance(event, Image) and not _may_be_unblurred(event, record):
        raise BackendError("sends a picture unblurred that is not to be", "nonsense")
    if isinstance(event, Preview) and not (
        1 <= len(event.jpegs) <= wanted and all(jpeg.startswith(_JPEG) for jpeg in event.jpegs)
    ):
        raise BackendError("sends a preview that is none", "nonsense")
    if isinstance(event, Done) and record.images < wanted:
        raise BackendError(f"ends with {record.images} of {wanted} pictures", "nonsense")


def _may_be_unblurred(image: Image, record: Record) -> bool:
    """Whether what came with a picture, if anything, is a picture that was asked for."""
    unblurred = image.unblurred
    return unblurred is None or (record.request.unblurred and unblurred.startswith(_PNG))


def _refusal(status: int, content: bytes) -> Error:
    """The error with which an instance refused a request."""
    try:
        error = json.loads(content)["error"]
        return Error(ErrorKind(error["code"]), str(error["message"]))
    except (ValueError, KeyError, TypeError) as cause:
        raise BackendError(f"answers {status}, and not why", "nonsense") from cause


def _same(one: Model, other: Model) -> bool:
    """Whether two instances draw the same pictures of the same request."""
    fields = (
        "name",
        "revision",
        "height",
        "width",
        "images_per_request",
        "max_inference_steps",
        "safety_checker",
        "screened",
    )
    return all(getattr(one, name) == getattr(other, name) for name in fields)
