"""Middleware for every HTTP request: addresses, limits, timeouts, security headers, API keys."""

import asyncio
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable, Sequence
from urllib.parse import parse_qsl, urlencode

from anyio import BrokenResourceError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from serving import messages
from serving.generator import ErrorKind, RequestError
from serving.http import errors
from serving.requests.shares import Shares

UPLOAD_PATH = "/gradio_api/upload"
# The path of Gradio's own MCP server, which this one replaces; clients of Gradio look for it there.
MCP_PATH = "/gradio_api/mcp"
MAX_BODY_BYTES = 2**20
MAX_PAGE_BODY_BYTES = 2**18  # of a call by the page's own API
MAX_UPLOAD_BYTES = 2**24  # of a picture whose settings are to be read
HEAD_WITHIN_S = 10.0
BODY_WITHIN_S = 20.0
# A client that reads fewer bytes of an answer in this time is cut off; it holds a connection.
TAKE_WITHIN_S = 60.0
TAKE_AT_LEAST = 2**16
# Every open page holds a call for its heartbeat, so there are many.
MAX_CALLS = 1000
# One address may hold a quarter, so that it cannot keep the others out. That is enough for about a
# hundred open pages, such as those of a school behind one address.
MAX_CALLS_EACH = MAX_CALLS // 4


class PatientProtocol(H11Protocol):
    """HTTP/1.1 protocol that closes the connections of slow clients.

    A client is too slow if the headers of its next request take longer than `HEAD_WITHIN_S`, or if
    it reads less than `TAKE_AT_LEAST` bytes of an answer in `TAKE_WITHIN_S`.

    Attributes:
        addresses: limits of open connections, in all and for each address. None means no limit, for
            use behind a proxy, whose address all connections have.
    """

    addresses: Shares | None = None
    _counted = ""  # the address that this connection is counted for
    _timer: asyncio.TimerHandle | None = None  # for the next request's headers
    _watch: asyncio.TimerHandle | None = None  # for the client to read what is buffered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, and start the timer for the first request."""
        super().connection_made(transport)
        if self.addresses is not None:
            address = network_of(str(transport.get_extra_info("peername", ("",))[0]))
            if not self.addresses.take(address):
                self.transport.abort()
                return
            self._counted = address
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Stop the timer when the headers of a request are complete."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete and self._timer:
            self._timer.cancel()

    def on_response_complete(self) -> None:
        """Start the timer for the next request, unless that came early and has begun."""
        super().on_response_complete()
        if self.cycle.response_complete:
            self._wait()

    def pause_writing(self) -> None:
        """Start to watch whether the client reads what it is sent."""
        super().pause_writing()
        self._look_later()

    def resume_writing(self) -> None:
        """Stop watching the client, unless the connection is closing."""
        super().resume_writing()
        if self._watch and not self.transport.is_closing():
            self._watch.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers, and stop counting the connection."""
        for timer in filter(None, (self._timer, self._watch)):
            timer.cancel()
        if self.addresses is not None and self._counted:
            self.addresses.give_back(self._counted)
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self.loop.call_later(HEAD_WITHIN_S, self._close)

    def _close(self) -> None:
        self.transport.close()  # after the buffer is sent
        self._look_later()

    def _look_later(self) -> None:
        if self._watch:
            self._watch.cancel()
        if unsent := self.transport.get_write_buffer_size():
            self._watch = self.loop.call_later(TAKE_WITHIN_S, self._look, unsent)

    def _look(self, before: int) -> None:
        """Close the connection unless the client read `TAKE_AT_LEAST` bytes, or the whole buffer.

        `before`: bytes that were buffered at the last look.
        """
        if self.transport.get_write_buffer_size() > max(0, before - TAKE_AT_LEAST):
            self.transport.abort()
        else:
            self._look_later()


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
            refused = (
                RequestError(messages.TOO_MANY_CALLS, ErrorKind.TOO_MANY)
                if self._shares.has_room()
                else RequestError(messages.CROWDED, ErrorKind.UNAVAILABLE)
            )
            await errors.refusal(refused)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._shares.give_back(address)


class KeyCheck:
    """Middleware that refuses calls to `paths` without a valid API key, before reading the body."""

    def __init__(self, app: ASGIApp, keys: "ApiKeys", paths: re.Pattern[str]) -> None:
        self._app = app
        self._keys = keys
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on, or answer 401."""
        if scope["type"] == "http" and self._paths.match(scope["path"]):
            try:
                self._keys.visitor(Request(scope))
            except RequestError as error:
                await errors.refusal(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class SmallBodies:
    """Middleware that refuses bodies over the limit of their path.

    FastAPI can do this too, but it answers with text where clients expect JSON.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if its stated length is small enough; count its bytes as they come."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = _most_bytes(scope["path"])
        stated = Headers(scope=scope).get("content-length", "")
        if stated.isdecimal() and float(stated) > most:
            await errors.too_large(most)(scope, receive, send)
            return
        taken = 0

        async def receive_small() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > most:
                raise HTTPException(413)
            return message

        await self._app(scope, receive_small, send)


def _most_bytes(path: str) -> int:
    if path.rstrip("/") == UPLOAD_PATH:
        return MAX_UPLOAD_BYTES
    return MAX_BODY_BYTES if path.startswith(("/v1/", MCP_PATH)) else MAX_PAGE_BODY_BYTES


class PatientBodies:
    """Middleware that aborts a request whose body takes too long."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; the time limit ends when its body is complete."""
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


# Gradio's routes that this page does not need. They fetch from other hosts (URLs as files, the
# proxy), call methods of components, keep the state of sessions, watch the source or visitors,
# change the source, tell who is logged in, or draw an icon of any size that a client asks for.
CLOSED = re.compile(
    r"""/gradio_api/(
        file[=/]+[a-z][a-z0-9+.-]*: | (proxy= | cancel | component_server | custom_component
        | deep_link | dev | login_check | mcp/(messages|schema|sse) | process_recording | reset
        | run-history | runs | startup-events | stream | token | undo-vibe | user | vibe)
    ) | /monitoring | /pwa_icon/""",
    re.IGNORECASE | re.VERBOSE,
)


class GuardedRoutes:
    """Middleware that closes the routes of Gradio that clients must not use."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer closed routes with 404; pass all other requests on."""
        if scope["type"] == "http" and CLOSED.match(scope["path"]):
            await JSONResponse({"detail": "Not Found"}, 404)(scope, receive, send)
            return
        if scope["type"] == "http":
            # With this header a client could tell Gradio what the page's own address is.
            headers = [each for each in scope["headers"] if each[0] != b"x-gradio-server"]
            scope = {**scope, "headers": headers, "query_string": _query_of_one_page(scope)}
        await self._app(scope, receive, send)


def _query_of_one_page(scope: Scope) -> bytes:
    """Return the query without `page`: there is one page, and Gradio fails for any other.

    If no page is named, Gradio caches its first answer to `/gradio_api/info` for all clients. That
    answer has the host name in it that the first client sent, which may be made up. So the empty
    page is named there.
    """
    query = scope["query_string"]
    if b"page" in query:
        fields = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        query = urlencode([field for field in fields if field[0] != "page"]).encode()
    return b"page=&" + query if scope["path"].rstrip("/") == "/gradio_api/info" else query


class Departures:
    """Middleware that ignores the error when a client leaves while it is sent an answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; FastAPI would log a traceback when a client leaves some streams."""
        try:
            await self._app(scope, receive, send)
        except* BrokenResourceError:
            pass


class ClientAddress:
    """Middleware that sets a request's address to the visitor's own, as limits count it.

    See `network_of`. Each of the `trusted_proxies` proxies appends the address that it was called
    from to `X-Forwarded-For`. So the entry that counts is that many places from the end. The client
    may have written the entries before it.
    """

    def __init__(self, app: ASGIApp, trusted_proxies: int) -> None:
        self._app = app
        self._proxies = trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with the visitor's `scope["client"]` and `scope["scheme"]`."""
        if scope["type"] == "http" and scope.get("client"):
            host, port = scope["client"]
            scope = {**scope, "client": (network_of(host), port)}
        if scope["type"] == "http" and self._proxies:
            headers = Headers(scope=scope)
            if headers.get("x-forwarded-proto", "").rpartition(",")[2].strip() == "https":
                scope = {**scope, "scheme": "https"}
            lines = headers.getlist("x-forwarded-for")
            hops = [hop.strip() for hop in ",".join(lines).split(",") if hop.strip()]
            if len(hops) >= self._proxies:
                scope = {**scope, "client": (network_of(hops[-self._proxies][:64]), 0)}
        await self._app(scope, receive, send)


class SecurityHeaders:
    """Middleware that adds the headers with which browsers restrict what the page can do."""

    def __init__(self, app: ASGIApp, may_embed: Sequence[str], on_space: bool) -> None:
        self._app = app
        self._is_embedded = bool(may_embed)
        # This site shows a Space in a frame.
        hub = ["https://huggingface.co"] if on_space else []
        # Gradio's page needs inline scripts and styles, and makes functions from text (eval).
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
            "frame-ancestors": " ".join(["'self'", *hub, *may_embed]),
        }
        self._headers = {
            "Content-Security-Policy": "; ".join(f"{k} {v}" for k, v in policy.items()),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "strict-origin-when-cross-origin",
            "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and add the headers to its answer."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                # A cached answer to this page lacks the CORS headers that other pages need.
                if self._is_embedded and "Origin" not in headers.get("Vary", ""):
                    headers.add_vary_header("Origin")
            await send(message)

        await self._app(scope, receive, send_with_headers)


class ApiKeys:
    """The accepted API keys. If there are none, no key is needed."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def visitor(self, request: Request) -> str:
        """Return the visitor that a request comes from: the owner of its key, or its address.

        Raises:
            RequestError: if a key is needed, and the request has none or a wrong one.
        """
        if not self._digests:
            return address_of(request)
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        digest = _digest(key.strip())
        # Compare with every key in constant time: the time of the answer must tell nothing.
        known = [hmac.compare_digest(digest, one) for one in self._digests]
        if scheme.lower() != "bearer" or not any(known):
            message = "A valid API key is needed, as 'Authorization: Bearer KEY'."
            raise RequestError(message, ErrorKind.UNAUTHORISED)
        return f"key {digest[:8].hex()}"


def address_of(request: Request) -> str:
    """Return the address that a request comes from, or ""."""
    return request.client.host if request.client else ""


def network_of(host: str) -> str:
    """Return the address under which limits count a host.

    One customer of a provider has 2^64 or more IPv6 addresses, which count as one network.
    An IPv4 address within IPv6 counts as itself. A host that is no address is returned as it is.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
