"""Delivery of Gradio's assets: cached by the browser, and without an unused video player."""

import re
from pathlib import Path

import gradio
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# The names of these files change with their contents, so that they can be cached for good.
_ASSETS = "/assets/"
_FOR_EVER = "public, max-age=31536000, immutable"

_FOLDER = Path(gradio.__file__).parent / "templates" / "frontend" / "assets"
# The gallery loads a video player, which this page never uses: a quarter of all that is fetched.
_PLAYER = "hls-*.js"
_EXPORTS = re.compile(r"export\{([^}]*)\}")


class Delivery:
    """Middleware that lets browsers cache the assets, and serves an empty module as the player."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._shells = {f"{_ASSETS}{file.name}": _shell(file) for file in _FOLDER.glob(_PLAYER)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass requests on, and answer one for the player with the empty module."""
        if scope["type"] != "http" or not scope["path"].startswith(_ASSETS):
            await self._app(scope, receive, send)
            return

        async def send_to_keep(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in (200, 304):
                MutableHeaders(scope=message)["Cache-Control"] = _FOR_EVER
            await send(message)

        shell = self._shells.get(scope["path"])
        app = self._app if shell is None else Response(shell, media_type="text/javascript")
        await app(scope, receive, send_to_keep)


def _shell(file: Path) -> str:
    """Return the source of a module that exports the names of `file`, all undefined."""
    [names] = _EXPORTS.findall(file.read_text(encoding="utf-8")[-500:])
    exported = ", ".join(
        f"nothing as {name.split(' as ')[-1].strip()}" for name in names.split(",")
    )
    return f"const nothing = undefined;\nexport {{ {exported} }};\n"
