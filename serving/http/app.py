"""The web application: the APIs, and the page mounted in it by who calls."""

import re
from collections.abc import Sequence

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from serving.generator import Generator
from serving.http import errors, events, health, openai
from serving.http.mcp import McpServer
from serving.http.middleware import (
    MAX_CALLS,
    MAX_CALLS_EACH,
    MCP_PATH,
    CallLimit,
    ClientAddress,
    Departures,
    GuardedRoutes,
    KeyCheck,
    Keys,
    PatientBodies,
    SecurityHeaders,
    SmallBodies,
)
from serving.http.origin import AllowedHosts, CheckedRequests
from serving.metrics import Observer
from serving.requests.shares import Shares

# These need an API key where there are keys. A file of pictures is named by a secret already.
_KEYED = re.compile(rf"/v1/(?!images/files/)|{MCP_PATH}/?$")


def build(
    generator: Generator,
    observer: Observer,
    *,
    keys: Sequence[str] = (),
    cors_origins: Sequence[str] = (),
    trusted_proxies: int = 0,
    passes_on: bool = False,
    on_space: bool = False,
    allowed_hosts: Sequence[str] = (),
    max_calls: int = MAX_CALLS,
    max_calls_each: int = MAX_CALLS_EACH,
) -> FastAPI:
    """The application for one generator.

    Args:
        generator: draws.
        observer: has the metrics.
        keys: that are accepted for the routes under /v1; none: they are open.
        cors_origins: of other pages that may use and embed this one.
        trusted_proxies: how many there are between visitors and this process.
        passes_on: whether the generator has other instances draw.
        on_space: whether this is a Hugging Face Space, which their site shows in a frame.
        allowed_hosts: names that requests may be addressed to; see `AllowedHosts`.
        max_calls: that are answered at a time; every open page is one.
        max_calls_each: the same, for one address.
    """
    accepted = Keys(keys)
    mcp = McpServer(generator, accepted)
    # The interactive documentation is left out: it would fetch its scripts from elsewhere.
    app = FastAPI(
        title=f"{generator.model.family} on JAX",
        docs_url=None,
        redoc_url=None,
        lifespan=lambda _: mcp.run(),
    )
    errors.install(app)
    app.include_router(events.router(generator, accepted, passes_on=passes_on))
    app.include_router(openai.router(generator, accepted))
    app.include_router(health.router(generator, observer))
    app.router.routes.extend(mcp.routes())
    # The page would answer for the rest of /v1, and not as the APIs do.
    app.include_router(errors.router())
    # The last one added is the first that a request meets.
    app.add_middleware(Departures)
    app.add_middleware(GuardedRoutes)
    app.add_middleware(SmallBodies)
    app.add_middleware(KeyCheck, keys=accepted, paths=_KEYED)
    app.add_middleware(CallLimit, shares=Shares(max_calls, max_calls_each))
    # Also where no origin is named: without it Gradio would let every page read this one.
    app.add_middleware(
        CORSMiddleware,
        allow_origins=cors_origins,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["Authorization", "Content-Type", "X-Gradio-User"],
        expose_headers=["Content-Location", "Retry-After"],
    )
    app.add_middleware(PatientBodies)
    hosts = AllowedHosts(allowed_hosts)
    app.add_middleware(CheckedRequests, hosts=hosts, origins=cors_origins)
    app.add_middleware(SecurityHeaders, may_embed=cors_origins, on_space=on_space)
    app.add_middleware(ClientAddress, trusted_proxies=trusted_proxies)
    return app
