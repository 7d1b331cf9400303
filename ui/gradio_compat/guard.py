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
    [mounted] = [route.app for route in app.routes if isinstance(route, Mount)]
    assert isinstance(mounted, App)
    page.app = mounted
    # Gradio checks which files a call may name only once it is told that the page is served.
    page.has_launched = True
    refuse_wrong_values(page)
    # Gradio's page is an application of its own, with its own state.
    mounted.state.translate = app.state.translate
    mounted.state_holder = sessions = Sessions(page)
    mounted.add_middleware(CheckedCalls, page=page, sessions=sessions, uploads=uploads, keys=keys)
    mounted.add_middleware(Idempotency)
    mounted.add_middleware(Delivery)
    mounted.add_middleware(GZipMiddleware, compresslevel=6)  # Gradio compresses only a part itself
    return sessions, mounted.stop_event.set
