"""Delivery of Gradio's assets: cached by the browser, and two of them changed.

The page uses no video player, and Gradio's client leaves its calls to `network.js`.
"""

import re
from pathlib import Path

import gradio
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# The names of these files change with their contents, so that they can be cached for good.
_ROUTE, _ASSETS = "/assets/{path:path}", "/assets/"
_FOR_EVER = "public, max-age=31536000, immutable"

_FRONTEND = Path(gradio.__file__).parent / "templates" / "frontend"
_FOLDER = _FRONTEND / "assets"
# The gallery loads a video player, which this page never uses: a quarter of all that is fetched.
_PLAYER = "hls-*.js"
_EXPORTS = re.compile(r"export\{([^}]*)\}")
# The module with Gradio's client, as the script of `<gradio-app>` names it, and the first line that
# it gets: its own `fetch`, which leaves that of the page around it as it is. Browsers cache the
# module under Gradio's name for it, so the line must never change.
_CLIENT = re.compile(r"index-[\w-]+\.js")
_OWN_FETCH = """\
const fetch = (...call) => (window[Symbol.for("sdxl-fetch")] ?? window.fetch)(...call);
"""


def connect(app: FastAPI, tags: str) -> None:
    """Change the delivery of a page that Gradio has mounted; `tags` are added to its head."""
    for route in app.routes:
        if isinstance(route, APIRoute) and route.path == _ROUTE:
            route.app = _Delivery(route.app)
        if isinstance(route, APIRoute) and route.path == "/" and "GET" in (route.methods or ()):
            route.app = _WithTags(route.app, tags)


class _WithTags:
    """Wrapper of the page's route that adds tags to the head, before its first script.

    Gradio adds what it is given for the head only when its own scripts run.
    """

    def __init__(self, app: ASGIApp, tags: str) -> None:
        self._app = app
        self._tags = tags.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for the page."""
        start: Message = {}

        async def send_with_tags(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
            elif message["type"] == "http.response.body":
                body = message["body"].replace(b"<script", self._tags + b"<script", 1)
                MutableHeaders(scope=start)["Content-Length"] = str(len(body))
                await send(start)
                await send({**message, "body": body})

        await self._app(scope, receive, send_with_tags)


class _Delivery:
    """Wrapper of a route that lets browsers cache the assets, and serves two of them changed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        client = _FOLDER / _CLIENT.findall((_FRONTEND / "gradio.js").read_text(encoding="utf-8"))[0]
        changed = {file: _shell(file) for file in _FOLDER.glob(_PLAYER)}
        changed[client] = _OWN_FETCH + client.read_text(encoding="utf-8")
        self._changed = {f"{_ASSETS}{file.name}": text for file, text in changed.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass requests on, and answer those for a changed module."""

        async def send_to_keep(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in (200, 304):
                MutableHeaders(scope=message)["Cache-Control"] = _FOR_EVER
            await send(message)

        text = self._changed.get(scope["path"])
        app = self._app if text is None else Response(text, media_type="text/javascript")
        await app(scope, receive, send_to_keep)


def _shell(file: Path) -> str:
    """Return the source of a module that exports the names of `file`, all undefined."""
    [names] = _EXPORTS.findall(file.read_text(encoding="utf-8")[-500:])
    exported = ", ".join(
        f"nothing as {name.split(' as ')[-1].strip()}" for name in names.split(",")
    )
    return f"const nothing = undefined;\nexport {{ {exported} }};\n"
