"""The page as part of a web application."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi import FastAPI
from gradio.routes import App
from starlette.routing import Mount

from serving.generator import Generator
from serving.http_guard import MAX_UPLOAD_BYTES
from ui import files, theme
from ui.page import build_page

SCRIPT = Path(__file__).with_name("page.js")


def mount(
    app: FastAPI, generator: Generator, host: str, port: int, keep_files_s: int
) -> Callable[[], None]:
    """Serves the page of a generator at the application's root; `host` and `port` are its own.

    Files of pictures are kept for `keep_files_s` seconds, or a little longer. Returns what ends the
    streams by which open pages stay in touch.
    """
    every_s = keep_files_s // 6
    _tidy_up(app, every_s)
    gr.mount_gradio_app(
        app,
        build_page(generator, (every_s, keep_files_s)),
        path="/",
        server_name=host,
        server_port=port,
        theme=theme.theme(),
        css_paths=[theme.CSS],
        js=SCRIPT.read_text(encoding="utf-8"),
        footer_links=["api"],
        ssr_mode=False,
        mcp_server=False,  # `serving.http_mcp` has one, which hands pictures out as pictures
        run_history=False,
        enable_monitoring=False,
        max_file_size=MAX_UPLOAD_BYTES,
    )
    [page] = [route.app for route in app.routes if isinstance(route, Mount)]
    assert isinstance(page, App)
    return page.stop_event.set


def _tidy_up(app: FastAPI, every_s: float) -> None:
    """Has empty folders removed for as long as the application runs."""
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
        async with inner(app) as state:
            tidying = asyncio.create_task(files.remove_empty_folders(every_s))
            yield state
            tidying.cancel()

    app.router.lifespan_context = lifespan
