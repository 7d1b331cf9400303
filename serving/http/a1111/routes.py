"""Routes of AUTOMATIC1111's API.

https://github.com/AUTOMATIC1111/stable-diffusion-webui/wiki/API
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, HTTPException
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse
from pydantic import RootModel

from pipeline.facts import Facts
from serving.generator import Error, Generator, Image, Pause, Request
from serving.http import bodies
from serving.http.a1111 import answers, controlnet, listings
from serving.http.a1111.bodies import (
    DetectBody,
    DrawBody,
    ExtrasBody,
    Img2ImgBody,
    PngInfoBody,
    Txt2ImgBody,
)
from serving.http.a1111.checkpoints import Choices
from serving.http.a1111.faults import A1111Route, PythonError
from serving.http.a1111.jobs import Job, Jobs
from serving.http.a1111.requests import Asked, asked_of, inputs_of, single
from serving.http.addresses import address_of
from serving.http.auth import ApiKeys
from serving.http.calls import Format, encoder, followed, parts_of, while_connected
from serving.http.errors import as_refusal
from serving.http.limits import BoundedBody, body_of
from serving.logs import log_fields, loggable
from serving.requests import inputs, readers
from serving.requests.admission import expand
from serving.requests.inputs import Input
from serving.requests.unfinished import image_of

log = logging.getLogger(__name__)

# The lists that depend on the model.
_LISTS: dict[str, Callable[[Facts], Any]] = {
    "embeddings": listings.embeddings,
    "loras": listings.loras,
    "samplers": listings.samplers,
    "schedulers": listings.schedulers,
    "scripts": listings.scripts,
    "sd-models": listings.sd_models,
    "sd-vae": listings.sd_vaes,
}


def router(generator: Generator, keys: ApiKeys) -> APIRouter:
    """Build the routes of AUTOMATIC1111's API, and of its page as far as programs ask for them."""
    # They are no part of this server's own description.
    routes = APIRouter(prefix="/sdapi/v1", route_class=A1111Route, include_in_schema=False)
    of_page = APIRouter(include_in_schema=False)
    calls = DrawCalls(generator, keys)

    @routes.post("/txt2img")
    async def txt2img(sender: HttpRequest) -> JSONResponse:
        return JSONResponse(await calls.txt2img(sender))

    @routes.post("/img2img")
    async def img2img(sender: HttpRequest) -> JSONResponse:
        return JSONResponse(await calls.img2img(sender))

    @routes.post("/png-info")
    async def png_info(sender: HttpRequest) -> JSONResponse:
        async with bodies.received(sender, PngInfoBody) as body:
            work = partial(answers.png_info, body.image)
            reading = readers.of_settings().run(address_of(sender), work)
            return JSONResponse(await while_connected(sender, reading))

    @routes.api_route("/progress", methods=["GET", "HEAD"])
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

    @routes.api_route("/options", methods=["GET", "HEAD"])
    async def options(sender: HttpRequest) -> JSONResponse:
        facts = generator.facts
        return JSONResponse(listings.options(facts, calls.models.of(keys.visitor(sender), facts)))

    @routes.post("/options")
    async def set_options(sender: HttpRequest) -> JSONResponse:
        values = await bodies.read(sender, RootModel[dict[str, Any]])
        facts, visitor = generator.facts, keys.visitor(sender)
        model = listings.chosen_model(values.root, facts, calls.models.of(visitor, facts))
        calls.models.add(visitor, model)
        return JSONResponse(None)

    @routes.post("/interrogate")
    async def interrogate() -> JSONResponse:
        raise HTTPException(404, "Model not found")

    @routes.post("/extra-single-image")
    @routes.post("/extra-batch-images")
    async def extras(sender: HttpRequest) -> JSONResponse:
        body = await bodies.read(sender, ExtrasBody)
        raise PythonError("AssertionError", f"could not find upscaler named {body.upscaler_1}")

    for name, listed in _LISTS.items():
        _get(routes, f"/{name}", lambda listed=listed: listed(generator.facts))
    for name, fixed in listings.FIXED.items():
        _get(routes, f"/{name}", partial(lambda answer: answer, fixed))
    _get(routes, "/memory", listings.memory)
    _get(of_page, "/internal/ping", dict)
    _get(of_page, "/queue/status", lambda: listings.queue(generator.load.waiting))
    for name, answer in listings.UNNEEDED.items():
        routes.post(f"/{name}")(_answering(partial(lambda answer: answer, answer)))
    of_page.include_router(routes)
    of_page.include_router(_of_controlnet(generator))
    return of_page


def _of_controlnet(generator: Generator) -> APIRouter:
    """Build the routes of the ControlNet extension."""
    routes = APIRouter(prefix="/controlnet", route_class=A1111Route, include_in_schema=False)

    @routes.api_route("/module_list", methods=["GET", "HEAD"])
    async def module_list(alias_names: bool = False) -> JSONResponse:
        return JSONResponse(controlnet.modules(alias_names))

    @routes.post("/detect")
    async def detect(sender: HttpRequest) -> JSONResponse:
        async with bodies.received(sender, DetectBody) as body:
            work = controlnet.detect(body, address_of(sender))
            return JSONResponse(await while_connected(sender, work))

    for name, listed in controlnet.LISTS.items():
        _get(routes, f"/{name}", lambda listed=listed: listed(generator.facts))
    return routes


def _get(routes: APIRouter, path: str, content: Callable[[], Any]) -> None:
    """Add a route that answers with the current content, also to a client that only probes it."""
    routes.api_route(path, methods=["GET", "HEAD"])(_answering(content))


def _answering(content: Callable[[], Any]) -> Callable[..., Any]:
    """Return the function of a route that answers with the current content."""

    async def answer() -> JSONResponse:
        return JSONResponse(content())

    return answer


class DrawCalls:
    """Calls of AUTOMATIC1111's API that draw, and their answers."""

    def __init__(self, generator: Generator, keys: ApiKeys) -> None:
        self._generator = generator
        self._keys = keys
        self.jobs = Jobs(generator)
        self.models = Choices()

    async def txt2img(self, sender: HttpRequest) -> dict[str, Any]:
        """Draw pictures from a prompt, and return the answer."""
        async with bodies.received(sender, Txt2ImgBody) as body:
            asked = await self._asked(body, sender)
            files = Input(followed=asked.followed)
            opening = inputs.shared().added(asked.request, files, asked.facts)
            asked = replace(asked, request=await while_connected(sender, opening), followed=())
        parts = list(parts_of(asked.request, asked.images, asked.model.images_per_request))
        return await while_connected(sender, self._answered("txt2img", body, asked, parts, sender))

    async def img2img(self, sender: HttpRequest) -> dict[str, Any]:
        """Draw pictures from other ones, and return the answer."""
        with body_of(sender) as kept:
            body = await bodies.parse(sender, kept, Img2ImgBody)
            asked = await self._asked(body, sender)
            files, settings, ignored = inputs_of(body, asked)
            # With padding, the pictures have the sizes of those that they start from.
            size = asked.size if settings["padding"] is None else None
            ignored = *asked.ignored, *ignored
            asked = replace(asked, size=size, ignored=ignored, followed=())
            request = replace(asked.request, **settings)
            requests = await while_connected(sender, _opened(request, files, asked, kept))
            if len(requests) == 1:
                kept.count(0)  # the queue counts it
                parts = list(parts_of(requests[0], asked.images, asked.model.images_per_request))
            else:
                parts = [single(requests[i % len(requests)], i) for i in range(asked.images)]
            drawing = self._answered("img2img", body, asked, parts, sender)
            return await while_connected(sender, drawing)

    async def _asked(self, body: DrawBody, sender: HttpRequest) -> Asked:
        """Return what a body asks for, see `asked_of`.

        Raises:
            RequestError: if it is refused, or too many are being read.
        """
        facts, visitor, address = (
            self._generator.facts,
            self._keys.visitor(sender),
            address_of(sender),
        )
        model = self.models.of(visitor, facts)
        work = partial(asked_of, body, facts, model, visitor=visitor, address=address)
        # Scripts have pictures in base64, which take long to decode.
        has_scripts = bool(body.alwayson_scripts)
        asked = await readers.of_bodies().run(address, work) if has_scripts else work()
        if body.override_settings_restore_afterwards is False:
            self.models.add(visitor, asked.request.model)
        return asked

    async def _answered(
        self,
        kind: str,
        body: DrawBody,
        asked: Asked,
        parts: Sequence[Request],
        sender: HttpRequest,
    ) -> dict[str, Any]:
        """Draw the requests one after the other, and return the answer with all pictures."""
        replaced = (f"{name} ({value} instead)" for name, value in asked.replaced.items())
        if names := [*asked.ignored, *replaced]:
            text = ", ".join(loggable(names))
            log.info("Ignored in a call of %s: %s", kind, text, extra=log_fields(parts[0]))
        images: list[Image] = []
        with self.jobs.begun(self._keys.visitor(sender), Job(kind, len(parts))) as job:
            for part in parts:
                if job.interrupted:
                    break
                images += await self._drawn(job, asked, part)
            output = Format(
                asked.output, asked.quality, address_of(sender), "samples_format", asked.size
            )
            files = [await output.encode(image.png) for image in images]
        return answers.drawn(body, asked, images, files, job.timestamp)

    async def _drawn(self, job: Job, asked: Asked, request: Request) -> list[Image]:
        """Draw one request; return its pictures, also unfinished ones if it is stopped.

        Raises:
            RequestError: if it is refused, or ends in another way.
        """
        job.begin(request.id)
        request = replace(request, previews=True)
        images: dict[int, Image] = {}
        is_later = job.done > 0
        async with aclosing(
            followed(self._generator, asked.facts, request, patient=is_later)
        ) as events:
            async for event in events:
                if job.is_stopped and not isinstance(event, Pause):  # before it was submitted
                    self._generator.cancel(request.id)
                job.note(event)
                if isinstance(event, Image):
                    images[event.index] = event
                elif isinstance(event, Error) and not job.is_stopped:
                    raise as_refusal(event)
        # With padding, previews show the part that is drawn, which is not pasted yet.
        if job.is_stopped and request.padding is None:
            as_stopped = partial(image_of, expand(request, asked.facts), facts=asked.facts)
            for index, preview in enumerate(job.previews):
                if index not in images:
                    work = partial(as_stopped, index, preview)
                    images[index] = await encoder().run(request.address, work)
        job.end()
        return [images[index] for index in sorted(images)]


async def _opened(
    request: Request, files: list[Input], asked: Asked, kept: BoundedBody
) -> list[Request]:
    """Return a request for each of the pictures to start from, which `files` loses.

    The queue counts the bytes of one of them at a time, so the call counts all.
    """
    requests: list[Request] = []
    while files:
        requests.append(await inputs.shared().added(request, files.pop(0), asked.facts))
        request = replace(request, followed=requests[0].followed)
        bytes_left = sum(len(file.image or b"") for file in files)
        kept.count(bytes_left + sum(part.input_bytes for part in requests))
    return requests
