"""This program's own API: requests as streams of events, which are found and stopped by id."""

import json
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Path, Response
from fastapi import Request as HttpRequest
from fastapi.sse import EventSourceResponse, ServerSentEvent

from pipeline.errors import InputError
from pipeline.text.explanation import Explanation, explain
from serving.generator import ErrorKind, Event, Generator, Length, Pictured, RequestError
from serving.http import bodies, limits, schemas
from serving.http.addresses import address_of
from serving.http.auth import ApiKeys
from serving.http.calls import while_connected
from serving.messages import Code, Message, untranslated
from serving.requests import inputs, readers

# Marks a request that another instance passed on. Its value is the request's digest, or NO_DIGEST.
HOP_HEADER = "X-SDXL-Hop"
NO_DIGEST = "1"

RequestId = Annotated[str, Path(pattern=schemas.ID)]

Followed = tuple[str, AsyncGenerator[Event]]  # id and events of a request


def _digest(sender: HttpRequest) -> str:
    digest = sender.headers.get(HOP_HEADER, "")
    return "" if digest == NO_DIGEST else digest


def router(generator: Generator, keys: ApiKeys, *, passes_on: bool) -> APIRouter:
    """Build the routes under /v1 that are not OpenAI's.

    `passes_on`: whether this instance sends requests to others. It then refuses requests that
    another instance passed on, so that there is no loop.
    """

    async def no_loop(sender: HttpRequest) -> None:
        if passes_on and HOP_HEADER in sender.headers:
            raise RequestError(Message(Code.LOOP), ErrorKind.LOOP)

    routes = APIRouter(prefix="/v1", dependencies=[Depends(no_loop)])

    async def submitted(sender: HttpRequest, response: Response) -> AsyncGenerator[Followed]:
        async with bodies.received(sender, schemas.GenerateBody) as body:
            request = schemas.to_request(
                body,
                generator.facts,
                visitor=keys.visitor(sender),
                address=address_of(sender),
                **schemas.generate_fields(body),
                digest=_digest(sender),
            )
            opening = inputs.shared().added(request, body.take_input(), generator.facts)
            request = await while_connected(sender, opening)
        await generator.submit(request)
        # Not X-Request-Id, which proxies set to values of their own.
        root_path = sender.scope.get("app_root_path", "")
        response.headers["Content-Location"] = f"{root_path}/v1/requests/{request.id}"
        # Follow it before the answer begins: it may end, and be forgotten, in between.
        async with aclosing(generator.events(request.id)) as events:
            yield request.id, events

    # FastAPI does not close the generator of a route whose client leaves, but the dependencies.
    async def following(sender: HttpRequest, request_id: RequestId) -> AsyncGenerator[Followed]:
        with limits.follower(sender, request_id):
            async with aclosing(generator.events(request_id)) as events:
                yield request_id, events

    @routes.post(
        "/generate",
        response_class=EventSourceResponse,
        openapi_extra=bodies.description(schemas.GenerateBody),
    )
    async def generate(
        followed: Annotated[Followed, Depends(submitted)],
    ) -> AsyncIterable[ServerSentEvent]:
        """Draw pictures, and send the events of the request.

        The events are `queued`, `started`, `step`, `preview` if asked for, `image`, and at the end
        `done` or `error`. Each has the request's `id`. Closing the connection stops the drawing,
        unless `keep` is set.
        """
        request_id, events = followed
        async for event in events:
            yield _sent(request_id, event)

    @routes.get("/requests/{request_id}", response_class=EventSourceResponse)
    async def follow(
        followed: Annotated[Followed, Depends(following)],
    ) -> AsyncIterable[ServerSentEvent]:
        """Send the current state of a request as events, then its further events."""
        request_id, events = followed
        async for event in events:
            yield _sent(request_id, event)

    @routes.delete("/requests/{request_id}")
    async def cancel(request_id: RequestId) -> dict[str, str]:
        """Stop a request within two steps; do nothing if it has ended."""
        generator.cancel(request_id)
        return {"id": request_id}

    @routes.post("/length", openapi_extra=bodies.description(schemas.LengthBody))
    async def length(sender: HttpRequest) -> dict[str, Any]:
        """Return the length of a prompt and how it is read.

        `tokens` is the number of tokens, `limit` the number that the model reads, `left_out` the
        text beyond it, and `chunks` the number of chunks. If the prompt has several texts during a
        run, these describe the longest one, with the longest options of its lists.

        `reading` has the prompt's `texts` with the steps that use them, the weights of its `loras`
        in the UNet and in the text encoders, and the `lists` from which the seed chooses. A text
        has the `fragments` of each section between two breaks, with their weights. `ignored` has
        the parts without effect, such as the tags of LoRAs that are not there.
        """
        body = await bodies.read(sender, schemas.LengthBody)
        steps = body.num_inference_steps or generator.facts.num_inference_steps
        asked = body.prompt, body.prompt_syntax, steps
        reading = _read(generator, address_of(sender), *asked)
        explanation, length = await while_connected(sender, reading)
        if length is None:
            raise RequestError(Message(Code.UNAVAILABLE), ErrorKind.UNAVAILABLE)
        return asdict(length) | {"reading": _reading(explanation)}

    @routes.get("/loras/{name}/picture", response_class=Response)
    async def picture(name: str) -> Response:
        """Return a small WebP picture of a LoRA."""
        return await pictured("loras", name)

    @routes.get("/models/{name}/picture", response_class=Response)
    async def picture_of_model(name: str) -> Response:
        """Return a small WebP picture of a model."""
        return await pictured("models", name)

    async def pictured(kind: Pictured, name: str) -> Response:
        thumbnail = await generator.thumbnail(kind, name)
        if thumbnail is None:
            raise HTTPException(404)
        return Response(thumbnail, media_type="image/webp")

    @routes.get("/model")
    async def model() -> dict[str, Any]:
        """Return the model that draws, and its load."""
        return asdict(generator.facts) | {"load": asdict(generator.load)}

    return routes


async def _read(
    generator: Generator, address: str, prompt: str, syntax: str, steps: int
) -> tuple[Explanation, Length | None]:
    """Return how a prompt is read and how long it is, as soon as it is the address's turn."""
    workers, names = readers.of_prompts(), generator.facts.lora_names
    try:
        explanation = await workers.run(address, partial(explain, prompt, syntax, steps, names))
    except InputError as error:
        raise RequestError(untranslated(str(error))) from error
    async with workers.turn(address):
        return explanation, await generator.measure(prompt, syntax, steps)


def _reading(explanation: Explanation) -> dict[str, Any]:
    texts = [
        {
            "steps": text.steps,
            "fragments": [
                [fragment._asdict() for fragment in section] for section in text.sections
            ],
        }
        for text in explanation.texts
    ]
    return {
        "texts": texts,
        "loras": explanation.loras,
        "lists": explanation.lists,
        "ignored": explanation.ignored,
    }


def _sent(request_id: str, event: Event) -> ServerSentEvent:
    name, fields = schemas.from_event(event)
    return ServerSentEvent(event=name, raw_data=json.dumps({"id": request_id, **fields}))
