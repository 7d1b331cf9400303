"""Requests drawn in this process, by the one thread that owns the devices."""

import asyncio
import io
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import numpy as np
from PIL import Image as Pillow

from pipeline import Cancelled, InputError, Result, SDXLPipeline, metadata
from serving import words
from serving.desk import Limits
from serving.generator import (
    Done,
    Error,
    ErrorKind,
    Event,
    Image,
    Length,
    Model,
    Preview,
    Request,
    Step,
)
from serving.limits import RateLimits
from serving.observer import Observer
from serving.previews import Previews
from serving.reception import Reception
from serving.record import Record

log = logging.getLogger(__name__)

Publish = Callable[[Event], object]

# Of the time that a request may be drawn for, what no single step of it should take.
_STUCK = 1 / 5


class LocalGenerator(Reception):
    """A `serving.generator.Generator` over a pipeline in this process.

    A single thread does all the drawing, so requests never meet on the devices, even while one
    that was stopped is still finishing its last step. Pictures become PNG files beside it, while
    the next request is being drawn.
    """

    def __init__(
        self,
        pipe: SDXLPipeline,
        limits: Limits,
        rates: RateLimits,
        observer: Observer,
        *,
        bundled: bool = False,
    ) -> None:
        super().__init__(_describe(pipe, bundled), limits, rates, observer)
        observer.compiled(pipe.compile_seconds)
        self._pipe = pipe
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="devices")
        self._stops: dict[str, threading.Event] = {}
        self._stuck_s = _STUCK * limits.running_s
        self._heard_at: float | None = None  # of the devices, while they are at work

    @property
    def stuck(self) -> bool:
        """See `serving.generator.Generator.stuck`."""
        heard_at = self._heard_at
        return heard_at is not None and time.monotonic() - heard_at > self._stuck_s

    async def measure(self, prompt: str) -> Length | None:
        """See `serving.generator.Generator.measure`."""
        return Length(*await asyncio.to_thread(self._pipe.measure, prompt))

    async def close(self, within_s: float) -> None:
        """See `serving.generator.Generator.close`."""
        await super().close(within_s)
        await asyncio.to_thread(self._thread.shutdown)

    @property
    def _parallel(self) -> int:
        return 1

    def _stop(self, record: Record) -> None:
        if stop := self._stops.get(record.request.id):
            stop.set()

    async def _draw(self, record: Record) -> None:
        request = record.request
        stop = self._stops[request.id] = threading.Event()
        loop = asyncio.get_running_loop()

        def publish(event: Event) -> None:
            self._heard_at = time.monotonic()
            loop.call_soon_threadsafe(self._desk.publish, record, event)

        def generate() -> Result | Error:
            self._heard_at = time.monotonic()
            try:
                return _generate(self._pipe, request, publish, stop)
            finally:
                self._heard_at = None

        began = time.monotonic()
        drawn = await loop.run_in_executor(self._thread, generate)
        del self._stops[request.id]
        if isinstance(drawn, Result):
            self._speed.observe(request.num_inference_steps, time.monotonic() - began)
        self._free(record)
        self._desk.publish(record, await self._ending(record, drawn))

    async def _ending(self, record: Record, drawn: Result | Error) -> Done | Error:
        """Publishes the pictures, if there are any, and says how that ends."""
        if isinstance(drawn, Error):
            return drawn
        for image in await _encoded(drawn, record.request.images):
            self._desk.publish(record, image)
        cut = drawn.truncated + drawn.negative_truncated
        return Done(" … ".join(dict.fromkeys(filter(None, cut))))


def _generate(
    pipe: SDXLPipeline, request: Request, publish: Publish, stop: threading.Event
) -> Result | Error:
    """Whatever happens on the devices' thread ends there, as a result or as an error."""
    previews = Previews()

    def on_step(done: int, total: int, _latents: object) -> None:
        publish(Step(done, total))

    def on_preview(look: Callable[[], np.ndarray]) -> None:
        if jpegs := previews.make(look):
            publish(Preview(jpegs[: request.images]))

    try:
        return pipe.generate(
            _for_all(request.prompt, pipe.images_per_request),
            negative_prompt=_for_all(request.negative_prompt or "", pipe.images_per_request),
            guidance_scale=request.guidance_scale,
            num_inference_steps=request.num_inference_steps,
            seed=request.seed,
            on_step=on_step,
            cancelled=stop,
            # Nothing is shown that a safety checker has not seen.
            on_preview=on_preview if request.previews and not pipe.safety_checker else None,
        )
    except Cancelled:
        return Error(ErrorKind.CANCELLED, words.CANCELLED)
    except InputError as error:
        return Error(ErrorKind.INVALID, str(error))
    except Exception as error:  # the next request must not suffer from this one
        return _failed(error)


def _failed(error: Exception) -> Error:
    log.error("A request failed", exc_info=error)
    # What XLA says on every platform; its exception has no type of its own for it.
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return Error(ErrorKind.OUT_OF_MEMORY, words.OUT_OF_MEMORY)
    return Error(ErrorKind.FAILED, words.FAILED)


def _for_all(texts: str | tuple[str, ...], count: int) -> str | list[str]:
    """One text for each picture the pipeline draws; those that nobody wants repeat the last."""
    if isinstance(texts, str):
        return texts
    return [*texts, *[texts[-1]] * (count - len(texts))]


async def _encoded(drawn: Result, wanted: int | None) -> list[Image]:
    pngs = [asyncio.to_thread(_png, image) for image in drawn.images[:wanted]]
    return [
        Image(index, png, drawn.seeds[index], _settings(drawn.images[index]))
        for index, png in enumerate(await asyncio.gather(*pngs))
    ]


def _png(image: Pillow.Image) -> bytes:
    buffer = io.BytesIO()
    metadata.save_png(image, buffer)
    return buffer.getvalue()


def _settings(image: Pillow.Image) -> dict[str, str | int | float | None]:
    return asdict(metadata.from_text(image.info[metadata.KEY]))


def _describe(pipe: SDXLPipeline, bundled: bool) -> Model:
    return Model(
        name=pipe.model,
        revision=pipe.revision,
        bundled=bundled,
        device=pipe.device_kind,
        num_devices=pipe.num_devices,
        height=pipe.height,
        width=pipe.width,
        images_per_request=pipe.images_per_request,
        num_inference_steps=pipe.num_inference_steps,
        max_inference_steps=pipe.max_inference_steps,
        family=pipe.family,
        safety_checker=pipe.safety_checker,
    )
