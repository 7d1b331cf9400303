"""The web application: the APIs, and the page mounted in it by who calls."""

from collections.abc import Sequence

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from serving import http_errors, http_generate, http_openai, http_operator
from serving.generator import Generator
from serving.http_guard import (
    MAX_UPLOAD_BYTES,
    ClientAddress,
    Departures,
    GuardedRoutes,
    Keys,
    PatientBodies,
    SecurityHeaders,
)
from serving.http_mcp import McpServer
from serving.observer import Observer


def build(
    generator: Generator,
    observer: Observer,
    *,
    keys: Sequence[str] = (),
    cors_origins: Sequence[str] = (),
    trusted_proxies: int = 0,
    passes_on: bool = False,
) -> FastAPI:
    """The application for one generator.

    Args:
        generator: draws.
        observer: has the metrics.
        keys: that are accepted for the routes under /v1; none: they are open.
        cors_origins: of other pages that may use and embed this one.
        trusted_proxies: how many there are between visitors and this process.
        passes_on: whether the generator has other instances draw.
    """
    accepted = Keys(keys)
    mcp = McpServer(generator, accepted)
    # The interactive documentation is left out: it would fetch its scripts from elsewhere.
    app = FastAPI(
        title=f"{generator.model.family} on JAX",
        docs_url=None,
        redoc_url=None,
        max_body_size=MAX_UPLOAD_BYTES,  # of the page; the APIs take less
        lifespan=lambda _: mcp.run(),
    )
    http_errors.install(app)
    app.include_router(http_generate.router(generator, accepted, passes_on=passes_on))
    app.include_router(http_openai.router(generator, accepted))
    app.include_router(http_operator.router(generator, observer))
    app.router.routes.extend(mcp.routes())
    # The last one added is the first that a request meets.
    app.add_middleware(Departures)
    app.add_middleware(GuardedRoutes)
    # Also where no origin is named: without it Gradio would let every page read this one.
    app.add_middleware(
        CORSMiddleware,
        allow_origins=cors_origins,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["Authorization", "Content-Type", "X-Gradio-User"],
        expose_headers=["X-Request-Id", "Retry-After"],
    )
    app.add_middleware(PatientBodies)
    app.add_middleware(SecurityHeaders, may_embed=cors_origins)
    app.add_middleware(ClientAddress, trusted_proxies=trusted_proxies)
    return app
