"""Middleware for every HTTP request: closed routes of Gradio, security headers, lost clients."""

import re
from collections.abc import Sequence
from urllib.parse import parse_qsl, urlencode

from anyio import BrokenResourceError
from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
            headers = [header for header in scope["headers"] if header[0] != b"x-gradio-server"]
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
    """Middleware that ignores the error of a client that leaves during its answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; FastAPI would log a traceback when a client leaves some streams."""
        try:
            await self._app(scope, receive, send)
        except* BrokenResourceError:
            pass


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
