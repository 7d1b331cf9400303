"""Limits of the calls that are answered at a time, and of the sizes of their bodies."""

from starlette import types
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.generator import ErrorKind, RequestError
from serving.http import errors
from serving.http.addresses import address_of
from serving.http.json_tokens import JsonTokens
from serving.messages import Code, Message
from serving.requests.shares import Shares

_PAGE_PATH = "/gradio_api/"
UPLOAD_PATH = f"{_PAGE_PATH}upload"
# The path of Gradio's own MCP server, which this one replaces; clients of Gradio look for it there.
MCP_PATH = "/gradio_api/mcp"
MAX_BODY_BYTES = 2**20
MAX_PICTURE_BODY_BYTES = 2**25  # of a call that may have pictures to start from
# Bytes of bodies of such calls that are read, beyond `MAX_BODY_BYTES` each: in all, and of one
# address.
MOST_BYTES, MOST_BYTES_EACH = 2**28, 2**26
PICTURE_PATHS = (
    "/v1/generate",
    "/v1/images/edits",
    "/v1/images/variations",
    "/sdapi/v1/img2img",
    "/sdapi/v1/png-info",
    "/sdapi/v1/extra-single-image",
    "/sdapi/v1/extra-batch-images",
    "/sdapi/v1/interrogate",
    MCP_PATH,
)
MAX_PAGE_BODY_BYTES = 2**18  # of a call by the page's own API
MAX_UPLOAD_BYTES = 2**24  # of a picture whose settings are to be read
_SHARE = "body share"  # its key in the scope of a call
# Every open page holds a call for its heartbeat, so there are many.
MAX_CALLS = 1000
# One address may hold a quarter, so that it cannot keep the others out. That is enough for about a
# hundred open pages, such as those of a school behind one address.
MAX_CALLS_EACH = MAX_CALLS // 4
# Routes of an orchestrator, which must not restart the process because of a crowd.
_ALWAYS_ANSWERED = ("/healthz", "/readyz", "/metrics")


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


class BodyShare:
    """The share of one call in the memory for bodies."""

    def __init__(self, shares: Shares, address: str) -> None:
        self._shares = shares
        self._address = address
        self._bytes = 0

    def grow(self, to: int) -> None:
        """Have room for a body of so many bytes; the first `MAX_BODY_BYTES` are free.

        Raises:
            RequestError: if there is no room now.
        """
        num_bytes = to - MAX_BODY_BYTES - self._bytes
        if num_bytes <= 0:
            return
        if not self._shares.take(self._address, num_bytes):
            raise RequestError(Message(Code.TOO_MANY_UPLOADS), ErrorKind.TOO_MANY)
        self._bytes += num_bytes

    def give_back(self) -> None:
        """Let other calls have the room."""
        self._shares.give_back(self._address, self._bytes)
        self._bytes = 0


def give_back_body(scope: Scope) -> None:
    """Let other calls have the room of a call's body, of which nothing is kept any more."""
    scope[_SHARE].give_back()


def count_body(scope: Scope, size: int) -> None:
    """Count so many bytes for a call, which keeps others in place of its body.

    Raises:
        RequestError: if there is no room for them now.
    """
    give_back_body(scope)
    scope[_SHARE].grow(MAX_BODY_BYTES + size)


class SmallBodies:
    """Middleware that refuses bodies over the limit of their path, and too many large ones.

    FastAPI can do the first too, but it answers with text where clients expect JSON. Bodies of JSON
    are passed on when they are complete and have few enough tokens.
    """

    def __init__(self, app: ASGIApp, shares: Shares) -> None:
        self._app = app
        self._shares = shares

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if its stated length is small enough; count its bytes as they come."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        max_bytes = _most_bytes(scope["path"])
        length = Headers(scope=scope).get("content-length", "")
        if length.isdecimal() and float(length) > max_bytes:
            await errors.too_large(max_bytes, scope)(scope, receive, send)
            return
        share = BodyShare(self._shares, address_of(Request(scope)))
        try:
            share.grow(int(length) if length.isdecimal() else 0)
        except RequestError as error:
            await errors.refusal(error, scope)(scope, receive, send)
            return
        num_bytes = 0

        async def receive_small() -> types.Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > max_bytes:
                raise HTTPException(413, str(errors.too_large_message(max_bytes)))
            share.grow(num_bytes)
            return message

        try:
            try:
                receive_body = receive_small if _is_form(scope) else await _counted(receive_small)
            except RequestError as error:
                await errors.refusal(error, scope)(scope, receive, send)
            except HTTPException:
                await errors.too_large(max_bytes, scope)(scope, receive, send)
            else:
                await self._app({**scope, _SHARE: share}, receive_body, send)
        finally:
            share.give_back()


def _most_bytes(path: str) -> int:
    if path.rstrip("/") == UPLOAD_PATH:
        return MAX_UPLOAD_BYTES
    if path.rstrip("/") in PICTURE_PATHS:
        return MAX_PICTURE_BODY_BYTES
    apis = "/v1/", errors.A1111_PATH, MCP_PATH
    return MAX_BODY_BYTES if path.startswith(apis) else MAX_PAGE_BODY_BYTES


def _is_form(scope: Scope) -> bool:
    """Return whether a body may be a form; the page's own routes read JSON whatever it says."""
    if scope["path"].startswith(_PAGE_PATH):
        return scope["path"].rstrip("/") == UPLOAD_PATH
    return Headers(scope=scope).get("content-type", "").lower().startswith("multipart/")


async def _counted(receive: Receive) -> Receive:
    """Return a `receive` that gives a body as one message; it is complete by then.

    Raises:
        RequestError: if it has too many tokens of JSON.
    """
    tokens = JsonTokens()
    body = bytearray()
    while True:
        message = await receive()
        tokens.add(message.get("body", b""))
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    messages = [{**message, "body": bytes(body)} if message["type"] == "http.request" else message]
    del body

    async def receive_again() -> types.Message:
        return messages.pop() if messages else await receive()

    return receive_again
