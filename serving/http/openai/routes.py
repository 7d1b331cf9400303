"""Routes of the OpenAI API.

https://platform.openai.com/docs/api-reference/images/create
"""

import time
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response

from pipeline.facts import Facts
from serving.generator import ErrorKind, Generator, RequestError
from serving.http import bodies
from serving.http.auth import ApiKeys
from serving.http.openai.bodies import EditBody, ImagesBody, VariationBody
from serving.http.openai.calls import ImageCalls
from serving.http.openai.files import LIFETIME_S, Files
from serving.messages import Code, Message

_DESCRIBED = ("title", "prediction_type", "hash", "text")


def router(generator: Generator, keys: ApiKeys) -> APIRouter:
    """Build the routes of the OpenAI API."""
    routes = APIRouter(prefix="/v1")
    files = Files()
    calls = ImageCalls(generator, keys, files)
    started_at = int(time.time())

    @routes.post(
        "/images/generations",
        response_class=JSONResponse,
        openapi_extra=bodies.description(ImagesBody),
    )
    async def generations(sender: HttpRequest) -> Response:
        """Draw pictures as the OpenAI Images API does."""
        body = await bodies.read(sender, ImagesBody)
        return await calls.answer(body, calls.request(body, sender), sender, "image_generation")

    @routes.post(
        "/images/edits",
        response_class=JSONResponse,
        openapi_extra=bodies.description(EditBody),
    )
    async def edits(sender: HttpRequest) -> Response:
        """Redraw a picture, or its transparent part, as the OpenAI Images API does."""
        return await calls.from_picture(EditBody, sender)

    @routes.post(
        "/images/variations",
        response_class=JSONResponse,
        openapi_extra=bodies.description(VariationBody),
    )
    async def variations(sender: HttpRequest) -> Response:
        """Draw pictures like another one, as the OpenAI Images API does."""
        return await calls.from_picture(VariationBody, sender)

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
