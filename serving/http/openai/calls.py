"""Calls for pictures: from the body of a call to its answer."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from anyio import CapacityLimiter
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response, StreamingResponse

from pipeline.images import metadata
from serving.generator import Generator, Request
from serving.http import bodies, schemas
from serving.http.addresses import address_of
from serving.http.auth import ApiKeys
from serving.http.connected import while_connected
from serving.http.formats import Format
from serving.http.openai import answers
from serving.http.openai.bodies import ImagesBody, VariationBody, ignored
from serving.http.openai.files import Files
from serving.http.parts import drawn, parts_of
from serving.logs import log_fields
from serving.requests import inputs

# How far to redraw a picture unless a call says so: its masked part, and one without a prompt.
MASKED_STRENGTH, VARIATION_STRENGTH = 1.0, 0.6

log = logging.getLogger(__name__)


class ImageCalls:
    """Requests of the OpenAI API, and their answers; `files` keeps pictures that get a URL."""

    def __init__(self, generator: Generator, keys: ApiKeys, files: Files) -> None:
        self._generator = generator
        self._keys = keys
        self._files = files
        self._encoder = CapacityLimiter(1)  # leaves the processors to the drawing

    def request(self, body: ImagesBody, sender: HttpRequest) -> Request:
        """Return the request of a body, for all its pictures."""
        facts = self._generator.facts
        model = body.model if body.model in facts.model_names else ""
        request = schemas.to_request(
            body,
            facts,
            visitor=self._keys.visitor(sender),
            address=address_of(sender),
            size=schemas.parse_size(None if body.size in (None, "auto") else body.size),
            previews=bool(body.stream and body.partial_images),
        )
        return replace(request, model=model)  # clients send the names of OpenAI's models

    async def from_picture(self, kind: type[VariationBody], sender: HttpRequest) -> Response:
        """Draw from the picture of a call, and return the answer.

        The strength is that of the body, or depends on whether there is a mask, and a prompt.
        """
        async with bodies.received(sender, kind) as body:
            request = self.request(body, sender)
            opening = inputs.shared().added(request, body.take_input(), self._generator.facts)
            request = await while_connected(sender, opening)
        if request.strength is None and request.mask is not None:
            request = replace(request, strength=MASKED_STRENGTH)
        elif request.strength is None and not request.prompt:
            request = replace(request, strength=VARIATION_STRENGTH)
        return await self.answer(body, request, sender, "image_edit")

    async def answer(
        self, body: ImagesBody, request: Request, sender: HttpRequest, kind: str
    ) -> Response:
        """Draw a request's pictures, and return the answer or the stream of its events.

        `kind`: the kind of call that OpenAI's names of events begin with, such as "image_edit".
        """
        generator = self._generator
        model = generator.facts
        parts = list(parts_of(request, body.n or 1, model.images_per_request))
        if names := ignored(body, model.model_names):
            log.info(
                "Ignored in an OpenAI request: %s", ", ".join(names), extra=log_fields(parts[0])
            )
        await generator.submit(parts[0])
        # Follow it before the answer begins: it may end, and be forgotten, in between.
        events = drawn(generator, model, parts, generator.events(parts[0].id))

        quality = metadata.QUALITY if body.output_compression is None else body.output_compression
        output = Format(body.output_format or "png", quality, self._encoder)
        common_fields = answers.common_fields(request.size or model.sizes[0], output.name)

        def addresses(contents: Sequence[bytes]) -> list[str]:
            names = self._files.add(contents, address_of(sender), output.name)
            return [str(sender.url_for("picture_file", name=name)) for name in names]

        urls = addresses if body.response_format == "url" else None
        if body.stream:
            stream = answers.stream(
                events, kind, common_fields, output, body.partial_images or 0, urls
            )
            return StreamingResponse(answers.never_silent(stream), media_type="text/event-stream")
        files = await while_connected(sender, answers.finished(events, output))
        return JSONResponse(answers.body(files, common_fields, urls))
