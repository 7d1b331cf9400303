"""Requests drawn by other instances of this program, over HTTP. Needs no model and no JAX."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

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

ATTEMPTS = 3
LENGTH_WITHIN_S = 2.0  # after which a visitor who types has typed on
# Between two looks at an instance.
HEALTH_S = 5.0
# A stream says something at least every 15 seconds, if only that it lives.
_PNG, _JPEG = b"\x89PNG", b"\xff\xd8\xff"
_TIMEOUT = httpx.Timeout(10.0, read=40.0)


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
    """One other instance."""

    url: str
    healthy: bool = True
    requests: set[str] = field(default_factory=set)  # ids of what it is drawing


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
        self._looking: asyncio.Task[None] | None = None
        super().__init__(model, limits, rates, observer)

    async def close(self, within_s: float) -> None:
        """See `serving.generator.Generator.close`."""
        await super().close(within_s)
        if self._looking:
            self._looking.cancel()
        await self._client.aclose()

    async def open(self) -> None:
        """See `serving.generator.Generator.open`."""
        self._looking = asyncio.create_task(self._look_forever())

    async def measure(self, prompt: str) -> Length | None:
        """See `serving.generator.Generator.measure`."""
        backend = self._least_busy([])
        return backend and await fetch_length(self._client, backend.url, prompt)

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
            backend = self._least_busy(tried)
            if backend is None:  # one may come back
                await asyncio.sleep(2 * HEALTH_S)
                backend = self._least_busy(tried)
            if backend is None:
                break
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

    def _least_busy(self, tried: list[Backend]) -> Backend | None:
        """A healthy instance, rather not one that was tried before."""
        healthy = [backend for backend in self._backends if backend.healthy]
        return min(
            healthy,
            key=lambda backend: (tried.count(backend), len(backend.requests)),
            default=None,
        )

    async def _draw_at(self, backend: Backend, record: Record, attempt: int) -> None:
        request = record.request
        backend.requests.add(request.id)
        began = time.monotonic()
        body = wire.from_request(request) | {"id": f"{request.id[:60]}-{attempt}", "keep": False}
        try:
            async for event in stream(self._client, backend.url, body):
                if isinstance(event, Queued | Started):
                    continue  # it is this instance that says so
                if isinstance(event, Error) and event.kind in _ELSEWHERE:
                    raise BackendError(event.message, str(event.kind))
                _check(event, record, self.model)
                self._desk.publish(record, event)
                if isinstance(event, Step) and event.done == event.total:
                    self._speed.observe(request.num_inference_steps, time.monotonic() - began)
                    backend.requests.discard(request.id)
                    self._free(record)
        except BackendError as error:
            if error.reason not in _PASSING:
                backend.healthy = False
            raise
        finally:
            backend.requests.discard(request.id)

    async def _look_forever(self) -> None:
        while True:
            await asyncio.gather(*(self._look_at(backend) for backend in self._backends))
            self._begin_next()
            await asyncio.sleep(HEALTH_S)

    async def _look_at(self, backend: Backend) -> None:
        try:
            model = await fetch_model(self._client, backend.url)
            if not _same(model, self.model):
                raise BackendError(f"it draws with {model.name}, not {self.model.name}", "other")
            healthy = True
        except (BackendError, LoopError) as error:
            healthy = False
            if backend.healthy:
                log.warning("%s is not used: %s", backend.url, error)
        if healthy and not backend.healthy:
            log.info("%s is used again", backend.url)
        backend.healthy = healthy


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


async def fetch_model(client: httpx.AsyncClient, url: str) -> Model:
    """The model that an instance draws with.

    Raises:
        BackendError: it cannot be reached, is not ready, or answers nonsense.
        LoopError: it passes requests on itself.
    """
    try:
        answer = await client.get(f"{url}/v1/model", headers={HOP_HEADER: "1"}, timeout=_TIMEOUT)
    except httpx.HTTPError as error:
        raise BackendError(f"cannot be reached: {error!r}", "lost") from error
    if answer.status_code == 508:
        raise LoopError(words.LOOP)
    if answer.status_code != 200:
        raise BackendError(f"answers {answer.status_code}, not 200", "refused")
    try:
        return TypeAdapter(Model).validate_json(answer.content)
    except ValidationError as error:
        raise BackendError(f"does not say what it draws with: {error}", "nonsense") from error


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
    except (httpx.HTTPError, ValidationError):
        return None


async def stream(
    client: httpx.AsyncClient, url: str, body: dict[str, object]
) -> AsyncIterator[Event]:
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
    except httpx.HTTPError as error:
        raise BackendError(f"was lost: {error!r}", "lost") from error
    except ValueError as error:
        raise BackendError(f"answers nonsense: {str(error)[:200]}", "nonsense") from error
    raise BackendError("stopped in mid-request", "lost")


def _check(event: Event, record: Record, model: Model) -> None:
    """Passes what a request like this one can hear of."""
    wanted = record.request.images or model.images_per_request
    if isinstance(event, Image) and not (0 <= event.index < wanted and event.png.startswith(_PNG)):
        raise BackendError(f"sends a picture {event.index} that is none", "nonsense")
    if isinstance(event, Preview) and not (
        1 <= len(event.jpegs) <= wanted and all(jpeg.startswith(_JPEG) for jpeg in event.jpegs)
    ):
        raise BackendError("sends a preview that is none", "nonsense")
    if isinstance(event, Done) and record.images < wanted:
        raise BackendError(f"ends with {record.images} of {wanted} pictures", "nonsense")


def _refusal(status: int, content: bytes) -> Error:
    """The error with which an instance refused a request."""
    try:
        error = json.loads(content)["error"]
        return Error(ErrorKind(error["code"]), str(error["message"]))
    except (ValueError, KeyError, TypeError) as cause:
        raise BackendError(f"answers {status}, and not why", "nonsense") from cause


def _same(one: Model, other: Model) -> bool:
    """Whether two instances draw the same pictures of the same request."""
    fields = ("name", "revision", "height", "width", "images_per_request", "max_inference_steps")
    return all(getattr(one, name) == getattr(other, name) for name in fields)
