"""What every HTTP request passes before it is looked at: addresses, patience, headers, keys."""

import asyncio
import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence

from anyio import BrokenResourceError
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from serving.generator import ErrorKind, RequestError

MAX_BODY_BYTES = 2**20
MAX_UPLOAD_BYTES = 2**24  # of a picture whose settings are to be read
HEAD_WITHIN_S = 10.0
BODY_WITHIN_S = 20.0


class PatientProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose next request's headers take too long."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Waits no more once the headers are there."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete and self._timer:
            self._timer.cancel()

    def on_response_complete(self) -> None:
        """Waits for the next request."""
        self._wait()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to wait for."""
        if self._timer:
            self._timer.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self.loop.call_later(HEAD_WITHIN_S, self.transport.close)


class PatientBodies:
    """Breaks off a request whose body takes too long."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on; once the body is there, there is no limit."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        complete = False
        deadline = asyncio.get_running_loop().time() + BODY_WITHIN_S

        async def receive_in_time() -> Message:
            nonlocal complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                return {"type": "http.disconnect"}
            complete = not message.get("more_body", False)
            return message

        await self._app(scope, receive_in_time, send)


# Gradio's routes that this page does not need: what fetches from other hosts (URLs as files, the
# proxy), calls methods of components, keeps the state of sessions, watches the source or visitors,
# or draws an icon as large as anybody says.
_CLOSED = re.compile(
    r"""/gradio_api/(
        file[=/]+[a-z][a-z0-9+.-]*: | (proxy= | component_server | custom_component | deep_link
        | dev | mcp/(messages|schema|sse) | process_recording | run-history | runs | stream | vibe)
    ) | /monitoring | /pwa_icon/""",
    re.IGNORECASE | re.VERBOSE,
)


class GuardedRoutes:
    """Answers for those of Gradio's routes that nobody should be able to use here."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on all other requests."""
        if scope["type"] == "http" and _CLOSED.match(scope["path"]):
            await JSONResponse({"detail": "Not Found"}, 404)(scope, receive, send)
            return
        if scope["type"] == "http" and scope["path"].rstrip("/") == "/gradio_api/info":
            # With no page named, Gradio tells everybody what it told the first who asked: with the
            # host name in it that they had made up.
            scope = {**scope, "query_string": b"page=&" + scope["query_string"]}
        await self._app(scope, receive, send)


class Departures:
    """Makes nothing of it that a visitor walks away while something is being sent."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on; of some streams FastAPI would log a page for each who left."""
        try:
            await self._app(scope, receive, send)
        except* BrokenResourceError:
            pass


class ClientAddress:
    """Puts the visitor's own address where the nearest of so many trusted proxies was.

    Each proxy appends whom it heard from to `X-Forwarded-For`, so the entry that counts is the
    one as many places from the end; what stands before it anybody may have written.
    """

    def __init__(self, app: ASGIApp, trusted_proxies: int) -> None:
        self._app = app
        self._proxies = trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on with `scope["client"]` set right."""
        if scope["type"] == "http" and self._proxies:
            lines = Headers(scope=scope).getlist("x-forwarded-for")
            hops = [hop.strip() for hop in ",".join(lines).split(",") if hop.strip()]
            if len(hops) >= self._proxies:
                scope = {**scope, "client": (hops[-self._proxies][:64], 0)}
        await self._app(scope, receive, send)


class SecurityHeaders:
    """Tells browsers what this page never does, so that nobody makes it."""

    def __init__(self, app: ASGIApp, may_embed: Sequence[str]) -> None:
        self._app = app
        self._is_embedded = bool(may_embed)
        # Gradio's page needs inline scripts and styles, and makes functions out of text.
        policy = {
            "default-src": "'self'",
            "script-src": "'self' 'unsafe-inline' 'unsafe-eval' blob:",
            "style-src": "'self' 'unsafe-inline'",
            "img-src": "'self' data: blob:",
            "font-src": "'self' data:",
            "media-src": "'self' data: blob:",
            "worker-src": "'self' blob:",
            "object-src": "'none'",
            "base-uri": "'self'",
            "form-action": "'self'",
            "frame-ancestors": " ".join(["'self'", "https://huggingface.co", *may_embed]),
        }
        self._headers = {
            "Content-Security-Policy": "; ".join(f"{k} {v}" for k, v in policy.items()),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "strict-origin-when-cross-origin",
            "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on, with these headers in the answer."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                # What is kept of an answer to this page would not do for others, which need leave.
                if self._is_embedded and "Origin" not in headers.get("Vary", ""):
                    headers.add_vary_header("Origin")
            await send(message)

        await self._app(scope, receive, send_with_headers)


class Keys:
    """The API keys that are accepted; none at all means that no key is needed."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def visitor(self, request: Request) -> str:
        """Who asks: the owner of a key, or else an address.

        Raises:
            RequestError: a key is needed, and this request has none or a wrong one.
        """
        if not self._digests:
            return address_of(request)
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        digest = _digest(key.strip())
        # All are compared, and in constant time.
        known = [hmac.compare_digest(digest, one) for one in self._digests]
        if scheme.lower() != "bearer" or not any(known):
            message = "A valid API key is needed, as 'Authorization: Bearer KEY'."
            raise RequestError(message, ErrorKind.UNAUTHORISED)
        return f"key {digest[:8].hex()}"


def address_of(request: Request) -> str:
    """Where a request comes from, or ""."""
    return request.client.host if request.client else ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
