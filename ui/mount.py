"""The page as part of a web application."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi import FastAPI

from serving.generator import Generator
from serving.http.auth import ApiKeys
from serving.http.limits import MAX_UPLOAD_BYTES
from ui import controls, i18n, live, looks, scripts, theme
from ui.gradio_compat import component, sessions
from ui.gradio_compat.guard import guard
from ui.gradio_compat.languages import in_every_language
from ui.gradio_compat.sessions import Sessions
from ui.gradio_compat.uploads import Uploads
from ui.page import following
from ui.page.page import build_page
from ui.pictures import downloads, files
from ui.samples import sample_pictures
from ui.samples.model_kind import kind_of

STATIC = Path(__file__).parent / "static"
HEAD = STATIC / "head.html"
ICON = STATIC / "icon.svg"


def mount(
    app: FastAPI,
    generator: Generator,
    host: str,
    port: int,
    keep_files_s: int,
    *,
    programs: bool = True,
    keys: ApiKeys | None = None,
    guarded: bool = False,
    root_path: str = "",
) -> Callable[[], None]:
    """Mount the page of a generator at the root of an application.

    Args:
        app: the application, without a page so far.
        generator: draws what the page's visitors ask for.
        host: the address that the application listens on.
        port: its port.
        keep_files_s: how long the files of pictures, and the sessions of unused pages, are kept, in
            seconds; they may stay a sixth longer.
        programs: whether programs may call the page's own API.
        keys: API keys, one of which these programs need; if there are none, no key is needed.
        guarded: whether visitors have to sign in, so that the page offers to sign out.
        root_path: the path under which a proxy shows the page.

    Returns:
        A function that ends the streams by which open pages stay in touch.
    """
    app.state.translate = i18n.translate_for
    uploads = Uploads()
    uploads.connect(app)
    component.connect(app, scripts.MAIN, scripts.MODULES)
    downloads.connect(app)
    following.connect(app, generator)
    live.connect(app, generator)
    controls.connect(app, generator)
    scripts.connect(app)
    for samples in (sample_pictures.STYLES, sample_pictures.EXAMPLES):
        samples.connect(app, kind_of(generator.facts))
    looks.connect_pictures(app, generator)
    page, translations = in_every_language(
        _pages(generator, programs, guarded),
        {language: texts["GRADIOS"] for language, texts in i18n.LANGUAGES.items()},
    )
    gr.mount_gradio_app(
        app,
        page,
        path="/",
        root_path=root_path or None,
        i18n=translations,
        server_name=host,
        server_port=port,
        favicon_path=str(ICON),
        pwa=True,
        theme=theme.theme(),
        css_paths=[theme.CSS],
        head_paths=[HEAD],
        footer_links=["api"] if programs else [],
        ssr_mode=False,
        mcp_server=False,  # `serving.http.mcp` has one that returns pictures as pictures
        run_history=False,
        enable_monitoring=False,
        max_file_size=MAX_UPLOAD_BYTES,
    )
    page_sessions, end_streams = guard(app, page, uploads, keys or ApiKeys(), scripts.TAGS)
    _tidy_up(app, page_sessions, uploads, keep_files_s)
    return end_streams


def _pages(generator: Generator, programs: bool, guarded: bool) -> dict[str, gr.Blocks]:
    """Build the page once in each language."""
    pages = {}
    for language in i18n.LANGUAGES:
        with i18n.speaking(language):
            pages[language] = build_page(generator, programs=programs, guarded=guarded)
    return pages


def _tidy_up(app: FastAPI, page_sessions: Sessions, uploads: Uploads, keep_s: float) -> None:
    """Remove old files and sessions for as long as the application runs."""
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
        async with inner(app) as state:
            tidying = [
                asyncio.create_task(files.remove_old(keep_s, keep_s / 6)),
                asyncio.create_task(sessions.forget_unused(page_sessions, keep_s, keep_s / 6)),
                asyncio.create_task(uploads.keep_tidy()),
            ]
            yield state
            for task in tidying:
                task.cancel()

    app.router.lifespan_context = lifespan
