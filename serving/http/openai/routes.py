"""Routes of the OpenAI API.

https://platform.openai.com/docs/api-reference/images/create
"""

import base64
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from pydantic_core import to_json
from starlette.background import BackgroundTask

from pipeline.facts import Facts
from pipeline.images import metadata
from serving.generator import (
    ErrorKind,
    Event,
    Generator,
    Image,
    Pause,
    Preview,
    Request,
    RequestError,
)
from serving.http import bodies, schemas
from serving.http.addresses import address_of
from serving.http.auth import ApiKeys
from serving.http.calls import Format, drawn, drawn_size, parts_of, while_connected
from serving.http.errors import error_body
from serving.http.openai.bodies import EditBody, ImagesBody, VariationBody, ignored
from serving.http.openai.files import LIFETIME_S, Files
from serving.logs import log_fields
from serving.messages import Code, Message
from serving.requests import inputs
from serving.requests.inputs import Size

log = logging.getLogger(__name__)

# How far to redraw a picture unless a call says so: its masked part, and one without a prompt.
MASKED_STRENGTH, VARIATION_STRENGTH = 1.0, 0.6
_DESCRIBED = ("title", "prediction_type", "hash", "text")
# Nothing is charged by the token, but a client may rely on the field.
_USAGE = {
    "input_tokens": 0,
    "input_tokens_details": {"image_tokens": 0, "text_tokens": 0},
    "output_tokens": 0,
    "total_tokens": 0,
}

Addresses = Callable[[Sequence[bytes]], list[str]]  # makes URLs of files


def router(generator: Generator, keys: ApiKeys) -> APIRouter:
    """Build the routes of the OpenAI API."""
    routes = APIRouter(prefix="/v1")
    files = Files()
    started_at = int(time.time())

    def to_request(body: ImagesBody, sender: HttpRequest) -> Request:
        """Return the request of a body, for all its pictures."""
        facts = generator.facts
        # Clients send the names of OpenAI's models.
        model = body.model if body.model in facts.model_names else ""
        size = body.asked_size and drawn_size(body.asked_size, facts.for_model(model))
        request = schemas.to_request(
            body,
            facts,
            visitor=keys.visitor(sender),
            address=address_of(sender),
            size=size,
            previews=bool(body.stream and body.partial_images),
        )
        return replace(request, model=model)

    async def draw(
        kind: type[ImagesBody], sender: HttpRequest, call: str = "image_edit"
    ) -> Response:
        """Draw from the pictures of a call, and return the answer; for `call` see `answer`.

        The strength is that of the body, or depends on whether there is a mask, and a prompt.
        """
        async with bodies.received(sender, kind) as body:
            request = to_request(body, sender)
            files = replace(body.take_input(), shape=_file_size(body, request))
            opening = inputs.shared().added(request, files, generator.facts)
            request = await while_connected(sender, opening)
        if request.strength is None and request.mask is not None:
            request = replace(request, strength=MASKED_STRENGTH)
        elif request.strength is None and request.image is not None and not request.prompt:
            request = replace(request, strength=VARIATION_STRENGTH)
        return await answer(body, request, sender, call)

    async def answer(
        body: ImagesBody, request: Request, sender: HttpRequest, kind: str
    ) -> Response:
        """Draw a request's pictures, and return the answer or the stream of its events.

        `kind`: the kind of call that OpenAI's names of events begin with, such as "image_edit".
        """
        facts = generator.facts
        parts = list(parts_of(request, body.n or 1, facts.images_per_request))
        if names := ignored(body, facts.model_names):
            text = ", ".join(names)
            log.info("Ignored in an OpenAI request: %s", text, extra=log_fields(parts[0]))
        events = drawn(generator, facts, parts)
        await anext(events)  # the first part is taken in now, or refused before the answer begins
        quality = metadata.QUALITY if body.output_compression is None else body.output_compression
        size = _file_size(body, request)
        output = Format(body.output_format or "png", quality, address_of(sender), size=size)
        drawn_in = "{}x{}".format(*request.size or facts.sizes[0])
        common_fields: dict[str, Any] = {
            "size": "{}x{}".format(*size) if size else drawn_in,
            "output_format": output.name,
            "background": "opaque",
            **({"replaced": {"size": drawn_in}} if size else {}),  # OpenAI has no such field
        }

        def addresses(contents: Sequence[bytes]) -> list[str]:
            names = files.add(contents, address_of(sender), output.name)
            urls = [sender.url_for("picture_file", name=name) for name in names]
            # A proxy may have put its own name for this server into `Host`.
            host = sender.headers.get("x-forwarded-host", "").partition(",")[0].strip()
            return [str(url.replace(netloc=host) if host else url) for url in urls]

        urls = addresses if body.wants_urls else None
        if body.stream:
            fields = common_fields | {"quality": "auto"}  # OpenAI's types have it only here
            stream = _stream(events, kind, fields, output, body.partial_images or 0, urls)
            # Starlette does not close a stream whose client leaves while it is sent something.
            closing = BackgroundTask(stream.aclose)
            return StreamingResponse(stream, media_type="text/event-stream", background=closing)
        contents, parts = await while_connected(sender, _finished(events, output))
        data = [{"url": url} for url in urls(contents)] if urls else [*map(_entry, contents)]
        fields = {"created": int(time.time()), "data": data, **common_fields, **_ignored(parts)}
        return JSONResponse(fields)

    @routes.post(
        "/images/generations",
        response_class=JSONResponse,
        openapi_extra=bodies.description(ImagesBody),
    )
    async def generations(sender: HttpRequest) -> Response:
        """Draw pictures as the OpenAI Images API does."""
        return await draw(ImagesBody, sender, "image_generation")

    @routes.post(
        "/images/edits",
        response_class=JSONResponse,
        openapi_extra=bodies.description(EditBody),
    )
    async def edits(sender: HttpRequest) -> Response:
        """Redraw a picture, or its transparent part, as the OpenAI Images API does."""
        return await draw(EditBody, sender)

    @routes.post(
        "/images/variations",
        response_class=JSONResponse,
        openapi_extra=bodies.description(VariationBody),
    )
    async def variations(sender: HttpRequest) -> Response:
        """Draw pictures like another one, as the OpenAI Images API does."""
        return await draw(VariationBody, sender)

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

    @routes.head("/models", include_in_schema=False)
    @routes.get("/models")
    async def models() -> dict[str, Any]:
        """List the models that requests can name, the default one first."""
        facts = generator.facts
        models = [_describe_model(name, facts, started_at) for name in facts.model_names]
        return {"object": "list", "data": models}

    @routes.get("/models/{model:path}")  # the name of a model on the Hub has a slash
    async def one_model(model: str) -> dict[str, Any]:
        """Describe a model that requests can name."""
        if model not in generator.facts.model_names:
            params = {"field": "model", "value": model, "choices": [*generator.facts.model_names]}
            message = Message(Code.UNKNOWN_CHOICE, params)
            raise RequestError(message, ErrorKind.UNKNOWN, field="model")
        return _describe_model(model, generator.facts, started_at)

    return routes


def _file_size(body: ImagesBody, request: Request) -> Size | None:
    """Return the size that a call's files get, None if the request draws them in it."""
    is_whole = request.padding is None and not request.enlarge
    return body.asked_size if is_whole and body.asked_size != request.size else None


async def _finished(
    followed: AsyncGenerator[Event], output: Format
) -> tuple[list[bytes], list[str]]:
    """Return the files of all pictures, in order, and what of their prompts has no effect."""
    files: dict[int, bytes] = {}
    ignored: list[str] = []
    async with aclosing(followed) as events:
        async for event in events:
            if isinstance(event, Image):
                files[event.index] = await output.encode(event.png)
                ignored += event.ignored
    return [files[index] for index in sorted(files)], ignored


async def _stream(
    followed: AsyncGenerator[Event],
    kind: str,
    common_fields: dict[str, Any],
    output: Format,
    partial_images: int,
    addresses: Addresses | None,
) -> AsyncGenerator[bytes]:
    """Yield the events as server-sent events."""

    def picture(name: str, file: bytes, **fields: Any) -> bytes:
        fields = {"type": name, "created_at": int(time.time()), **_entry(file), **fields}
        return _event(name, fields)

    previews = 0
    try:
        async with aclosing(followed) as events:
            async for event in events:
                if isinstance(event, Pause):  # proxies close a stream silent for a minute
                    yield KEEPALIVE_COMMENT
                elif isinstance(event, Preview) and previews < partial_images:
                    fields = common_fields | {"output_format": "jpeg"}
                    name = f"{kind}.partial_image"
                    yield picture(name, event.jpegs[0], **fields, partial_image_index=previews)
                    previews += 1
                elif isinstance(event, Image):
                    file = await output.encode(event.png)
                    # OpenAI's events always have the file itself.
                    urls = {"url": addresses([file])[0]} if addresses else {}
                    fields = common_fields | urls | _ignored(event.ignored)
                    yield picture(f"{kind}.completed", file, **fields, usage=_USAGE)
    except RequestError as error:
        yield _event("error", error_body(error.kind, error.message, error.field))
    else:
        yield format_sse_event(data_str="[DONE]")


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return format_sse_event(event=name, data_str=to_json(fields).decode())


def _ignored(parts: Iterable[str]) -> dict[str, list[str]]:
    """Return a field for parts of prompts, if there are any; OpenAI has no such field."""
    return {"ignored": names} if (names := list(dict.fromkeys(parts))) else {}


def _entry(file: bytes) -> dict[str, str]:
    return {"b64_json": base64.b64encode(file).decode()}


def _describe_model(name: str, facts: Facts, started_at: int) -> dict[str, Any]:
    """Return the fields that OpenAI's models have, and what else is known of a further one."""
    models = (
        *facts.models,
        *(model for other_facts in facts.others for model in other_facts.models),
    )
    description = next((asdict(model) for model in models if model.name == name), {})
    known_fields = {field: description[field] for field in _DESCRIBED if description}
    owner, slash, _ = name.partition("/")
    owned_by = owner if slash else "local"
    model = {"id": name, "object": "model", "created": started_at, "owned_by": owned_by}
    return model | known_fields
