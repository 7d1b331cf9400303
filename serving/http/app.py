"""The web application with the APIs; the caller may mount the page in it."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeAlias

from fastapi import FastAPI, Request
from starlette.middleware.cors import CORSMiddleware

from serving.generator import Generator
from serving.http import errors, events, health, sign_in
from serving.http.a1111 import routes as a1111_routes
from serving.http.addresses import of_client
from serving.http.auth import Access, ApiKeys
from serving.http.limits import MAX_CALLS, MAX_CALLS_EACH, MCP_PATH, CallLimit
from serving.http.mcp import McpServer
from serving.http.middleware import (
    ChangedScope,
    Checks,
    Departures,
    SecurityHeaders,
    without_ending_slashes,
)
from serving.http.openai import routes as openai_routes
from serving.http.origin import (
    AllowedHosts,
    check_framing,
    check_host,
    check_origin,
    check_path,
)
from serving.metrics import Observer
from serving.requests.shares import Shares

# Clients that may use AUTOMATIC1111's API: those with a key if there are keys, all, or none.
A1111Use: TypeAlias = Literal["keys", "on", "off"]

# Paths that need an API key if there are any. The name of a picture's file is a secret already.
_KEYED = rf"/v1/(?!images/files/)|{MCP_PATH}/?$"
# Paths of the APIs below their roots.
_OF_A1111 = "|".join(errors.A1111_PATHS)
_BELOW = re.compile(rf"(/v1/|{_OF_A1111}|/internal/|/queue/)[^/]")


def build(
    generator: Generator,
    observer: Observer,
    access: Access | None = None,
    *,
    cors_origins: Sequence[str] = (),
    trusted_proxies: int = 0,
    passes_on: bool = False,
    on_space: bool = False,
    allowed_hosts: Sequence[str] = (),
    a1111: A1111Use = "off",
) -> FastAPI:
    """Build the application for one generator.

    Args:
        generator: draws the pictures.
        observer: has the metrics.
        access: who may use the APIs and the page; None for everybody.
        cors_origins: origins of other pages that may use and embed this one.
        trusted_proxies: number of proxies between visitors and this process.
        passes_on: whether the generator sends requests to other instances.
        on_space: whether this is a Hugging Face Space, which huggingface.co shows in a frame.
        allowed_hosts: host names that requests may be addressed to; see `AllowedHosts`.
        a1111: the clients that may use AUTOMATIC1111's API.
    """
    api_keys, users = access or Access()
    mcp = McpServer(generator, api_keys)
    # The interactive documentation is left out: it would fetch its scripts from elsewhere.
    app = FastAPI(
        title=f"{generator.facts.family} on JAX",
        docs_url=None,
        redoc_url=None,
        lifespan=lambda _: mcp.run(),
    )
    errors.install(app)
    app.include_router(events.router(generator, api_keys, passes_on=passes_on))
    app.include_router(openai_routes.router(generator, api_keys))
    if a1111 != "off":
        app.include_router(
            a1111_routes.router(generator, api_keys if a1111 == "keys" else ApiKeys())
        )
    app.include_router(health.router(generator, observer))
    app.router.routes.extend(mcp.routes())
    # Without these routes the page would answer unknown paths under /v1, in another format.
    app.include_router(errors.router())
    keyed = re.compile(f"{_KEYED}|{_OF_A1111}" if a1111 == "keys" else _KEYED)

    def check_key(request: Request) -> None:
        if keyed.match(request.scope["path"]):
            api_keys.visitor(request)

    checks: list[Callable[[Request], object]] = [
        check_path,
        check_framing,
        partial(check_host, AllowedHosts(allowed_hosts)),
        partial(check_origin, cors_origins),
        check_key,
    ]
    if users is not None:
        checks.append(partial(sign_in.check_signed_in, users, api_keys))
        app.include_router(sign_in.router(users, is_framed=on_space or bool(cors_origins)))
    # A request passes the middleware in the reverse order: the last one added is the first.
    app.add_middleware(Departures)
    app.add_middleware(CallLimit, shares=Shares(MAX_CALLS, MAX_CALLS_EACH))
    app.add_middleware(Checks, checks=checks)
    app.add_middleware(ChangedScope, change=partial(without_ending_slashes, _BELOW))
    # Needed even without any origins: otherwise Gradio would let every page read this one.
    app.add_middleware(
        CORSMiddleware,
        allow_origins=cors_origins,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["Authorization", "Content-Type", "X-Gradio-User"],
        expose_headers=["Content-Location", "Retry-After"],
    )
    app.add_middleware(
        SecurityHeaders, may_embed=cors_origins, on_space=on_space, is_private=users is not None
    )
    app.add_middleware(ChangedScope, change=partial(of_client, trusted_proxies))
    return app
