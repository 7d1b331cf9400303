"""Calls for pictures that are answered with files: while their clients stay, and in parts."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

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
    Pause,
    Request,
    RequestError,
    new_id,
)
from serving.http.errors import as_refusal
from serving.http.limits import MAX_CALLS
from serving.messages import Code, Message
from serving.requests.admission import wrong
from serving.requests.inputs import Size, unlikeness
from serving.requests.workers import Workers, once_per_loop

T = TypeVar("T")

# The limits of a side to which pictures are scaled, those of AUTOMATIC1111's page.
MIN_SIDE, MAX_SIDE = 64, 2048
PAUSE_S = 15.0  # between two signs of a call that is answered with a stream
# Seconds that a call with some pictures drawn waits for room in the queue or for the rate limit.
PATIENCE_S = 120.0
# The thread that writes the files of calls; it leaves the other processors to the drawing. A call
# waits for one file at a time, so none is refused.
encoder = once_per_loop(lambda: Workers(1, MAX_CALLS, MAX_CALLS))
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
        address: the network address of the client; addresses take turns at the encoder.
        field: the parameter that named the format, for messages.
        size: the size that pictures are scaled to; None for that in which they are drawn.
    """

    name: Literal["png", "jpeg", "webp"]
    quality: int
    address: str
    field: str = "output_format"
    size: Size | None = None

    async def encode(self, png: bytes) -> bytes:
        """Return a picture's PNG file in this format and size.

        Raises:
            RequestError: if the format has no room for the picture's settings.
        """
        if self.size is None and self.name == "png":
            return png
        try:
            return await encoder().run(self.address, partial(self._file, png))
        except MetadataError:
            message = Message(Code.TOO_LONG_FOR_FORMAT, {"field": self.field, "value": self.name})
            raise RequestError(message, field=self.field) from None

    def _file(self, png: bytes) -> bytes:
        scaled = png if self.size is None else metadata.scaled(png, self.size)
        if self.name == "png":
            return scaled
        return metadata.converted(scaled, "JPEG" if self.name == "jpeg" else "WEBP", self.quality)


def drawn_size(size: Size, facts: Facts) -> Size:
    """Return the size that a model draws for a client that asks for any: the nearest one.

    It has the nearest shape, and of those the nearest number of pixels.

    Raises:
        RequestError: if a side is too short or too long.
    """
    if size in facts.sizes:
        return size
    for field, side in zip(("width", "height"), size, strict=True):
        if not MIN_SIDE <= side <= MAX_SIDE:
            raise wrong(Code.OUT_OF_RANGE, field, value=side, low=MIN_SIDE, high=MAX_SIDE)
    return min(
        facts.sizes,
        key=lambda drawn: (
            unlikeness(drawn, size),
            abs(math.log(math.prod(drawn) / math.prod(size))),
        ),
    )


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
    generator: Generator, facts: Facts, parts: Sequence[Request]
) -> AsyncGenerator[Event]:
    """Yield the events of all parts, with the pictures numbered across the parts.

    Each part is submitted when the one before it is done, so that a call has one place in the
    queue.

    Raises:
        RequestError: if a part is refused or ends without its pictures; no other part follows.
    """
    num_done = 0
    for part in parts:
        async with aclosing(followed(generator, facts, part, patient=num_done > 0)) as events:
            async for event in events:
                if isinstance(event, Error):
                    raise as_refusal(event)
                yield (
                    replace(event, index=event.index + num_done)
                    if isinstance(event, Image)
                    else event
                )
        num_done += part.images or 0


async def followed(
    generator: Generator, facts: Facts, part: Request, *, patient: bool
) -> AsyncGenerator[Event]:
    """Submit a part of a call that began with these facts, and yield its events, with pauses.

    With `patient`, wait while there is no room for it: a failure would lose the pictures already
    drawn.

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
            break
        except RequestError as error:
            wait_s = max(1.0, error.retry_after_s or 0.0)
            may_wait = patient and error.kind in _PASSING
            if not may_wait or time.monotonic() + wait_s > deadline:
                raise
        yield Pause()
        await asyncio.sleep(min(wait_s, PAUSE_S))
    async with aclosing(generator.events(part.id, PAUSE_S)) as events:
        async for event in events:
            yield event
