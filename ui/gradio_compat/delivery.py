"""How Gradio's part of the page reaches the browser: kept there, and nothing that is not used."""

import re
from pathlib import Path

import gradio
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Names of these files change with their contents.
_ASSETS = "/assets/"
_FOR_EVER = "public, max-age=31536000, immutable"

_FOLDER = Path(gradio.__file__).parent / "templates" / "frontend" / "assets"
# The gallery could play films, and brings a player: a quarter of all there would be to fetch.
_PLAYER = "hls-*.js"
_EXPORTS = re.compile(r"export\{([^}]*)\}")


class Delivery:
    """Has browsers keep what cannot change, and hands out an empty shell in the player's place."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._shells = {f"{_ASSETS}{file.name}": _shell(file) for file in _FOLDER.glob(_PLAYER)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on but the player."""
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
    """A module that exports the same names, and nothing behind them."""
    [names] = _EXPORTS.findall(file.read_text(encoding="utf-8")[-500:])
    exported = ", ".join(
        f"nothing as {each.split(' as ')[-1].strip()}" for each in names.split(",")
    )
    return f"const nothing = undefined;\nexport {{ {exported} }};\n"
