"""The script of the `<gradio-app>` element, by which other pages show this one."""

from pathlib import Path

import gradio as gr
from fastapi import FastAPI
from fastapi.responses import Response

COMPONENT = Path(__file__).with_name("component.js")


def connect(app: FastAPI) -> None:
    """Have an application serve the script, which Gradio ships without a route."""
    gradios = Path(gr.__file__).parent / "templates" / "frontend" / "gradio.js"
    script = "\n".join(file.read_text(encoding="utf-8") for file in (COMPONENT, gradios))

    # Not cached, because it names the newest scripts, whose names change with their contents.
    @app.get("/gradio.js", include_in_schema=False)
    async def component() -> Response:
        headers = {"Cache-Control": "no-cache"}
        return Response(script, headers=headers, media_type="text/javascript")
