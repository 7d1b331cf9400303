"""Live pictures: one that is drawn at every pause in typing, and shown in place of the others.

They have a route of their own, because they are worth nothing late: no session, no queue of Gradio
and no file stands between a key and its picture. The browser's part is in `static/live.js`.
"""

from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from serving.generator import Generator, Preview, Request, RequestError
from serving.http import bodies
from serving.http.addresses import address_of
from serving.http.calls import while_connected
from ui import i18n
from ui.form import requests
from ui.form.fields import Fields, Visitor
from ui.samples.model_kind import kind_of
from ui.samples.styles import Style, styles_for

PATH = "/live"
# The fields that a live picture depends on; steps, scheduler and guidance are those of its recipe.
FIELDS = ("style", "size", "seed", "loras", "prompt_syntax", "model")
_MAX_SESSION = 64
_NOTHING = 204  # the status of an answer without a picture


class Body(BaseModel):
    """A prompt as it is typed, and the values of the page's fields."""

    model_config = ConfigDict(extra="forbid")

    session: Annotated[str, Field(max_length=_MAX_SESSION)]
    prompt: str
    fields: dict[str, Any]


def texts() -> dict[str, str]:
    """Return the texts of the browser's part, by its names for them."""
    return {
        "name": i18n.LIVE,
        "info": i18n.LIVE_INFO,
        "shown": i18n.LIVE_PICTURE,
    }


def connect(app: FastAPI, generator: Generator) -> None:
    """Add the routes that say whether there are live pictures, and that draw one."""
    styles = styles_for(kind_of(generator.facts))

    @app.get(PATH, include_in_schema=False)
    async def offered() -> dict[str, bool]:
        return {"live": generator.facts.live}

    @app.post(PATH, include_in_schema=False)
    async def draw(sender: HttpRequest) -> Response:
        body = await bodies.read(sender, Body)
        jpeg = None
        # A refusal is no error here: the visitor types on, and hears of it with Generate.
        with suppress(RequestError):
            drawing = _drawn(generator, styles, body, address_of(sender))
            jpeg = await while_connected(sender, drawing)
        headers = {"Cache-Control": "no-store"}
        return (
            Response(status_code=_NOTHING, headers=headers)
            if jpeg is None
            else Response(jpeg, headers=headers, media_type="image/jpeg")
        )


async def _drawn(
    generator: Generator, styles: Mapping[str, Style], body: Body, address: str
) -> bytes | None:
    """Return a live picture as a JPEG file; None if it is dropped or fails.

    Raises:
        RequestError: if it is refused.
    """
    request = _request(generator, styles, body, address)
    await generator.submit(request)
    async with aclosing(generator.events(request.id)) as events:
        async for event in events:
            if isinstance(event, Preview):
                return event.jpegs[0]
    return None


def _request(
    generator: Generator, styles: Mapping[str, Style], body: Body, address: str
) -> Request:
    values = {
        **{name: body.fields[name] for name in FIELDS if name in body.fields},
        "prompt": body.prompt,
        "images": 1,
        "seed": body.fields.get("seed") or 0,  # a random one would make each picture another one
    }
    fields = Fields.for_model(generator.facts)._replace(**values)
    request = requests.to_request(
        generator.facts, styles, fields, Visitor(body.session, address), tags=True
    )
    return replace(request, num_inference_steps=None, live=True)
