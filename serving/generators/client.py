"""HTTP client for other instances of this program, with limits on time and size; needs no JAX."""

import asyncio
import dataclasses
import json
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter, ValidationError

from pipeline.facts import Facts
from pipeline.images.metadata import Settings
from serving.generator import (
    Done,
    Error,
    ErrorKind,
    Event,
    Image,
    Length,
    Load,
    Pictured,
    Preview,
    Step,
)
from serving.http import schemas
from serving.http.events import HOP_HEADER, NO_DIGEST
from serving.messages import Code, Message
from serving.requests.record import Record

LENGTH_WITHIN_S = 2.0  # a visitor who types has typed on by then
ANSWER_S = (
    5.0  # for an instance to describe its model, or to give its reason for refusing a request
)
# A stream sends at least a comment every 15 seconds.
_TIMEOUT = httpx.Timeout(10.0, read=40.0)
# A larger answer is not valid: a model has at most 1000 LoRAs, each with up to 3 KiB of text, and
# an event at most one picture, blurred and not, or previews.
_MAX_ANSWER_BYTES, _MAX_LINE_BYTES = 2**22, 2**26
# No compression: a small answer must not exceed the limits when it is unpacked.
_HEADERS = {HOP_HEADER: NO_DIGEST, "Accept-Encoding": "identity"}
# Errors of one instance after which a request may succeed on another.
ELSEWHERE = {
    ErrorKind.STOPPING,
    ErrorKind.UNAVAILABLE,
    ErrorKind.FULL,
    ErrorKind.TOO_MANY,
    ErrorKind.ABANDONED,
    ErrorKind.DUPLICATE,
    ErrorKind.UNAUTHORISED,
    ErrorKind.LOOP,
}


def http_url(host: str, port: int) -> str:
    """Return the URL of an instance; `host` may be a name, an IPv4 or an IPv6 address."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class BackendError(Exception):
    """Error of an instance that cannot be used, or that did not finish a request.

    Attributes:
        reason: a label for the metrics.
        retry_after_s: seconds after which to ask again, or None.
    """

    def __init__(self, message: str, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class LoopError(Exception):
    """Error of an instance that passes requests on itself."""


class Client(httpx.AsyncClient):
    """HTTP client of a `RemoteDrawer`; sends `headers` with every request."""

    def __init__(self, headers: dict[str, str] | None = None) -> None:
        # No limit: httpx counts some connections for ever that were given up before they were made.
        # The number of instances limits the connections anyway. No keep-alive: a connection that
        # the instance closes just as it is used again would look like a lost instance.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        super().__init__(headers=headers, limits=limits)

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """See `httpx.AsyncClient.send`."""
        try:
            return await super().send(request, **options)
        except AttributeError as error:
            # anyio raises this if a connection is reset while it is made.
            raise httpx.ConnectError(str(error), request=request) from error


@dataclass(frozen=True, kw_only=True)
class _Answer(Facts):
    """Answer of an instance to `GET /v1/model`."""

    load: Load


_ANSWER, _LENGTH = TypeAdapter(_Answer), TypeAdapter(Length)
_SETTINGS = TypeAdapter(Settings)
_PNG, _JPEG = b"\x89PNG", b"\xff\xd8\xff"


async def fetch_model(client: httpx.AsyncClient, url: str) -> tuple[Facts, Load]:
    """Return the model that an instance draws with, and its load.

    Raises:
        BackendError: if the instance cannot be reached, is not ready, is stuck or shutting down,
            or sends an invalid answer.
        LoopError: if the instance passes requests on itself.
    """
    try:
        status, content = await _ask(client, "GET", f"{url}/v1/model", ANSWER_S)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        raise BackendError(f"cannot be reached: {error!r}", "lost") from error
    if status == 508:
        raise LoopError(str(Message(Code.LOOP)))
    if status != 200:
        raise BackendError(f"answers with status {status}, not 200", "refused")
    try:
        answer = _ANSWER.validate_json(content)
    except ValidationError as error:
        message = f"does not describe its model: {_describe(error)}"
        raise BackendError(message, "nonsense") from error
    if answer.load.stuck:  # its requests begin again elsewhere, as after a loss
        raise BackendError("has devices that stopped responding", "lost")
    if not answer.load.accepting:
        raise BackendError("accepts no requests at the moment", "stopping")
    fields = {field.name: getattr(answer, field.name) for field in dataclasses.fields(Facts)}
    return Facts(**fields), answer.load


def _describe(error: ValidationError) -> str:
    """Describe in one line what is missing or wrong; older instances do not send every field."""
    messages = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
    return ", ".join(messages)[:200]


async def fetch_length(
    client: httpx.AsyncClient, url: str, body: dict[str, object]
) -> Length | None:
    """Return the length of a prompt for an instance's model; None if the instance cannot tell.

    `body`: the prompt, its syntax and the number of steps, as in `schemas.LengthBody`.
    """
    try:
        status, content = await _ask(client, "POST", f"{url}/v1/length", LENGTH_WITHIN_S, body)
        return _LENGTH.validate_json(content) if status == 200 else None
    except (httpx.HTTPError, TimeoutError, BackendError, ValidationError):
        return None


async def fetch_thumbnail(
    client: httpx.AsyncClient, url: str, kind: Pictured, name: str
) -> bytes | None:
    """Return the small picture of a LoRA or a model; None if the instance sends none."""
    address = f"{url}/v1/{kind}/{quote(name, safe='')}/picture"
    try:
        status, content = await _ask(client, "GET", address, ANSWER_S)
    except (httpx.HTTPError, TimeoutError, BackendError):
        return None
    return content if status == 200 and content[8:12] == b"WEBP" else None


async def _ask(
    client: httpx.AsyncClient, method: str, url: str, within_s: float, body: object = None
) -> tuple[int, bytes]:
    """Return the status and the content of an answer that is not a stream.

    Raises:
        TimeoutError: if the complete answer takes longer than `within_s` seconds.
        httpx.HTTPError, httpx.InvalidURL: if there is no answer.
        BackendError: if the answer is too large.
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
            raise BackendError("sends an endless answer", "nonsense")
    return bytes(content)


async def _lines(answer: httpx.Response) -> AsyncIterator[str]:
    """Yield the lines of a stream; httpx-sse would keep a line without an end, however long it is.

    Raises:
        BackendError: if a line is longer than `_MAX_LINE_BYTES`.
    """
    line = bytearray()
    async for chunk in answer.aiter_raw():
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line += end
            yield line.decode().removesuffix("\r")
            line.clear()
        line += rest
        if len(line) > _MAX_LINE_BYTES:
            raise BackendError("sends an endless line", "nonsense")


async def stream(
    client: httpx.AsyncClient, url: str, body: dict[str, object], digest: str
) -> AsyncGenerator[Event]:
    """Send a request to an instance, and yield its events up to its ending.

    An instance that would draw it with other files than those of `digest` refuses it.

    Raises:
        BackendError: if the instance is lost, refuses the request, or sends an invalid answer.
        TimeoutError: if a refusal takes longer than `ANSWER_S` seconds.
    """
    try:
        async with client.stream(
            "POST",
            f"{url}/v1/generate",
            json=body,
            headers={**_HEADERS, HOP_HEADER: digest},
            timeout=_TIMEOUT,
        ) as answer:
            if answer.status_code != 200:
                async with asyncio.timeout(ANSWER_S):
                    content = await _content(answer)
                refusal = _refusal(answer.status_code, content)
                if refusal.kind in ELSEWHERE:
                    wait_s = _retry_after_s(answer.headers)
                    raise BackendError(str(refusal.message), str(refusal.kind), wait_s)
                yield refusal
                return
            name = ""
            async for line in _lines(answer):
                kind, _, value = line.partition(": ")
                if kind == "event":
                    name = value
                elif kind == "data":
                    event = schemas.to_event(name, value)
                    yield event
                    if isinstance(event, Done | Error):
                        return
    except httpx.HTTPError as error:
        raise BackendError(f"was lost: {error!r}", "lost") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise BackendError(f"sends an invalid answer: {str(error)[:200]}", "nonsense") from error
    raise BackendError("closed the connection before the request ended", "lost")


def _refusal(status: int, content: bytes) -> Error:
    """Return the error with which an instance refused a request."""
    try:
        error = json.loads(content)["error"]
        kind, text = ErrorKind(error["code"]), str(error["message"])
        code, params = error.get("message_code"), error.get("message_params")
        return Error(kind, schemas.to_message(text, code, params))
    except (ValueError, KeyError, TypeError, RecursionError) as cause:
        raise BackendError(f"answers with status {status} and no reason", "nonsense") from cause


def _retry_after_s(headers: httpx.Headers) -> float | None:
    value = headers.get("retry-after", "")
    return float(value) if re.fullmatch(r"[0-9]{1,9}", value) else None


def check(event: Event, record: Record, facts: Facts) -> None:
    """Check that an event is valid for this request and comes from this model.

    Raises:
        BackendError: if the event is not valid; the message says why.
    """
    num_images = record.request.images or 1
    steps = record.request.drawn_steps
    match event:
        case Step(done, total) if not 1 <= done <= total == steps:
            raise BackendError(f"has done {done} of {total} steps, not {steps}", "nonsense")
        case Image():
            _check_image(event, record, num_images, facts)
        case Preview(jpegs) if not (
            1 <= len(jpegs) <= num_images and all(jpeg.startswith(_JPEG) for jpeg in jpegs)
        ):
            raise BackendError("sends an invalid preview", "nonsense")
        case Done() if record.images < num_images and not record.request.live:
            raise BackendError(f"ends with {record.images} of {num_images} pictures", "nonsense")


def _check_image(image: Image, record: Record, num_images: int, facts: Facts) -> None:
    """Check that a picture is one of this request's."""
    request = record.request
    if not (0 <= image.index < num_images and image.png.startswith(_PNG)):
        raise BackendError(f"sends an invalid picture {image.index}", "nonsense")
    if not _may_be_unblurred(image, record):
        raise BackendError("sends an unblurred picture that was not asked for", "nonsense")
    if image.seed != request.of_picture(image.index)["seed"] or not _are_settings(image.settings):
        raise BackendError("sends a picture with a wrong seed or without settings", "nonsense")
    # An instance may be replaced between two health checks.
    drawn_with = image.settings["model"], image.settings["revision"]
    if drawn_with != ((request.model, None) if request.model else (facts.name, facts.revision)):
        raise BackendError(f"sends a picture that {drawn_with[0]!r} drew", "other")


def _may_be_unblurred(image: Image, record: Record) -> bool:
    """Return whether the unblurred original, if there is one, is a PNG file that was asked for."""
    unblurred = image.unblurred
    return unblurred is None or (record.request.unblurred and unblurred.startswith(_PNG))


def _are_settings(settings: dict[str, str | int | float | None]) -> bool:
    """Return whether these are valid settings of a picture; an older instance may omit some."""
    if any(isinstance(value, float) and not math.isfinite(value) for value in settings.values()):
        return False
    try:
        valid_settings = _SETTINGS.validate_python(settings)
    except ValidationError:
        return False
    return settings.items() <= dataclasses.asdict(valid_settings).items()
