"""Calls for pictures: from the body of a call to its answer."""

import logging
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from anyio import CapacityLimiter
from fastapi import Request as HttpRequest

from serving.generator import Error, Generator, Image, Request
from serving.http import bodies
from serving.http.a1111 import answers
from serving.http.a1111.bodies import DrawBody, Img2ImgBody
from serving.http.a1111.jobs import Job, Jobs
from serving.http.a1111.requests import Asked, asked_of, inputs_of, single
from serving.http.addresses import address_of
from serving.http.auth import ApiKeys
from serving.http.connected import while_connected
from serving.http.errors import as_refusal
from serving.http.formats import Format
from serving.http.limits import BoundedBody, body_of
from serving.http.parts import admitted, parts_of
from serving.logs import log_fields, loggable
from serving.requests import inputs
from serving.requests.inputs import Input

log = logging.getLogger(__name__)


class DrawCalls:
    """Calls of AUTOMATIC1111's API that draw, and their answers."""

    def __init__(self, generator: Generator, keys: ApiKeys) -> None:
        self._generator = generator
        self._keys = keys
        self.jobs = Jobs(generator)
        self._encoder = CapacityLimiter(1)  # leaves the processors to the drawing

    async def txt2img(self, body: DrawBody, sender: HttpRequest) -> dict[str, Any]:
        """Draw pictures from a prompt, and return the answer."""
        asked = self._asked(body, sender)
        parts = list(parts_of(asked.request, asked.images, asked.facts.images_per_request))
        return await while_connected(sender, self._answered("txt2img", body, asked, parts, sender))

    async def img2img(self, sender: HttpRequest) -> dict[str, Any]:
        """Draw pictures from other ones, and return the answer."""
        with body_of(sender) as kept:
            body = await bodies.parse(sender, kept, Img2ImgBody)
            asked = self._asked(body, sender)
            files, settings, ignored = inputs_of(body)
            asked = replace(asked, ignored=(*asked.ignored, *ignored))
            request = replace(asked.request, **settings)
            requests = await while_connected(sender, _opened(request, files, asked, kept))
            if len(requests) == 1:
                kept.count(0)  # the queue counts it
                parts = list(parts_of(requests[0], asked.images, asked.facts.images_per_request))
            else:
                parts = [single(requests[i % len(requests)], i) for i in range(asked.images)]
            drawing = self._answered("img2img", body, asked, parts, sender)
            return await while_connected(sender, drawing)

    def _asked(self, body: DrawBody, sender: HttpRequest) -> Asked:
        return asked_of(
            body,
            self._generator.facts,
            visitor=self._keys.visitor(sender),
            address=address_of(sender),
        )

    async def _answered(
        self,
        kind: str,
        body: DrawBody,
        asked: Asked,
        parts: Sequence[Request],
        sender: HttpRequest,
    ) -> dict[str, Any]:
        """Draw the requests one after the other, and return the answer with all pictures."""
        if asked.ignored:
            names = ", ".join(loggable(asked.ignored))
            log.info("Ignored in a call of %s: %s", kind, names, extra=log_fields(parts[0]))
        images: list[Image] = []
        with self.jobs.begun(self._keys.visitor(sender), Job(kind, len(parts))) as job:
            for part in parts:
                if job.interrupted:
                    break
                images += await self._drawn(job, asked, part)
            output = Format(asked.output, asked.quality, self._encoder, "samples_format")
            files = [await output.encode(image.png) for image in images]
        return answers.drawn(body, asked, images, files, job.timestamp)

    async def _drawn(self, job: Job, asked: Asked, request: Request) -> list[Image]:
        """Draw one request; return the pictures that are finished when it ends or is stopped.

        Raises:
            RequestError: if it is refused, or ends in another way.
        """
        job.begin(request.id)
        images: dict[int, Image] = {}
        if job.done:  # a failure would lose the pictures already drawn
            followed = await admitted(self._generator, request, asked.facts)
        else:
            await self._generator.submit(request)
            followed = self._generator.events(request.id)
        if job.interrupted or job.skipped:  # meanwhile
            self._generator.cancel(request.id)
        async with aclosing(followed) as events:
            async for event in events:
                job.note(event)
                if isinstance(event, Image):
                    images[event.index] = event
                elif isinstance(event, Error) and not (job.interrupted or job.skipped):
                    raise as_refusal(event)
        job.end()
        return [images[index] for index in sorted(images)]


async def _opened(
    request: Request, files: list[Input], asked: Asked, kept: BoundedBody
) -> list[Request]:
    """Return a request for each of the pictures to start from, which `files` loses.

    The queue counts the bytes of one of them at a time, so the call counts all.
    """
    requests: list[Request] = []
    while files:
        requests.append(await inputs.shared().added(request, files.pop(0), asked.facts))
        bytes_left = sum(len(file.image or b"") for file in files)
        kept.count(bytes_left + sum(part.input_bytes for part in requests))
    return requests
