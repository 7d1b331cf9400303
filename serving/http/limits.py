"""Limits of the calls that are answered at a time, and of the bodies that they send."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager

from starlette import types
from starlette.datastructures import FormData
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.generator import ErrorKind, RequestError
from serving.http import errors
from serving.http.addresses import address_of
from serving.http.json_tokens import JsonTokens
from serving.messages import Code, Message
from serving.requests.shares import Shares
from serving.requests.workers import once_per_loop

UPLOAD_PATH = "/gradio_api/upload"
# The path of Gradio's own MCP server, which this one replaces; clients of Gradio look for it there.
MCP_PATH = "/gradio_api/mcp"
CONTROL_MAP_PATH = "/controls/map"  # of the page
BODY_WITHIN_S = 20.0  # for a body to arrive
MAX_BODY_BYTES = 2**20
MAX_PICTURE_BODY_BYTES = 2**25  # of a call that may have pictures to start from
# Bytes of bodies that are kept, beyond `MAX_BODY_BYTES` each: in all, and of one address.
MOST_BYTES, MOST_BYTES_EACH = 2**28, 2**26
PICTURE_PATHS = (
    "/v1/generate",
    "/v1/images/edits",
    "/v1/images/variations",
    "/sdapi/v1/txt2img",
    "/sdapi/v1/img2img",
    "/sdapi/v1/png-info",
    "/sdapi/v1/extra-single-image",
    "/sdapi/v1/extra-batch-images",
    "/controlnet/detect",
    MCP_PATH,
    CONTROL_MAP_PATH,
)
MAX_PAGE_BODY_BYTES = 2**18  # of a call by the page's own API
MAX_UPLOAD_BYTES = 2**24  # of a picture whose settings are to be read
# Every open page holds a call for its heartbeat, so there are many.
MAX_CALLS = 1000
# One address may hold a quarter, so that it cannot keep the others out. That is enough for about a
# hundred open pages, such as those of a school behind one address.
MAX_CALLS_EACH = MAX_CALLS // 4
# Routes of an orchestrator, which must not restart the process because of a crowd.
_ALWAYS_ANSWERED = ("/healthz", "/readyz", "/metrics")


# One request is followed by one address so often at a time: with a page in each of several tabs.
MOST_FOLLOWERS = 16
_followers = once_per_loop(lambda: Shares(MAX_CALLS, MOST_FOLLOWERS))


@contextmanager
def follower(sender: Request, request_id: str) -> Iterator[None]:
    """Count a follower of a request until the block ends.

    Raises:
        RequestError: if its address has too many.
    """
    share, shares = f"{address_of(sender)} {request_id}", _followers()
    if not shares.take(share):
        raise RequestError(Message(Code.TOO_MANY_CONNECTIONS), ErrorKind.TOO_MANY)
    try:
        yield
    finally:
        shares.give_back(share)


class CallLimit:
    """Middleware that limits the calls answered at a time, in all and for each address."""

    def __init__(self, app: ASGIApp, shares: Shares) -> None:
        self._app = app
        self._shares = shares

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on if there is room for it; health checks and metrics always pass."""
        if scope["type"] != "http" or scope["path"] in _ALWAYS_ANSWERED:
            await self._app(scope, receive, send)
            return
        address = address_of(Request(scope))
        if not self._shares.take(address):
            error = (
                RequestError(Message(Code.TOO_MANY_CONNECTIONS), ErrorKind.TOO_MANY)
                if self._shares.has_room()
                else RequestError(Message(Code.CROWDED), ErrorKind.UNAVAILABLE)
            )
            await errors.refusal(error, scope)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._shares.give_back(address)


_kept = once_per_loop(lambda: Shares(MOST_BYTES, MOST_BYTES_EACH))


class BoundedBody:
    """The body of a call, and the call's share of the memory for bodies.

    Every route reads its body here. So its length is checked first, then its bytes as they come,
    within `BODY_WITHIN_S`, and only then is it parsed.
    """

    def __init__(self, sender: Request) -> None:
        self._sender = Request(sender.scope, self._receive)
        self._receive_part = sender.receive
        self._max_bytes = _most_bytes(sender.url.path)
        self._num_bytes = 0
        self._shares = _kept()
        self._address = address_of(sender)
        self._counted = 0
        length = sender.headers.get("content-length", "")
        self._stated = int(length[:20]) if length.isdecimal() else 0

    def count(self, num_bytes: int) -> None:
        """Count so many bytes for the call from now on, in place of those before.

        Raises:
            RequestError: if there is no room for them now.
        """
        self._shares.give_back(self._address, self._counted)
        self._counted = 0
        if not self._shares.take(self._address, num_bytes):
            raise RequestError(Message(Code.TOO_MANY_UPLOADS), ErrorKind.TOO_MANY)
        self._counted = num_bytes

    async def read_json(self) -> bytes:
        """Read a body of JSON that has few enough tokens, without parsing it.

        Raises:
            RequestError: if it is too large, too slow or no such JSON.
        """
        tokens, content = JsonTokens(), bytearray()
        async with self._arriving():
            async for part in self._sender.stream():
                tokens.add(part)
                content += part
        return bytes(content)

    @asynccontextmanager
    async def form(self, max_files: int, max_fields: int) -> AsyncGenerator[FormData]:
        """Read a form, whose files are there until the context ends.

        Raises:
            RequestError: if it is too large or too slow.
            HTTPException: if it has more files or fields, or is no form.
        """
        async with self._arriving():
            form = await self._sender.form(max_files=max_files, max_fields=max_fields)
        try:
            yield form
        finally:
            await form.close()

    @asynccontextmanager
    async def _arriving(self) -> AsyncGenerator[None]:
        self._check(self._stated)
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                yield
        except (ClientDisconnect, TimeoutError):
            raise RequestError(Message(Code.UPLOAD_TOO_SLOW)) from None

    async def _receive(self) -> types.Message:
        message = await self._receive_part()
        self._num_bytes += len(message.get("body", b""))
        self._check(max(self._stated, self._num_bytes))
        return message

    def _check(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            message = Message(Code.TOO_LARGE, {"kib": self._max_bytes // 1024})
            raise RequestError(message, ErrorKind.HTTP_413)
        if num_bytes - MAX_BODY_BYTES > self._counted:
            self.count(num_bytes - MAX_BODY_BYTES)


@contextmanager
def body_of(sender: Request) -> Iterator[BoundedBody]:
    """Have the body of a call; it counts until the block ends, so drop it by then."""
    body = BoundedBody(sender)
    try:
        yield body
    finally:
        body.count(0)


def replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body which was read, and then calls the real one."""
    messages: list[types.Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> types.Message:
        return messages.pop() if messages else await receive()

    return receive_again


def _most_bytes(path: str) -> int:
    """Return how many bytes the body of a call to a path may have."""
    if path.rstrip("/") == UPLOAD_PATH:
        return MAX_UPLOAD_BYTES
    if path.rstrip("/") in PICTURE_PATHS:
        return MAX_PICTURE_BODY_BYTES
    apis = "/v1/", *errors.A1111_PATHS, MCP_PATH
    return MAX_BODY_BYTES if path.startswith(apis) else MAX_PAGE_BODY_BYTES
