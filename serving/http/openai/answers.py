"""Answers of the OpenAI API: JSON, or a stream of server-sent events."""

import asyncio
import base64
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from pydantic_core import to_json

from serving.generator import Event, Image, Preview, RequestError
from serving.http.errors import error_body
from serving.http.formats import Format

COMMENT_S = 15.0


async def finished(followed: AsyncGenerator[Event], output: Format) -> list[bytes]:
    """Return the files of all pictures, in order."""
    files: dict[int, bytes] = {}
    async with aclosing(followed) as events:
        async for event in events:
            if isinstance(event, Image):
                files[event.index] = await output.encode(event.png)
    return [files[index] for index in sorted(files)]


async def never_silent(parts: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    """Yield the parts, and comments between them: proxies close a stream silent for a minute."""
    task: asyncio.Task[bytes | None] | None = None
    try:
        while True:
            task = asyncio.create_task(_next(parts))
            while not (await asyncio.wait([task], timeout=COMMENT_S))[0]:
                yield KEEPALIVE_COMMENT
            part = task.result()
            if part is None:
                return
            yield part
    finally:
        if task is not None and not task.done():
            task.cancel()  # this closes `parts` too
        else:
            await parts.aclose()


async def _next(parts: AsyncGenerator[bytes]) -> bytes | None:
    return await anext(parts, None)


async def stream(
    followed: AsyncGenerator[Event],
    kind: str,
    common_fields: dict[str, str],
    output: Format,
    partial_images: int,
    addresses: Callable[[Sequence[bytes]], list[str]] | None,
) -> AsyncGenerator[bytes]:
    """Yield the events as server-sent events.

    `kind`: the kind of call that OpenAI's names of events begin with, such as "image_edit".
    `addresses`: makes URLs of files, if wanted.
    """
    previews = 0
    try:
        async with aclosing(followed) as events:
            async for event in events:
                if isinstance(event, Preview) and previews < partial_images:
                    extra_fields = {"output_format": "jpeg", "partial_image_index": previews}
                    yield _sse(
                        f"{kind}.partial_image", event.jpegs[0], common_fields, **extra_fields
                    )
                    previews += 1
                elif isinstance(event, Image):
                    file = await output.encode(event.png)
                    # OpenAI's events always have the file itself.
                    extra_fields = {"url": addresses([file])[0]} if addresses else {}
                    yield _sse(
                        f"{kind}.completed", file, common_fields, usage=_USAGE, **extra_fields
                    )
    except RequestError as error:
        yield _event("error", error_body(error.kind, error.message, error.field))
    else:
        yield format_sse_event(data_str="[DONE]")


def _sse(kind: str, file: bytes, common_fields: dict[str, str], **extra_fields: Any) -> bytes:
    fields = {"type": kind, "created_at": int(time.time()), **_entry(file), **common_fields}
    return _event(kind, fields | extra_fields)


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return format_sse_event(event=name, data_str=to_json(fields).decode())


def _entry(file: bytes) -> dict[str, str]:
    return {"b64_json": base64.b64encode(file).decode()}


def common_fields(size: tuple[int, int], output_format: str) -> dict[str, str]:
    """Return the fields that tell how all pictures of a call were made."""
    return {
        "size": "{}x{}".format(*size),
        "output_format": output_format,
        "background": "opaque",
        "quality": "auto",
    }


def body(
    files: Sequence[bytes],
    common_fields: dict[str, str],
    addresses: Callable[[Sequence[bytes]], list[str]] | None,
) -> dict[str, Any]:
    """Return the JSON body with all files; `addresses` makes URLs of them, if wanted."""
    data = [{"url": url} for url in addresses(files)] if addresses else [*map(_entry, files)]
    # OpenAI's types have no "auto" here.
    shared_fields = {name: value for name, value in common_fields.items() if name != "quality"}
    return {"created": int(time.time()), "data": data} | shared_fields


# Nothing is charged by the token, but a client may rely on the field.
_USAGE = {
    "input_tokens": 0,
    "input_tokens_details": {"image_tokens": 0, "text_tokens": 0},
    "output_tokens": 0,
    "total_tokens": 0,
}
