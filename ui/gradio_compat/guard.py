"""The middleware between the network and a page that Gradio has mounted."""

import re
from collections.abc import Callable
from urllib.parse import parse_qsl, urlencode

import gradio as gr
from fastapi import FastAPI
from gradio.routes import App
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.generator import RequestError
from serving.http import errors
from serving.http.auth import ApiKeys
from serving.http.limits import BoundedBody, replayed
from ui.gradio_compat import delivery
from ui.gradio_compat.calls import CheckedCalls
from ui.gradio_compat.sessions import Sessions
from ui.gradio_compat.uploads import Uploads
from ui.gradio_compat.values import refuse_wrong_values

# Gradio's routes that the page, `<gradio-app>` and the programs that call the page need. A file is
# named by its path: Gradio would fetch a URL.
ROUTES = re.compile(
    r"""/ | /config/? | /assets/.+ | /static/.+ | /(gradio_api/)?theme\.css
    | /(favicon\.ico | manifest\.json | pwa_icon | robots\.txt)
    | /gradio_api/(
        info/? | openapi\.json | app_id/? | file=/++(?![a-z][a-z0-9+.-]*:).+
        | heartbeat/[^/]+ | queue/(join|data) | (api|run|call|call/v2)/[^/]+/?
        | call/(v2/)?[^/]+/[^/]+
    )""",
    re.IGNORECASE | re.VERBOSE,
)


class Guard:
    """Middleware that passes on only requests for `ROUTES`, with bodies that are small enough."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer that there is nothing, or that its body cannot be used."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if not ROUTES.fullmatch(scope["path"]):
            await JSONResponse({"detail": "Not Found"}, 404)(scope, receive, send)
            return
        if scope["method"] == "POST":
            try:
                body = await BoundedBody(Request(scope, receive)).read_json()
            except RequestError as error:
                await errors.refusal(error, scope)(scope, receive, send)
                return
            receive = replayed(body, receive)
        # With this header a client could tell Gradio what the page's own address is.
        headers = [header for header in scope["headers"] if header[0] != b"x-gradio-server"]
        inner = {**scope, "headers": headers, "query_string": _query_of_one_page(scope)}
        await self._app(inner, receive, send)


def _query_of_one_page(scope: Scope) -> bytes:
    """Return the query without `page`: there is one page, and Gradio fails for any other.

    If no page is named, Gradio caches its first answer to `/gradio_api/info` for all clients. That
    answer has the host name in it that the first client sent, which may be made up. So the empty
    page is named there.
    """
    query = scope["query_string"]
    if b"page" in query:
        fields = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        query = urlencode([field for field in fields if field[0] != "page"]).encode()
    return b"page=&" + query if scope["path"].rstrip("/") == "/gradio_api/info" else query


def guard(
    app: FastAPI, page: gr.Blocks, uploads: Uploads, keys: ApiKeys, tags: str = ""
) -> tuple[Sessions, Callable[[], None]]:
    """Put the checks in front of the one page that is mounted in an application.

    `tags` are added to the page's head.

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
    delivery.connect(page_app, tags)
    # Gradio's page is an application of its own, with its own state.
    page_app.state.translate = app.state.translate
    page_app.state_holder = sessions = Sessions(page)
    page_app.add_middleware(CheckedCalls, page=page, sessions=sessions, uploads=uploads, keys=keys)
    page_app.add_middleware(GZipMiddleware, compresslevel=6)  # Gradio itself compresses only a part
    page_app.add_middleware(Guard)
    return sessions, page_app.stop_event.set
