"""The page as part of a web application."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi import FastAPI
from fastapi.responses import Response
from gradio.routes import App
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Mount

from serving.generator import Generator
from serving.http.middleware import MAX_UPLOAD_BYTES
from ui import style_pictures, theme
from ui.gradio_compat import sessions
from ui.gradio_compat.calls import CheckedCalls
from ui.gradio_compat.delivery import Delivery
from ui.gradio_compat.idempotency import Once
from ui.gradio_compat.languages import in_every_language
from ui.gradio_compat.sessions import Sessions
from ui.gradio_compat.uploads import Uploads
from ui.model_kind import kind_of
from ui.page import build_page
from ui.pictures import downloads, files

STATIC = Path(__file__).parents[1] / "static"
SCRIPT = STATIC / "page.js"
HEAD = STATIC / "head.html"
ICON = STATIC / "icon.svg"
COMPONENT = Path(__file__).with_name("component.js")


def mount(
    app: FastAPI,
    generator: Generator,
    host: str,
    port: int,
    keep_files_s: int,
    *,
    programs: bool = True,
) -> Callable[[], None]:
    """Serves the page of a generator at the application's root; `host` and `port` are its own.

    Files of pictures, and what is known of a page that is not used, are kept for `keep_files_s`
    seconds, or a little longer. `programs`: whether they may call the page's own API. Returns what
    ends the streams by which open pages stay in touch.
    """
    uploads = Uploads()
    uploads.connect(app)
    _offer_component(app)
    downloads.connect(app)
    style_pictures.connect(app, kind_of(generator.model))
    page, i18n = in_every_language(lambda: build_page(generator, programs=programs))
    gr.mount_gradio_app(
        app,
        page,
        path="/",
        i18n=i18n,
        server_name=host,
        server_port=port,
        favicon_path=str(ICON),
        pwa=True,
        theme=theme.theme(),
        css_paths=[theme.CSS],
        js=SCRIPT.read_text(encoding="utf-8"),
        head_paths=[HEAD],
        footer_links=["api"] if programs else [],
        ssr_mode=False,
        mcp_server=False,  # `serving.http.mcp` has one, which hands pictures out as pictures
        run_history=False,
        enable_monitoring=False,
        max_file_size=MAX_UPLOAD_BYTES,
    )
    [mounted] = [route.app for route in app.routes if isinstance(route, Mount)]
    assert isinstance(mounted, App)
    # Gradio checks which files a call may name only once it is told that the page is served.
    page.has_launched = True
    mounted.state_holder = pages = Sessions(page)
    _tidy_up(app, pages, uploads, keep_files_s)
    mounted.add_middleware(CheckedCalls, page=page, sessions=pages, uploads=uploads)
    mounted.add_middleware(Once)
    mounted.add_middleware(Delivery)
    mounted.add_middleware(
        GZipMiddleware, compresslevel=6
    )  # of what Gradio itself does not compress
    return mounted.stop_event.set


def _offer_component(app: FastAPI) -> None:
    """Serves the script of the `<gradio-app>` element, which other pages show this one with."""
    gradios = Path(gr.__file__).parent / "templates" / "frontend" / "gradio.js"
    script = "\n".join(file.read_text(encoding="utf-8") for file in (COMPONENT, gradios))

    # It names the newest scripts, whose own names change with what is in them.
    @app.get("/gradio.js", include_in_schema=False)
    async def component() -> Response:
        headers = {"Cache-Control": "no-cache"}
        return Response(script, headers=headers, media_type="text/javascript")


def _tidy_up(app: FastAPI, pages: Sessions, uploads: Uploads, keep_s: float) -> None:
    """Has what is no longer needed removed for as long as the application runs."""
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
        async with inner(app) as state:
            tidying = [
                asyncio.create_task(files.remove_old(keep_s, keep_s / 6)),
                asyncio.create_task(sessions.forget_unused(pages, keep_s, keep_s / 6)),
                asyncio.create_task(uploads.keep_tidy()),
            ]
            yield state
            for task in tidying:
                task.cancel()

    app.router.lifespan_context = lifespan
