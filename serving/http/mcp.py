"""Server of the Model Context Protocol, with which assistants draw: one tool, `generate`.

https://modelcontextprotocol.io/specification. There are no sessions, and nothing is kept between
calls.
"""

import base64
import json
import logging
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from pydantic import Field, ValidationError
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pipeline.facts import Facts
from pipeline.request import MAX_IMAGES
from serving.generator import Done, Error, Event, Generator, Image, RequestError, Step
from serving.http import bodies, schemas
from serving.http.auth import ApiKeys
from serving.http.errors import as_refusal, first_fault
from serving.http.json_tokens import encoded
from serving.http.limits import MAX_PICTURE_BODY_BYTES, MCP_PATH, body_of, replayed
from serving.messages import untranslated
from serving.requests import inputs

# The warnings of these write names of tools and headers of calls into the log.
for _name in ("mcp.server.lowlevel.server", "mcp.server.transport_security"):
    logging.getLogger(_name).setLevel(logging.ERROR)

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
        "ignored": {
            "type": "array",
            "items": {"type": "string"},
            "description": "All parts of the prompts that have no effect.",
        },
    },
    "required": ["seeds", "left_out", "ignored"],
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
        self._server: Server[Any, HttpRequest] = Server(f"{generator.facts.family} on JAX")
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
        """Answer one message of the protocol.

        The package logs the texts of messages that it does not know, so it gets none of these.
        """
        sender = HttpRequest(scope, receive)
        with body_of(sender) as body:  # the package keeps it until the answer
            content = await body.read_json()
            result = await bodies.in_turn(sender, content, _checked)
            if isinstance(result, Response):
                await result(scope, receive, send)
                return
            await self._manager.handle_request(scope, replayed(result, receive), send)

    async def _list_tools(self) -> list[types.Tool]:
        return [
            types.Tool(
                name="generate",
                title="Draw pictures",
                description=_description(self._generator.facts),
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
            self._generator.facts,
            visitor=self._keys.visitor(sender),
            address=sender.client.host if sender.client else "",
            images=body.images,
            size=schemas.parse_size(body.size),
        )
        request = await inputs.shared().added(request, body.take_input(), self._generator.facts)
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
        ignored = dict.fromkeys(part for image in images for part in image.ignored)
        seeds = [image.seed for image in images]
        summary = {"seeds": seeds, "left_out": left_out, "ignored": [*ignored]}
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


def _checked(content: bytes) -> bytes | Response:
    """Return a body for the package, or the answer to one that it would not know.

    Raises:
        RequestError: if the body is not JSON.
    """
    try:
        body = encoded(json.loads(content))
    except (ValueError, RecursionError):
        raise RequestError(untranslated("The body is not JSON")) from None
    try:
        message = types.JSONRPCMessage.model_validate_json(body).root
    except ValidationError:
        return body  # the package says what is wrong, and logs nothing
    kinds = {
        types.JSONRPCRequest: types.ClientRequest,
        types.JSONRPCNotification: types.ClientNotification,
    }
    if (kind := kinds.get(type(message))) is None:
        return Response(status_code=202)  # to an answer: this server asks nothing
    try:
        kind.model_validate(message.model_dump(by_alias=True, mode="json", exclude_none=True))
    except ValidationError:
        if not isinstance(message, types.JSONRPCRequest):
            return Response(status_code=202)
        text = "The method is unknown, or its params are wrong"
        error = types.ErrorData(code=types.INVALID_PARAMS, message=text)
        answer = types.JSONRPCError(jsonrpc="2.0", id=message.id, error=error)
        return JSONResponse(answer.model_dump(exclude_none=True))
    return body


def _picture(image: Image) -> types.ImageContent:
    data = base64.b64encode(image.png).decode()
    return types.ImageContent(type="image", data=data, mimeType="image/png")


def _description(facts: Facts) -> str:
    return (
        f"Draws {facts.images_per_request} pictures, {facts.width}x{facts.height} pixels each, "
        f"from a description in English. The model is {facts.name}. "
        f"num_inference_steps is {facts.num_inference_steps} unless given, "
        f"and at most {facts.max_inference_steps}. "
        "The same seed and settings give the same pictures. "
        'For example: {"prompt": "a yellow moon", "seed": 7}'
    )
