"""What orchestrators and dashboards ask."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from serving.generator import Generator
from serving.metrics import Observer


def router(generator: Generator, observer: Observer) -> APIRouter:
    """Health, readiness and metrics; none of them touches the devices or waits for them."""
    routes = APIRouter()

    @routes.get("/healthz")
    async def alive() -> JSONResponse:
        """The process answers, and its devices do; if not, it should be started again."""
        if generator.stuck:
            return JSONResponse({"status": "stuck"}, 503)
        return JSONResponse({"status": "alive"})

    @routes.get("/readyz")
    async def ready() -> JSONResponse:
        """The generator is warm, not being shut down, and has room in its queue."""
        load = generator.load
        body = {"ready": load.has_room, "waiting": load.waiting, "running": load.running}
        return JSONResponse(body, 200 if load.has_room else 503)

    @routes.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(generate_latest(observer.registry), media_type=CONTENT_TYPE_LATEST)

    return routes
