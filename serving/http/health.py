"""Health checks and metrics, for orchestrators and dashboards."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from serving.generator import Generator
from serving.metrics import Observer


def router(generator: Generator, observer: Observer) -> APIRouter:
    """Build the routes for health, readiness and metrics; none of them waits for the devices."""
    routes = APIRouter()

    @routes.head("/healthz", include_in_schema=False)
    @routes.get("/healthz")
    async def alive() -> JSONResponse:
        """Return 200, or 503 if the devices are stuck and the process should be restarted."""
        if generator.stuck:
            return JSONResponse({"status": "stuck"}, 503)
        return JSONResponse({"status": "alive"})

    @routes.head("/readyz", include_in_schema=False)
    @routes.get("/readyz")
    async def ready() -> JSONResponse:
        """Return 200 if the generator takes requests in and has room in its queue, else 503."""
        load = generator.load
        body = {"ready": load.has_room, "waiting": load.waiting, "running": load.running}
        return JSONResponse(body, 200 if load.has_room else 503)

    @routes.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Return the Prometheus metrics."""
        return Response(generate_latest(observer.registry), media_type=CONTENT_TYPE_LATEST)

    return routes
