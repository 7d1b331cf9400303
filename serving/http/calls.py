"""Calls for pictures that are answered with files: while their clients stay, and in parts."""

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Request as HttpRequest

from pipeline.errors import MetadataError
from pipeline.facts import Facts, differences
from pipeline.images import metadata
from pipeline.request import SETTINGS
from pipeline.setting_kinds import Seed
from serving.generator import (
    Error,
    ErrorKind,
    Event,
    Generator,
    Image,
    Request,
    RequestError,
    new_id,
)
from serving.http.errors import as_refusal
from serving.messages import Code, Message

T = TypeVar("T")

# Seconds that a call with some pictures drawn waits for room in the queue or for the rate limit.
PATIENCE_S = 120.0
_PASSING = (ErrorKind.FULL, ErrorKind.TOO_MANY, ErrorKind.UNAVAILABLE)


async def while_connected(sender: HttpRequest, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns; cancel it when the sender hangs up."""
    task, hang_up = asyncio.ensure_future(work), asyncio.ensure_future(_hung_up(sender))
    try:
        await asyncio.wait([task, hang_up], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RequestError(Message(Code.ABANDONED), ErrorKind.ABANDONED)  # the client is gone
        return task.result()
    finally:
        task.cancel()
        hang_up.cancel()


async def _hung_up(sender: HttpRequest) -> None:
    while (await sender.receive())["type"] != "http.disconnect":
        pass


@dataclass(frozen=True)
class Format:
    """The format of a call's files.

    Attributes:
        name: its name.
        quality: from 0 to 100; PNG files have none.
        thread: one thread that writes them.
        field: the parameter that named the format, for messages.
    """

    name: Literal["png", "jpeg", "webp"]
    quality: int
    thread: CapacityLimiter
    field: str = "output_format"

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
            message = Message(Code.TOO_LONG_FOR_FORMAT, {"field": self.field, "value": self.name})
            raise RequestError(message, field=self.field) from None


def parts_of(request: Request, images: int, at_once: int) -> Iterator[Request]:
    """Split a request for `images` pictures into requests for up to `at_once` pictures.

    Picture i is the same as in one large request. Only the first part has previews.

    Raises:
        RequestError: if a list of texts does not have one for each picture.
    """
    texts_by_field = {  # the texts that differ from picture to picture
        field: texts
        for field in ("prompt", "negative_prompt")
        if isinstance(texts := getattr(request, field), tuple)
    }
    for field, texts in texts_by_field.items():
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
            **{field: texts[part] for field, texts in texts_by_field.items()},
        )


async def drawn(
    generator: Generator,
    facts: Facts,
    parts: Sequence[Request],
    first_events: AsyncGenerator[Event],
) -> AsyncGenerator[Event]:
    """Yield the events of all parts, with the pictures numbered across the parts.

    Each part is submitted when the one before it is done, so that a call has one place in the
    queue. `first_events` has the events of the first part, which is submitted already.

    Raises:
        RequestError: if a part is refused or ends without its pictures; no other part follows.
    """
    num_done = 0
    for part in parts:
        followed = await admitted(generator, part, facts) if num_done else first_events
        async with aclosing(followed) as events:
            async for event in events:
                if isinstance(event, Error):
                    raise as_refusal(event)
                yield (
                    replace(event, index=event.index + num_done)
                    if isinstance(event, Image)
                    else event
                )
        num_done += part.images or 0


async def admitted(generator: Generator, part: Request, facts: Facts) -> AsyncGenerator[Event]:
    """Submit a later part of a call that began with `model`, and return its events.

    While there is no room for it, wait: a failure would lose the pictures already drawn.

    Raises:
        RequestError: if another model draws now, if the part is refused for another reason, or if
            the wait would be longer than `PATIENCE_S`.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        if differences(generator.facts, facts):
            raise RequestError(Message(Code.REPLACED), ErrorKind.UNAVAILABLE)
        try:
            await generator.submit(part)
            return generator.events(part.id)
        except RequestError as error:
            wait_s = max(1.0, error.retry_after_s or 0.0)
            no_room = error.kind in _PASSING
            if not no_room or time.monotonic() + wait_s > deadline:
                raise
        await asyncio.sleep(wait_s)
