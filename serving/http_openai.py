"""The OpenAI Images API, as far as it makes sense here.

https://platform.openai.com/docs/api-reference/images/create
"""

import asyncio
import base64
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any, Literal, TypeVar

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from pydantic import Field
from pydantic_core import to_json

from serving import wire, words
from serving.generator import (
    Done,
    Error,
    ErrorKind,
    Event,
    Generator,
    Image,
    Preview,
    Request,
    RequestError,
)
from serving.http_errors import as_refusal, error_body
from serving.http_guard import Keys, address_of

T = TypeVar("T")

COMMENT_S = 15.0


class ImagesBody(wire.Body):
    """OpenAI's parameters, and what every request here can say besides."""

    n: int = Field(1, ge=1, le=4, description="How many pictures.")
    size: str = Field("auto", pattern=f"^(auto|{wire.SIZE})$", description="WxH")
    model: str | None = Field(None, max_length=200, description="Only the one that is served.")
    response_format: Literal["b64_json"] = "b64_json"
    output_format: Literal["png"] = "png"
    quality: Literal["auto"] = "auto"
    background: Literal["auto", "opaque"] = "auto"
    stream: bool = False
    partial_images: int = Field(0, ge=0, le=3, description="With `stream`, if there are any.")


def router(generator: Generator, keys: Keys) -> APIRouter:
    """The route of the OpenAI Images API."""
    routes = APIRouter(prefix="/v1")

    async def submitted(body: ImagesBody, sender: HttpRequest) -> Request:
        model = generator.model
        if body.model not in (None, model.name):
            message = f"model is {body.model!r}; here it can only be {model.name!r}"
            raise RequestError(message, field="model")
        request = wire.to_request(
            body,
            model,
            visitor=keys.visitor(sender),
            address=address_of(sender),
            images=body.n,
            size=wire.parse_size(None if body.size == "auto" else body.size),
            previews=body.stream and body.partial_images > 0,
        )
        await generator.submit(request)
        return request

    @routes.post("/images/generations", response_class=JSONResponse)
    async def images(body: ImagesBody, sender: HttpRequest) -> Response:
        """Draws pictures as the OpenAI Images API does."""
        request = await submitted(body, sender)
        events = generator.events(request.id)
        common = _common(request.size or generator.model.sizes[0])
        if body.stream:
            stream = _stream(events, common, body.partial_images)
            return StreamingResponse(_never_silent(stream), media_type="text/event-stream")
        found = [_entry(image.png) for image in await _while_connected(sender, _finished(events))]
        common.pop("quality")  # a word of its own for "auto" is not foreseen here
        return JSONResponse({"created": int(time.time()), "data": found} | common)

    return routes


async def _finished(followed: AsyncGenerator[Event]) -> list[Image]:
    images: list[Image] = []
    async with aclosing(followed) as events:
        async for event in events:
            if isinstance(event, Image):
                images.append(event)
            elif isinstance(event, Error):
                raise as_refusal(event)
    return images


async def _while_connected(sender: HttpRequest, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives; it is cancelled when the sender hangs up."""
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(_hung_up(sender))
    try:
        await asyncio.wait([working, gone], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise RequestError(words.ABANDONED, ErrorKind.ABANDONED)  # which nobody reads
        return working.result()
    finally:
        working.cancel()
        gone.cancel()


async def _hung_up(sender: HttpRequest) -> None:
    while (await sender.receive())["type"] != "http.disconnect":
        pass


async def _never_silent(parts: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    """Comments in between: proxies take a stream for dead of which nothing comes for a minute."""
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
            coming.cancel()  # which closes `parts`
        else:
            await parts.aclose()


async def _next(parts: AsyncGenerator[bytes]) -> bytes | None:
    return await anext(parts, None)


async def _stream(
    followed: AsyncGenerator[Event], common: dict[str, str], partial_images: int
) -> AsyncGenerator[bytes]:
    previews = 0
    async with aclosing(followed) as events:
        async for event in events:
            if isinstance(event, Preview) and previews < partial_images:
                kind = "image_generation.partial_image"
                about = {"output_format": "jpeg", "partial_image_index": previews}
                yield _sse(kind, event.jpegs[0], common, **about)
                previews += 1
            elif isinstance(event, Image):
                yield _sse("image_generation.completed", event.png, common, usage=_USAGE)
            elif isinstance(event, Error):
                yield _event("error", error_body(event.kind, event.message))
            elif isinstance(event, Done):
                yield format_sse_event(data_str="[DONE]")


def _sse(kind: str, file: bytes, common: dict[str, str], **others: Any) -> bytes:
    fields = {"type": kind, "created_at": int(time.time()), **_entry(file), **common}
    return _event(kind, fields | others)


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return format_sse_event(event=name, data_str=to_json(fields).decode())


def _entry(file: bytes) -> dict[str, str]:
    return {"b64_json": base64.b64encode(file).decode()}


def _common(size: tuple[int, int]) -> dict[str, str]:
    return {
        "size": "{}x{}".format(*size),
        "output_format": "png",
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
