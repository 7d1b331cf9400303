"""Routes of AUTOMATIC1111's API.

https://github.com/AUTOMATIC1111/stable-diffusion-webui/wiki/API
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import APIRouter, HTTPException
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse
from pydantic import RootModel

from pipeline.facts import Facts
from serving.generator import Generator
from serving.http import bodies
from serving.http.a1111 import answers, listings
from serving.http.a1111.bodies import ExtrasBody, PngInfoBody, Txt2ImgBody
from serving.http.a1111.calls import DrawCalls
from serving.http.a1111.faults import A1111Route, PythonError
from serving.http.addresses import address_of
from serving.http.auth import ApiKeys
from serving.http.connected import while_connected
from serving.requests import readers

# The lists that depend on the model.
_LISTS: dict[str, Callable[[Facts], Any]] = {
    "embeddings": listings.embeddings,
    "loras": listings.loras,
    "options": listings.options,
    "samplers": listings.samplers,
    "schedulers": listings.schedulers,
    "sd-models": listings.sd_models,
    "sd-vae": listings.sd_vaes,
}


def router(generator: Generator, keys: ApiKeys) -> APIRouter:
    """Build the routes of AUTOMATIC1111's API."""
    # They are no part of this server's own description.
    routes = APIRouter(prefix="/sdapi/v1", route_class=A1111Route, include_in_schema=False)
    calls = DrawCalls(generator, keys)

    @routes.post("/txt2img")
    async def txt2img(sender: HttpRequest) -> JSONResponse:
        body = await bodies.read(sender, Txt2ImgBody)
        return JSONResponse(await calls.txt2img(body, sender))

    @routes.post("/img2img")
    async def img2img(sender: HttpRequest) -> JSONResponse:
        return JSONResponse(await calls.img2img(sender))

    @routes.post("/png-info")
    async def png_info(sender: HttpRequest) -> JSONResponse:
        async with bodies.received(sender, PngInfoBody) as body:
            work = partial(answers.png_info, body.image)
            reading = readers.of_settings().run(address_of(sender), work)
            return JSONResponse(await while_connected(sender, reading))

    @routes.get("/progress")
    async def progress(sender: HttpRequest, skip_current_image: bool = False) -> JSONResponse:
        job = calls.jobs.current(keys.visitor(sender))
        return JSONResponse(answers.progress(job, skip_current_image))

    @routes.post("/interrupt")
    async def interrupt(sender: HttpRequest) -> JSONResponse:
        calls.jobs.interrupt(keys.visitor(sender))
        return JSONResponse({})

    @routes.post("/skip")
    async def skip(sender: HttpRequest) -> JSONResponse:
        calls.jobs.skip(keys.visitor(sender))
        return JSONResponse(None)

    @routes.post("/options")
    async def set_options(sender: HttpRequest) -> JSONResponse:
        options = await bodies.read(sender, RootModel[dict[str, Any]])
        listings.check_options(options.root, generator.facts)
        return JSONResponse(None)

    @routes.post("/interrogate")
    async def interrogate() -> JSONResponse:
        raise HTTPException(404, "Model not found")

    @routes.post("/extra-single-image")
    @routes.post("/extra-batch-images")
    async def extras(sender: HttpRequest) -> JSONResponse:
        body = await bodies.read(sender, ExtrasBody)
        raise PythonError("AssertionError", f"could not find upscaler named {body.upscaler_1}")

    @routes.get("/memory")
    async def memory() -> JSONResponse:
        return JSONResponse(listings.memory())

    for name, listed in _LISTS.items():
        routes.get(f"/{name}")(_answering(lambda listed=listed: listed(generator.facts)))
    for name, empty in listings.EMPTY.items():
        routes.get(f"/{name}")(_answering(partial(lambda answer: answer, empty)))
    routes.get("/cmd-flags")(_answering(lambda: listings.FLAGS))
    for name in listings.REFRESHED:
        routes.post(f"/refresh-{name}")(_answering(lambda: None))
    return routes


def _answering(content: Callable[[], Any]) -> Callable[..., Any]:
    """Return the function of a route that answers with the current content."""

    async def answer() -> JSONResponse:
        return JSONResponse(content())

    return answer
