"""The page as part of a web application."""

from collections.abc import Callable
from pathlib import Path

import gradio as gr
from fastapi import FastAPI
from gradio.routes import App
from starlette.routing import Mount

from serving.generator import Generator
from serving.http_guard import MAX_UPLOAD_BYTES
from ui import downloads, theme
from ui.page import build_page

SCRIPT = Path(__file__).with_name("page.js")


def mount(app: FastAPI, generator: Generator, host: str, port: int) -> Callable[[], None]:
    """Serves the page of a generator at the application's root; `host` and `port` are its own.

    Returns what ends the streams by which open pages stay in touch.
    """
    downloads.connect(app)
    gr.mount_gradio_app(
        app,
        build_page(generator),
        path="/",
        server_name=host,
        server_port=port,
        theme=theme.theme(),
        css_paths=[theme.CSS],
        js=SCRIPT.read_text(encoding="utf-8"),
        footer_links=["api"],
        ssr_mode=False,
        run_history=False,
        enable_monitoring=False,
        max_file_size=MAX_UPLOAD_BYTES,
    )
    [page] = [route.app for route in app.routes if isinstance(route, Mount)]
    assert isinstance(page, App)
    return page.stop_event.set
