"""The script of the `<gradio-app>` element, by which other pages show this one."""

import json
from collections.abc import Sequence
from pathlib import Path

import gradio as gr
from fastapi import FastAPI
from fastapi.responses import Response

COMPONENT = Path(__file__).with_name("component.js")


_LOAD = """
for (const address of {modules}) {{
  const link = document.createElement("link");
  Object.assign(link, {{ rel: "modulepreload", href: new URL(address, import.meta.url) }});
  document.head.append(link);
}}
await import("./{main}");
"""


def connect(app: FastAPI, main: str, modules: Sequence[str]) -> None:
    """Have an application serve the script, which Gradio ships without a route.

    Args:
        app: the application.
        main: the address of the page's own module, which is evaluated before Gradio's script.
        modules: those of the modules that it needs.
    """
    gradios = Path(gr.__file__).parent / "templates" / "frontend" / "gradio.js"
    load = _LOAD.format(modules=json.dumps([*modules]), main=main)
    script = "\n".join([COMPONENT.read_text(encoding="utf-8"), load, gradios.read_text("utf-8")])

    # Not cached, because it names the newest scripts, whose names change with their contents.
    @app.get("/gradio.js", include_in_schema=False)
    async def component() -> Response:
        headers = {"Cache-Control": "no-cache"}
        return Response(script, headers=headers, media_type="text/javascript")
