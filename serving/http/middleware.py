"""What every HTTP request passes before it is looked at: addresses, patience, headers, keys."""

import asyncio
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable, Sequence

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
# Where Gradio would serve its own, which programs that know Gradio look for.
MCP_PATH = "/gradio_api/mcp"
MAX_BODY_BYTES = 2**20
MAX_PAGE_BODY_BYTES = 2**18  # of a call by the page's own API
MAX_UPLOAD_BYTES = 2**24  # of a picture whose settings are to be read
HEAD_WITHIN_S = 10.0
BODY_WITHIN_S = 20.0
# Who takes less of an answer in so long is gone, or holds a place of a crowd for nothing.
TAKE_WITHIN_S = 60.0
TAKE_AT_LEAST = 2**16
# Every open page holds a call for its heartbeat, so they are many.
MAX_CALLS = 1000
# One address may hold a quarter, so that it cannot keep the others out. Behind one address can be
# a whole school: this is enough for about a hundred open pages.
MAX_CALLS_EACH = MAX_CALLS // 4


class PatientProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose next request's headers take too long.

    And one whose client does not take what it is sent.

    Attributes:
        addresses: counts the open connections of each address and closes those over its limit;
            None counts nothing, which is right behind a proxy, whose address they all have.
    """

    addresses: Shares | None = None
    _counted = ""  # the address that this connection is counted for
    _timer: asyncio.TimerHandle | None = None  # for the next request's headers
    _watch: asyncio.TimerHandle | None = None  # while more is to be sent than the system buffers

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for the first request."""
        super().connection_made(transport)
        if self.addresses is not None:
            address = network_of(str(transport.get_extra_info("peername", ("",))[0]))
            if not self.addresses.take(address):
                self.transport.abort()
                return
            self._counted = address
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Waits no more once the headers are there."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete and self._timer:
            self._timer.cancel()

    def on_response_complete(self) -> None:
        """Waits for the next request, unless it came early and has begun."""
        super().on_response_complete()
        if self.cycle.response_complete:
            self._wait()

    def pause_writing(self) -> None:
        """Looks whether the client takes what it is sent."""
        super().pause_writing()
        self._look_later()

    def resume_writing(self) -> None:
        """Nothing to look for, unless this is the end and nothing more will be sent."""
        super().resume_writing()
        if self._watch and not self.transport.is_closing():
            self._watch.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to wait for."""
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
        self.transport.close()  # once all is sent
        self._look_later()

    def _look_later(self) -> None:
        if self._watch:
            self._watch.cancel()
        if unsent := self.transport.get_write_buffer_size():
            self._watch = self.loop.call_later(TAKE_WITHIN_S, self._look, unsent)

    def _look(self, before: int) -> None:
        """Hangs up unless much was taken of what had not been sent, or all of it."""
        if self.transport.get_write_buffer_size() > max(0, before - TAKE_AT_LEAST):
            self.transport.abort()
        else:
            self._look_later()


# What an orchestrator asks: a crowd is no reason to start the process again.
_ALWAYS_ANSWERED = ("/healthz", "/readyz", "/metrics")


class CallLimit:
    """Answers a limited number of calls at a time, in all and for each address."""

    def __init__(self, app: ASGIApp, shares: Shares) -> None:
        self._app = app
        self._shares = shares

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on if there is room for it, and always if it asks for health."""
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
    """Refuses calls to the given paths that bring no valid API key, before their body is read."""

    def __init__(self, app: ASGIApp, keys: "Keys", paths: re.Pattern[str]) -> None:
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
    """Refuses bodies larger than anything that belongs here.

    FastAPI would do so, too, but with a text where programs expect JSON.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on what is small enough, for all that is known before it is read."""
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
# changes the source, tells who is logged in, or draws an icon as large as anybody says.
CLOSED = re.compile(
    r"""/gradio_api/(
        file[=/]+[a-z][a-z0-9+.-]*: | (proxy= | component_server | custom_component | deep_link
        | dev | login_check | mcp/(messages|schema|sse) | process_recording | run-history | runs
        | startup-events | stream | token | undo-vibe | user | vibe)
    ) | /monitoring | /pwa_icon/""",
    re.IGNORECASE | re.VERBOSE,
)


class GuardedRoutes:
    """Answers for those of Gradio's routes that nobody should be able to use here."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on all other requests."""
        if scope["type"] == "http" and CLOSED.match(scope["path"]):
            await JSONResponse({"detail": "Not Found"}, 404)(scope, receive, send)
            return
        if scope["type"] == "http" and scope["path"].rstrip("/") == "/gradio_api/info":
            # With no page named, Gradio tells everybody what it told the first who asked: with the
            # host name in it that they had made up.
            scope = {**scope, "query_string": b"page=&" + scope["query_string"]}
        if scope["type"] == "http":
            # By this header a caller would tell Gradio what the page's own address is.
            headers = [each for each in scope["headers"] if each[0] != b"x-gradio-server"]
            scope = {**scope, "headers": headers}
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
    """Replaces a request's address by the visitor's own, as limits count it (`network_of`).

    Behind `trusted_proxies` proxies, each appends the address that it was called from to
    `X-Forwarded-For`. So the entry that counts is that many places from the end; anybody may have
    written what stands before it.
    """

    def __init__(self, app: ASGIApp, trusted_proxies: int) -> None:
        self._app = app
        self._proxies = trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with `scope["client"]` and `scope["scheme"]` set right."""
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
    """Tells browsers what this page never does, so that nobody makes it."""

    def __init__(self, app: ASGIApp, may_embed: Sequence[str], on_space: bool) -> None:
        self._app = app
        self._is_embedded = bool(may_embed)
        # Where a Space is always shown in a frame.
        hub = ["https://huggingface.co"] if on_space else []
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
            "frame-ancestors": " ".join(["'self'", *hub, *may_embed]),
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


def network_of(host: str) -> str:
    """Return the address that limits count a host under.

    One customer of a provider has 2^64 addresses of IPv6 or more: they count as one network.
    An IPv4 address within IPv6 counts as itself. What is no address is returned as it is.
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
