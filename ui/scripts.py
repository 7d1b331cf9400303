"""The page's scripts: ES modules, which browsers cache by their version.

They are evaluated before Gradio's own. So each part of the page that has a script finds it when
Gradio mounts the part (`static/main.js`).
"""

import hashlib
import json
from pathlib import Path

from fastapi import FastAPI, HTTPException, Response

_HERE = Path(__file__).parent
_SOURCES = ("static/*.js", "static/start/*", "gradio_compat/network.js", "gradio_compat/repairs.js")
_FILES = {
    file.relative_to(_HERE).as_posix(): file.read_bytes()
    for source in _SOURCES
    for file in sorted(_HERE.glob(source))
}
VERSION = hashlib.sha256(b"\0".join(_FILES.values())).hexdigest()[:16]
MAIN = f"scripts/{VERSION}/static/main.js"
# The modules that every page needs, by their addresses relative to the page. A browser would find
# one after the other.
MODULES = [f"scripts/{VERSION}/{name}" for name in _FILES if not name.startswith("static/start/")]
# Tags for the head of the page.
TAGS = "".join(
    [
        *(f'<link rel="modulepreload" href="{address}">' for address in MODULES),
        f'<script type="module" src="{MAIN}"></script>',
    ]
)
# Gradio runs this when it has mounted a part. An element of another page names its server.
_BEGIN = """
const source = element.closest("gradio-app")?.getAttribute("src");
const home = new URL(source ? source.replace(/\\/?$/, "/") : location.pathname, location.href);
const events = %s;
window[Symbol.for("sdxl %s")]("%s", { element, props, trigger, watch, home, events });
"""


def part(name: str, *events: str) -> str:
    """Return what Gradio runs for a part of the page.

    Args:
        name: the name of the part's script in `main.js`.
        events: its events that are not Gradio's own; Gradio looks for their names here.
    """
    return _BEGIN % (json.dumps([*events]), VERSION, name)


def connect(app: FastAPI) -> None:
    """Add the route that serves the scripts. Their addresses change with their contents."""

    @app.get("/scripts/{version}/{path:path}", include_in_schema=False)
    async def script(version: str, path: str) -> Response:
        if version != VERSION or path not in _FILES:
            raise HTTPException(404)
        kind = "text/css" if path.endswith(".css") else "text/javascript"
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}
        return Response(_FILES[path], headers=headers, media_type=kind)
