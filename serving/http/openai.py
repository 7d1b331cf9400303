"""The OpenAI API: pictures from a prompt, and the list of models.

https://platform.openai.com/docs/api-reference/images/create
"""

import asyncio
import base64
import logging
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from pydantic import BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError, to_json

from pipeline.errors import MetadataError
from pipeline.images import metadata
from pipeline.request import SETTINGS
from pipeline.setting_kinds import Seed
from serving.generator import (
    Error,
    ErrorKind,
    Event,
    Generator,
    Image,
    Model,
    Preview,
    Request,
    RequestError,
    differences,
    new_id,
)
from serving.http import schemas
from serving.http.addresses import address_of
from serving.http.auth import ApiKeys
from serving.http.errors import as_refusal, error_body
from serving.http.openai_files import LIFETIME_S, Files
from serving.logs import log_fields
from serving.messages import Code, Message

T = TypeVar("T")
log = logging.getLogger(__name__)

COMMENT_S = 15.0
MAX_N = 10
# Seconds that a call with some pictures drawn waits for room in the queue or for the rate limit.
PATIENCE_S = 120.0
_PASSING = (ErrorKind.FULL, ErrorKind.TOO_MANY, ErrorKind.UNAVAILABLE)

_SAFE_NAME = re.compile(r"\w{1,40}", re.ASCII)
_MOST_NAMES = 20  # in a line of the log


def _refuse_transparency(background: Any) -> Any:
    if background == "transparent":
        raise PydanticCustomError(
            "transparent", "transparent is not possible here; use 'opaque' or 'auto'"
        )
    return background


Ignored = Annotated[Any, Field(description="Accepted and ignored.")]
Background = Annotated[Literal["auto", "opaque"] | None, BeforeValidator(_refuse_transparency)]


class ImagesBody(schemas.Body):
    """OpenAI's parameters, and the settings that every request here can have.

    Every parameter may be null. Unknown ones are ignored, so that newer clients work.
    """

    model_config = ConfigDict(extra="allow")

    n: int | None = Field(1, ge=1, le=MAX_N, description="Number of pictures.")
    size: str | None = Field("auto", pattern=f"^(auto|{schemas.SIZE})$", description="WxH")
    response_format: Literal["b64_json", "url"] | None = Field(
        "b64_json", description="A URL can be fetched for an hour, without a key."
    )
    output_format: Literal["png", "jpeg", "webp"] | None = "png"
    output_compression: int | None = Field(
        None,
        ge=0,
        le=100,
        description=f"Quality of JPEG and WebP files, {metadata.QUALITY} unless given.",
    )
    background: Background = "auto"
    stream: bool | None = False
    partial_images: int | None = Field(
        0, ge=0, le=3, description="Number of previews to send; needs `stream`."
    )
    model: str | None = Field(
        None, max_length=200, description="Ignored; the served model is used."
    )
    complexity: Ignored = None
    frame_count: Ignored = None
    frame_duration_ms: Ignored = None
    input_fidelity: Ignored = None
    moderation: Ignored = None
    quality: Ignored = None
    safety_identifier: Ignored = None
    style: Ignored = None
    svg: Ignored = None
    user: Ignored = None


_HINTS = [name for name, field in ImagesBody.model_fields.items() if field.annotation is Any]


@dataclass(frozen=True)
class _Format:
    """The format of a call's files, and one thread that writes them."""

    name: Literal["png", "jpeg", "webp"]
    quality: int
    thread: CapacityLimiter

    async def encode(self, png: bytes) -> bytes:
        """Return a picture's PNG file in this format.

        Raises:
            RequestError: if the format has no room for the picture's settings.
        """
        if self.name == "png":
            return png
        kind = "JPEG" if self.name == "jpeg" else "WEBP"
        try:
            return await anyio.to_thread.run_sync(
                metadata.converted, png, kind, self.quality, limiter=self.thread
            )
        except MetadataError:
            field = "output_format"
            message = Message(Code.TOO_LONG_FOR_FORMAT, {"field": field, "value": self.name})
            raise RequestError(message, field=field) from None


def router(generator: Generator, keys: ApiKeys) -> APIRouter:
    """Build the routes of the OpenAI API."""
    routes = APIRouter(prefix="/v1")
    files = Files()
    one_at_a_time = CapacityLimiter(1)  # leaves the processors to the drawing
    started_at = int(time.time())

    @routes.post("/images/generations", response_class=JSONResponse)
    async def images(body: ImagesBody, sender: HttpRequest) -> Response:
        """Draw pictures as the OpenAI Images API does."""
        model, wanted = generator.model, body.n or 1
        request = schemas.to_request(
            body,
            model,
            visitor=keys.visitor(sender),
            address=address_of(sender),
            size=schemas.parse_size(None if body.size in (None, "auto") else body.size),
            previews=bool(body.stream and body.partial_images),
        )
        parts = list(_parts(request, wanted, model.images_per_request))
        if ignored := _ignored(body, model.name):
            log.info(
                "Ignored in an OpenAI request: %s", ", ".join(ignored), extra=log_fields(parts[0])
            )
        await generator.submit(parts[0])
        # Follow it before the answer begins: it may end, and be forgotten, in between.
        events = _drawn(generator, model, parts, generator.events(parts[0].id))

        quality = metadata.QUALITY if body.output_compression is None else body.output_compression
        output = _Format(body.output_format or "png", quality, one_at_a_time)
        common = _common(request.size or model.sizes[0], output.name)

        def addresses(contents: Sequence[bytes]) -> list[str]:
            names = files.add(contents, address_of(sender), output.name)
            return [str(sender.url_for("picture_file", name=name)) for name in names]

        by_address = body.response_format == "url"
        if body.stream:
            stream = _stream(
                events, common, output, body.partial_images or 0, addresses if by_address else None
            )
            return StreamingResponse(_never_silent(stream), media_type="text/event-stream")
        found = await _while_connected(sender, _finished(events, output))
        data = [{"url": url} for url in addresses(found)] if by_address else [*map(_entry, found)]
        common.pop("quality")  # OpenAI's types have no "auto" here
        return JSONResponse({"created": int(time.time()), "data": data} | common)

    @routes.api_route("/images/files/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def picture_file(name: str) -> Response:
        """Return a picture that was asked for with `response_format` "url"; needs no key."""
        file = files.find(name)
        if file is None:
            raise RequestError(Message(Code.PICTURE_GONE), ErrorKind.UNKNOWN)
        headers = {
            "Content-Disposition": "inline",
            "Cache-Control": f"private, max-age={LIFETIME_S:.0f}, immutable",
        }
        return Response(file.content, media_type=file.media_type, headers=headers)

    @routes.get("/models")
    async def models() -> dict[str, Any]:
        """List the model that is served."""
        return {"object": "list", "data": [_describe_model(generator.model, started_at)]}

    @routes.get("/models/{model:path}")  # the name of a model on the Hub has a slash
    async def one_model(model: str) -> dict[str, Any]:
        """Describe the model that is served."""
        if model != generator.model.name:
            params = {"field": "model", "value": model, "choices": [generator.model.name]}
            message = Message(Code.UNKNOWN_CHOICE, params)
            raise RequestError(message, ErrorKind.UNKNOWN, field="model")
        return _describe_model(generator.model, started_at)

    return routes


def _describe_model(model: Model, started_at: int) -> dict[str, Any]:
    owner, slash, _ = model.name.partition("/")
    owned_by = owner if slash else "local"
    return {"id": model.name, "object": "model", "created": started_at, "owned_by": owned_by}


def _ignored(body: ImagesBody, model: str) -> list[str]:
    """Return the names of the parameters that change nothing, for the log."""
    names = [name for name in _HINTS if getattr(body, name) not in (None, "auto")]
    if body.model not in (None, model):
        names.append("model")
    if body.output_compression is not None and body.output_format in (None, "png"):
        names.append("output_compression")
    if body.partial_images and not body.stream:
        names.append("partial_images")
    # A client chooses these names: keep line breaks and texts out of the log.
    unknown = [name if _SAFE_NAME.fullmatch(name) else "?" for name in body.model_extra or ()]
    return [*names, *dict.fromkeys(unknown)][:_MOST_NAMES]


# --- more pictures than the model draws at once ---


def _parts(request: Request, images: int, at_once: int) -> Iterator[Request]:
    """Split a request for `images` pictures into requests for up to `at_once` pictures.

    Picture i is the same as in one large request. Only the first part has previews.

    Raises:
        RequestError: if a list of texts does not have one for each picture.
    """
    each = {  # the texts that differ from picture to picture
        field: texts
        for field in ("prompt", "negative_prompt")
        if isinstance(texts := getattr(request, field), tuple)
    }
    for field, texts in each.items():
        if len(texts) != images:
            params = {"field": field, "count": len(texts), "images": images}
            raise RequestError(Message(Code.WRONG_COUNT, params), field=field)
    seeds = [name for name, setting in SETTINGS.items() if isinstance(setting, Seed)]
    for first in range(0, images, at_once):
        part = slice(first, first + at_once)
        values = request.of_picture(first)
        yield replace(
            request,
            id=new_id(),
            images=min(at_once, images - first),
            previews=request.previews and first == 0,
            **{name: values[name] for name in seeds},
            **{field: texts[part] for field, texts in each.items()},
        )


async def _drawn(
    generator: Generator, model: Model, parts: Sequence[Request], begun: AsyncGenerator[Event]
) -> AsyncGenerator[Event]:
    """Yield the events of all parts, with the pictures numbered across the parts.

    Each part is submitted when the one before it is done, so that a call has one place in the
    queue. `begun` has the events of the first part, which is submitted already.

    Raises:
        RequestError: if a part is refused or ends without its pictures; no other part follows.
    """
    done = 0
    for part in parts:
        followed = await _admitted(generator, part, model) if done else begun
        async with aclosing(followed) as events:
            async for event in events:
                if isinstance(event, Error):
                    raise as_refusal(event)
                yield (
                    replace(event, index=event.index + done) if isinstance(event, Image) else event
                )
        done += part.images or 0


async def _admitted(generator: Generator, part: Request, model: Model) -> AsyncGenerator[Event]:
    """Submit a later part of a call that began with `model`, and return its events.

    While there is no room for it, wait: a failure would lose the pictures already drawn.

    Raises:
        RequestError: if another model draws now, if the part is refused for another reason, or if
            the wait would be longer than `PATIENCE_S`.
    """
    until = time.monotonic() + PATIENCE_S
    while True:
        if differences(generator.model, model):
            raise RequestError(Message(Code.REPLACED), ErrorKind.UNAVAILABLE)
        try:
            await generator.submit(part)
            return generator.events(part.id)
        except RequestError as error:
            wait_s = max(1.0, error.retry_after_s or 0.0)
            no_room = error.kind in _PASSING
            if not no_room or time.monotonic() + wait_s > until:
                raise
        await asyncio.sleep(wait_s)


# --- answers ---


async def _finished(followed: AsyncGenerator[Event], output: _Format) -> list[bytes]:
    """Return the files of all pictures, in order."""
    found: dict[int, bytes] = {}
    async with aclosing(followed) as events:
        async for event in events:
            if isinstance(event, Image):
                found[event.index] = await output.encode(event.png)
    return [found[index] for index in sorted(found)]


async def _while_connected(sender: HttpRequest, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns; cancel it when the sender hangs up."""
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(_hung_up(sender))
    try:
        await asyncio.wait([working, gone], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise RequestError(Message(Code.ABANDONED), ErrorKind.ABANDONED)  # the client is gone
        return working.result()
    finally:
        working.cancel()
        gone.cancel()


async def _hung_up(sender: HttpRequest) -> None:
    while (await sender.receive())["type"] != "http.disconnect":
        pass


async def _never_silent(parts: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    """Yield the parts, and comments between them: proxies close a stream silent for a minute."""
    coming: asyncio.Task[bytes | None] | None = None
    try:
        while True:
            coming = asyncio.create_task(_next(parts))
            while not (await asyncio.wait([coming], timeout=COMMENT_S))[0]:
                yield KEEPALIVE_COMMENT
            part = coming.result()
            if part is None:
                return
            yield part
    finally:
        if coming is not None and not coming.done():
            coming.cancel()  # this closes `parts` too
        else:
            await parts.aclose()


async def _next(parts: AsyncGenerator[bytes]) -> bytes | None:
    return await anext(parts, None)


async def _stream(
    followed: AsyncGenerator[Event],
    common: dict[str, str],
    output: _Format,
    partial_images: int,
    addresses: Callable[[Sequence[bytes]], list[str]] | None,
) -> AsyncGenerator[bytes]:
    """Yield the events as server-sent events; `addresses` makes URLs of files, if wanted."""
    previews = 0
    try:
        async with aclosing(followed) as events:
            async for event in events:
                if isinstance(event, Preview) and previews < partial_images:
                    kind = "image_generation.partial_image"
                    more = {"output_format": "jpeg", "partial_image_index": previews}
                    yield _sse(kind, event.jpegs[0], common, **more)
                    previews += 1
                elif isinstance(event, Image):
                    file = await output.encode(event.png)
                    # OpenAI's events always have the file itself.
                    more = {"url": addresses([file])[0]} if addresses else {}
                    kind = "image_generation.completed"
                    yield _sse(kind, file, common, usage=_USAGE, **more)
    except RequestError as error:
        yield _event("error", error_body(error.kind, error.message, error.field))
    else:
        yield format_sse_event(data_str="[DONE]")


def _sse(kind: str, file: bytes, common: dict[str, str], **others: Any) -> bytes:
    fields = {"type": kind, "created_at": int(time.time()), **_entry(file), **common}
    return _event(kind, fields | others)


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return format_sse_event(event=name, data_str=to_json(fields).decode())


def _entry(file: bytes) -> dict[str, str]:
    return {"b64_json": base64.b64encode(file).decode()}


def _common(size: tuple[int, int], output_format: str) -> dict[str, str]:
    return {
        "size": "{}x{}".format(*size),
        "output_format": output_format,
        "background": "opaque",
        "quality": "auto",
    }


# Nothing is charged by the token, but a client may rely on the field.
_USAGE = {
    "input_tokens": 0,
    "input_tokens_details": {"image_tokens": 0, "text_tokens": 0},
    "output_tokens": 0,
    "total_tokens": 0,
}
