"""Requests drawn by other instances of this program, over HTTP. Needs no model and no JAX."""

import asyncio
import dataclasses
import json
import logging
import math
import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
from pydantic import TypeAdapter, ValidationError

from pipeline.metadata import Settings
from serving import wire, words
from serving.desk import Limits
from serving.generator import (
    MAX_SEED,
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
    Request,
    Started,
    Step,
)
from serving.http_generate import HOP_HEADER
from serving.limits import RateLimits
from serving.logs import about
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
# How long an instance that refuses requests for the moment is spared, whatever it says.
_LEAST_REST_S, _MOST_REST_S = 0.5, 60.0
# A stream says something at least every 15 seconds, if only that it lives.
_TIMEOUT = httpx.Timeout(10.0, read=40.0)
# Above these it is nonsense: an event has at most one picture, twice, or previews.
_MAX_ANSWER_BYTES, _MAX_LINE_BYTES = 2**20, 2**26
# As many bytes as were counted: what is small must not become large by being unpacked.
_HEADERS = {HOP_HEADER: "1", "Accept-Encoding": "identity"}
_PNG, _JPEG = b"\x89PNG", b"\xff\xd8\xff"


class BackendError(Exception):
    """An instance that cannot be used, or could not see a request through.

    Attributes:
        reason: one of few words, for the metrics.
        retry_after_s: when asking again makes sense, if it said so.
    """

    def __init__(self, message: str, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class Client(httpx.AsyncClient):
    """For a `RemoteGenerator`; sends these headers with everything."""

    def __init__(self, headers: dict[str, str] | None = None) -> None:
        # httpx counts some connections for ever that were given up before they were made. How many
        # there are at a time is limited here by how many instances can draw.
        super().__init__(headers=headers, limits=httpx.Limits(max_connections=None))

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """See `httpx.AsyncClient.send`."""
        try:
            return await super().send(request, **options)
        except AttributeError as error:
            # From anyio, where a connection is reset in the moment in which it is made.
            raise httpx.ConnectError(str(error), request=request) from error


@dataclass(frozen=True)
class _PutOff:
    """A request that is to be begun again, and the instance that is to draw it, once there is one.

    Attributes:
        tried: those that did not see it through.
    """

    record: Record
    tried: list["Backend"]
    backend: "asyncio.Future[Backend]"


class LoopError(Exception):
    """The instance asked passes requests on itself."""


@dataclass
class Backend:
    """One other instance.

    Attributes:
        others: what it had to do at the last look that it was not sent from here.
        drawing: ids of what it is drawing, or is to draw next; one, if it comes from here.
        streams: what ends waiting for what it says, by the id of a request.
        resting: whether it has said that it takes in nothing more for a moment.
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
    resting: bool = False
    silent: int = 0
    model: Model | None = None

    def draws(self, size: tuple[int, int] | None) -> bool:
        """Whether it would do so now; None for the size of who does not ask for one."""
        free = self.healthy and not self.resting and not self.drawing
        return free and (size is None or (bool(self.model) and size in self.model.sizes))


class RemoteGenerator(Reception):
    """A `serving.generator.Generator` that has other instances draw.

    Requests wait here, in one queue that is fair to visitors, and each instance is sent the next
    one when it has drawn the one before. A request whose instance is lost begins again on another,
    with the same seed and so with the same pictures.
    """

    def __init__(
        self,
        client: Client,
        urls: Sequence[str],
        model: Model,
        limits: Limits,
        rates: RateLimits,
        observer: Observer,
    ) -> None:
        self._client = client
        self._backends = [Backend(url) for url in urls]
        self._looking: set[asyncio.Task[None]] = set()
        self._again: dict[str, _PutOff] = {}
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
        attempt, reason = 1, ""
        while attempt <= ATTEMPTS:
            backend = await self._backend_for(record, tried)
            tried.append(backend)
            if reason:
                self._observer.retried(reason)
                self._desk.publish(record, Started(attempt))
                reason = ""
            try:
                await self._draw_at(backend, record, attempt)
                return
            except BackendError as error:
                log.warning("%s %s", backend.url, error, extra=about(record.request))
                if record.ending:  # the pictures are all there: nobody waits for them again
                    return
                if error.reason in _PASSING:
                    self._rest(backend, error.retry_after_s)
                if error.reason not in _NOT_BEGUN:
                    attempt, reason = attempt + 1, error.reason
        self._desk.end(record, ErrorKind.UNAVAILABLE, words.UNAVAILABLE)

    async def _backend_for(self, record: Record, tried: list[Backend]) -> Backend:
        """The instance that is to draw a request; it has it among its `drawing`.

        Where none can, one may come back: the request's deadline is the end of the wait. Others
        are begun meanwhile, where they can be.
        """
        for backend in self._backends:
            if record.request.id in backend.drawing:
                return backend
        waiting = _PutOff(record, tried, asyncio.get_running_loop().create_future())
        self._again[record.request.id] = waiting
        self._free(record)
        try:
            return await waiting.backend
        finally:
            del self._again[record.request.id]

    @property
    def _put_off(self) -> int:
        return sum(not waiting.backend.done() for waiting in self._again.values())

    def _begin_next(self) -> None:
        # What was begun once comes before what still waits for its turn.
        for request_id, waiting in self._again.items():
            if not waiting.backend.done() and (found := self._find(waiting.record, waiting.tried)):
                self._drawing.add(request_id)
                waiting.backend.set_result(found)
        super()._begin_next()

    def _place(self, record: Record) -> bool:
        return self._find(record, []) is not None

    def _find(self, record: Record, tried: list[Backend]) -> Backend | None:
        """Has a free instance draw a request next, rather not one that was tried before."""
        free = [backend for backend in self._backends if backend.draws(record.request.size)]
        best = min(free, key=lambda one: (tried.count(one), one.others), default=None)
        if best:
            best.drawing.add(record.request.id)
        return best

    def _over(self, record: Record) -> None:
        for backend in self._backends:  # it may have ended before it was sent there
            backend.drawing.discard(record.request.id)
        super()._over(record)

    def _rest(self, backend: Backend, retry_after_s: float | None) -> None:
        """Sends an instance nothing for as long as it wishes."""

        def over() -> None:
            backend.resting = False
            self._begin_next()

        backend.resting = True
        rest_s = min(max(_LEAST_REST_S, retry_after_s or 0.0), _MOST_REST_S)
        asyncio.get_running_loop().call_later(rest_s, over)

    async def _draw_at(self, backend: Backend, record: Record, attempt: int) -> None:
        request = record.request
        began = time.monotonic()
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
# Those of them for which it did not even begin: asking again costs nothing but time.
_NOT_BEGUN = {"full", "too_many"}


@dataclass(frozen=True, kw_only=True)
class _Answer(Model):
    """What an instance says about itself."""

    load: Load


async def fetch_model(client: httpx.AsyncClient, url: str) -> tuple[Model, Load]:
    """The model that an instance draws with, and how busy it is.

    Raises:
        BackendError: it cannot be reached, is not ready, is stuck or shutting down, or answers
            nonsense.
        LoopError: it passes requests on itself.
    """
    try:
        status, content = await _ask(client, "GET", f"{url}/v1/model", ANSWER_S)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        raise BackendError(f"cannot be reached: {error!r}", "lost") from error
    if status == 508:
        raise LoopError(words.LOOP)
    if status != 200:
        raise BackendError(f"answers {status}, not 200", "refused")
    try:
        found = TypeAdapter(_Answer).validate_json(content)
    except ValidationError as error:
        raise BackendError(f"does not say what it draws with: {error}", "nonsense") from error
    if found.load.stuck:  # what it draws is to be begun elsewhere, as if it were gone
        raise BackendError("has devices that say nothing any more", "lost")
    if not found.load.accepting:
        raise BackendError("takes in nothing at the moment", "stopping")
    fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(Model)}
    return Model(**fields), found.load


async def fetch_length(client: httpx.AsyncClient, url: str, prompt: str) -> Length | None:
    """How long a prompt is for the model of an instance, if it answers."""
    body = {"prompt": prompt}
    try:
        status, content = await _ask(client, "POST", f"{url}/v1/length", LENGTH_WITHIN_S, body)
        return TypeAdapter(Length).validate_json(content) if status == 200 else None
    except (httpx.HTTPError, TimeoutError, BackendError, ValidationError):
        return None


async def _ask(
    client: httpx.AsyncClient, method: str, url: str, within_s: float, body: object = None
) -> tuple[int, bytes]:
    """The status and the content of a plain answer; the time is that for all of it.

    Raises:
        TimeoutError: it takes longer, though it may have begun.
        httpx.HTTPError, httpx.InvalidURL: it cannot be had.
        BackendError: it is too large.
    """
    async with (
        asyncio.timeout(within_s),
        client.stream(method, url, json=body, headers=_HEADERS, timeout=within_s) as answer,
    ):
        return answer.status_code, await _content(answer)


async def _content(answer: httpx.Response) -> bytes:
    content = bytearray()
    async for chunk in answer.aiter_raw():
        content += chunk
        if len(content) > _MAX_ANSWER_BYTES:
            raise BackendError("answers without an end", "nonsense")
    return bytes(content)


async def _lines(answer: httpx.Response) -> AsyncIterator[str]:
    line = bytearray()
    async for chunk in answer.aiter_raw():
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line += end
            yield line.decode().removesuffix("\r")
            line.clear()
        line += rest
        if len(line) > _MAX_LINE_BYTES:
            raise BackendError("sends a line without an end", "nonsense")


async def stream(
    client: httpx.AsyncClient, url: str, body: dict[str, object]
) -> AsyncGenerator[Event]:
    """The events of a request that is sent to an instance, up to its ending.

    Raises:
        BackendError: it is lost, refuses, or answers nonsense.
        TimeoutError: it takes long to say why it refuses.
    """
    try:
        async with client.stream(
            "POST", f"{url}/v1/generate", json=body, headers=_HEADERS, timeout=_TIMEOUT
        ) as answer:
            if answer.status_code != 200:
                async with asyncio.timeout(ANSWER_S):
                    content = await _content(answer)
                refused = _refusal(answer.status_code, content)
                if refused.kind in _ELSEWHERE:
                    wait_s = _retry_after_s(answer.headers)
                    raise BackendError(refused.message, str(refused.kind), wait_s)
                yield refused
                return
            name = ""
            async for line in _lines(answer):
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
    except (ValueError, TypeError, RecursionError) as error:
        raise BackendError(f"answers nonsense: {str(error)[:200]}", "nonsense") from error
    raise BackendError("stopped in mid-request", "lost")


def _check(event: Event, record: Record, model: Model) -> None:
    """Passes what a request like this one can hear of."""
    wanted = record.request.images or model.images_per_request
    steps = record.request.num_inference_steps
    if isinstance(event, Step) and not 1 <= event.done <= event.total == steps:
        raise BackendError(f"has done {event.done} of {event.total} steps, not {steps}", "nonsense")
    if isinstance(event, Image) and not (0 <= event.index < wanted and event.png.startswith(_PNG)):
        raise BackendError(f"sends a picture {event.index} that is none", "nonsense")
    if isinstance(event, Image) and not _may_be_unblurred(event, record):
        raise BackendError("sends a picture unblurred that is not to be", "nonsense")
    if isinstance(event, Image) and not (
        event.seed == _seed(record.request, event.index) and _are_settings(event.settings)
    ):
        raise BackendError("sends a picture of another seed, or without settings", "nonsense")
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


def _seed(request: Request, index: int) -> int:
    """That a picture is drawn from; variations are all of the same picture."""
    apart = 0 if request.variation_strength > 0 else index
    return (request.seed + apart) % (MAX_SEED + 1)


def _are_settings(found: dict[str, str | int | float | None]) -> bool:
    """Whether these are of a picture, each of its kind; None is what an older instance left out."""
    if any(isinstance(value, float) and not math.isfinite(value) for value in found.values()):
        return False
    try:
        read = TypeAdapter(Settings).validate_python(found)
    except ValidationError:
        return False
    return found.items() <= dataclasses.asdict(read).items()


def _refusal(status: int, content: bytes) -> Error:
    """The error with which an instance refused a request."""
    try:
        error = json.loads(content)["error"]
        return Error(ErrorKind(error["code"]), str(error["message"]))
    except (ValueError, KeyError, TypeError, RecursionError) as cause:
        raise BackendError(f"answers {status}, and not why", "nonsense") from cause


def _retry_after_s(headers: httpx.Headers) -> float | None:
    said = headers.get("retry-after", "")
    return float(said) if re.fullmatch(r"[0-9]{1,9}", said) else None


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
