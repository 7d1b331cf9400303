"""Server of the Model Context Protocol, with which assistants draw: one tool, `generate`.

https://modelcontextprotocol.io/specification. There are no sessions, and nothing is kept between
calls.
"""

import base64
import json
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from pydantic import Field, ValidationError
from starlette.requests import Request as HttpRequest
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pipeline.request import MAX_IMAGES
from serving.generator import Done, Error, Event, Generator, Image, Model, Step
from serving.http import schemas
from serving.http.auth import ApiKeys
from serving.http.errors import as_refusal, first_fault
from serving.http.limits import MAX_PICTURE_BODY_BYTES, MCP_PATH
from serving.requests import inputs

_OUTPUT = {
    "type": "object",
    "properties": {
        "seeds": {
            "type": "array",
            "items": {"type": "integer"},
            "description": "The seed of each picture, in the pictures' order.",
        },
        "left_out": {
            "type": "string",
            "description": "The part of the prompt that the model could not read, or empty.",
        },
    },
    "required": ["seeds", "left_out"],
}


class Arguments(schemas.FromPictureBody):
    """Arguments of the tool `generate`."""

    images: int | None = Field(
        None,
        ge=1,
        le=MAX_IMAGES,
        description="Number of pictures; if None, as many as are drawn at once.",
    )
    size: str | None = Field(
        None,
        pattern=f"^{schemas.SIZE}$",
        description="WxH, one of the server's sizes; if None, its default.",
    )


class McpServer:
    """MCP server at `MCP_PATH`. It answers inside the context of `run`."""

    def __init__(self, generator: Generator, keys: ApiKeys) -> None:
        self._generator = generator
        self._keys = keys
        self._server: Server[Any, HttpRequest] = Server(f"{generator.model.family} on JAX")
        self._server.list_tools()(self._list_tools)
        # `_call_tool` validates the arguments itself: its messages name the argument.
        self._server.call_tool(validate_input=False)(self._call_tool)
        self._manager = StreamableHTTPSessionManager(
            self._server, stateless=True, max_request_body_size=MAX_PICTURE_BODY_BYTES
        )

    def run(self) -> AbstractAsyncContextManager[None]:
        """Return the context in which calls can be answered."""
        return self._manager.run()

    def routes(self) -> list[Route]:
        """Return the routes with and without a slash at the end; clients use both."""
        return [Route(path, self, methods=["POST"]) for path in (MCP_PATH, f"{MCP_PATH}/")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one message of the protocol."""
        await self._manager.handle_request(scope, receive, send)

    async def _list_tools(self) -> list[types.Tool]:
        return [
            types.Tool(
                name="generate",
                title="Draw pictures",
                description=_description(self._generator.model),
                inputSchema=Arguments.model_json_schema(),
                outputSchema=_OUTPUT,
                annotations=types.ToolAnnotations(readOnlyHint=True, openWorldHint=False),
            )
        ]

    async def _call_tool(
        self, name: str, arguments: dict[str, Any]
    ) -> tuple[list[types.ContentBlock], dict[str, Any]]:
        """Return the pictures as PNG files, and their seeds; an exception becomes an error text."""
        if name != "generate":
            raise ValueError(f"There is no tool {name[:40]!r}; the only tool is 'generate'.")
        sender = self._server.request_context.request
        assert sender is not None
        try:
            body = Arguments.model_validate(arguments)
        except ValidationError as error:
            raise ValueError(first_fault(error.errors())[0]) from None
        request = schemas.to_request(
            body,
            self._generator.model,
            visitor=self._keys.visitor(sender),
            address=sender.client.host if sender.client else "",
            images=body.images,
            size=schemas.parse_size(body.size),
        )
        request = await inputs.shared().added(request, body.take_input(), self._generator.model)
        await self._generator.submit(request)
        images: list[Image] = []
        left_out = ""
        async with aclosing(self._generator.events(request.id)) as events:
            async for event in events:
                await self._report(event)
                if isinstance(event, Image):
                    images.append(event)
                elif isinstance(event, Error):
                    raise as_refusal(event)
                elif isinstance(event, Done):
                    left_out = event.truncated
        summary = {"seeds": [image.seed for image in images], "left_out": left_out}
        text = types.TextContent(type="text", text=json.dumps(summary))
        return [*map(_picture, images), text], summary

    async def _report(self, event: Event) -> None:
        """Report a step to the client if it asked for progress."""
        context = self._server.request_context
        token = context.meta.progressToken if context.meta else None
        if token is not None and isinstance(event, Step):
            await context.session.send_progress_notification(
                token, event.done, event.total, related_request_id=str(context.request_id)
            )


def _picture(image: Image) -> types.ImageContent:
    data = base64.b64encode(image.png).decode()
    return types.ImageContent(type="image", data=data, mimeType="image/png")


def _description(model: Model) -> str:
    return (
        f"Draws {model.images_per_request} pictures, {model.width}x{model.height} pixels each, "
        f"from a description in English. The model is {model.name}. "
        f"num_inference_steps is {model.num_inference_steps} unless given, "
        f"and at most {model.max_inference_steps}. "
        "The same seed and settings give the same pictures. "
        'For example: {"prompt": "a yellow moon", "seed": 7}'
    )
