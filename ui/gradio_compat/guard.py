"""The middleware between the network and a page that Gradio has mounted."""

from collections.abc import Callable

import gradio as gr
from fastapi import FastAPI
from gradio.routes import App
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Mount

from serving.http.auth import ApiKeys
from ui.gradio_compat.calls import CheckedCalls
from ui.gradio_compat.delivery import Delivery
from ui.gradio_compat.idempotency import Idempotency
from ui.gradio_compat.sessions import Sessions
from ui.gradio_compat.uploads import Uploads
from ui.gradio_compat.values import refuse_wrong_values


def guard(
    app: FastAPI, page: gr.Blocks, uploads: Uploads, keys: ApiKeys
) -> tuple[Sessions, Callable[[], None]]:
    """Put the checks in front of the one page that is mounted in an application.

    Returns:
        The sessions of the page, and a function that ends the streams by which open pages stay in
        touch.
    """
    [page_app] = [route.app for route in app.routes if isinstance(route, Mount)]
    assert isinstance(page_app, App)
    page.app = page_app
    # Gradio checks which files a call may name only once it is told that the page is served.
    page.has_launched = True
    refuse_wrong_values(page)
    # Gradio's page is an application of its own, with its own state.
    page_app.state.translate = app.state.translate
    page_app.state_holder = sessions = Sessions(page)
    page_app.add_middleware(CheckedCalls, page=page, sessions=sessions, uploads=uploads, keys=keys)
    page_app.add_middleware(Idempotency)
    page_app.add_middleware(Delivery)
    page_app.add_middleware(GZipMiddleware, compresslevel=6)  # Gradio itself compresses only a part
    return sessions, page_app.stop_event.set
