"""Middleware for every HTTP request: checks of its head, security headers, lost clients."""

import re
from collections.abc import Callable, Sequence

from anyio import BrokenResourceError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.generator import ErrorKind, RequestError
from serving.http import errors


class Checks:
    """Middleware that refuses requests by their heads, before anything of a body is read."""

    def __init__(self, app: ASGIApp, checks: Sequence[Callable[[Request], object]]) -> None:
        self._app = app
        self._checks = checks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer with the error of the first check that fails."""
        answer = self._app
        if scope["type"] == "http":
            try:
                for check in self._checks:
                    check(Request(scope))
            except HTTPException as error:
                answer = errors.plain(error)
            except RequestError as error:
                answer = errors.refusal(error, scope)
                if error.kind is not ErrorKind.UNAUTHORISED:  # such a client may try again
                    answer.headers["Connection"] = "close"
        await answer(scope, receive, send)


class ChangedScope:
    """Middleware that changes what is known of each request before others see it."""

    def __init__(self, app: ASGIApp, change: Callable[[Scope], Scope]) -> None:
        self._app = app
        self._change = change

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with the changed scope."""
        if scope["type"] == "http":
            scope = self._change(scope)
        await self._app(scope, receive, send)


def without_ending_slashes(paths: re.Pattern[str], scope: Scope) -> Scope:
    """Return the scope of a request without slashes at the end of its path, if that is of an API.

    Other servers redirect such calls, which not every client follows.
    """
    path = scope["path"]
    return {**scope, "path": path.rstrip("/") if paths.match(path) else path}


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

    def __init__(
        self, app: ASGIApp, may_embed: Sequence[str], on_space: bool, is_private: bool
    ) -> None:
        self._app = app
        self._is_embedded = bool(may_embed)
        self._is_private = is_private  # whether no cache may keep an answer for several visitors
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
                if self._is_private:
                    headers.append("Cache-Control", "private")
                elif headers.get("Content-Type", "").startswith("text/html"):
                    # The page has the name of this server that its visitor, or a proxy, used.
                    headers.setdefault("Cache-Control", "no-cache")
                # A cached answer to this page lacks the CORS headers that other pages need.
                if self._is_embedded and "Origin" not in headers.get("Vary", ""):
                    headers.add_vary_header("Origin")
            await send(message)

        await self._app(scope, receive, send_with_headers)
