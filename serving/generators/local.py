"""Generator that draws in this process, on the one thread that owns the devices."""

import asyncio
import io
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, Literal

import numpy as np
from PIL import Image as Pillow

from pipeline import Cancelled, InputError, NotFiniteError, Result, ScreenError, SDXLPipeline
from pipeline.images import metadata
from serving.folders import RESCAN_S, Listing
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
    RequestError,
    Step,
)
from serving.generators.embedding_folder import EmbeddingFolder
from serving.generators.loaded_loras import LoadedLoras
from serving.generators.lora_folder import LoraFolder
from serving.generators.previews import Previews, jpeg_of
from serving.logs import log_fields
from serving.messages import Code, Message, untranslated
from serving.metrics import Observer
from serving.requests.admission import expand
from serving.requests.lifecycle import RequestLifecycle
from serving.requests.rate_limits import RateLimits
from serving.requests.record import Record
from serving.requests.registry import Limits

log = logging.getLogger(__name__)

Publish = Callable[[Event], object]

# Whether to draw live pictures: if the model is quick enough, always if it has a way of few steps,
# or never.
LiveMode = Literal["auto", "on", "off"]
# Seconds within which a live picture must be drawn, so that it appears as one types.
LIVE_WITHIN_S = 0.5
_LIVE_TRIES = 3  # the first one loads the LoRA; of the others the quickest counts

# Share of the time limit of a request that no single step takes, unless the devices are stuck.
_STUCK = 1 / 5


class LocalGenerator(RequestLifecycle):
    """A `serving.generator.Generator` over a pipeline in this process.

    A single thread does all the drawing. So two requests never use the devices at the same time,
    even while a stopped one finishes its last step. Other threads encode the PNG files while the
    next request is being drawn.

    `more_sizes`, each (width, height), are compiled one after the other once the generator is open.
    With `reveal`, a request can get the originals of pictures that the operator's screen blurred.
    The LoRAs in the folder `loras` are loaded when they are first asked for.
    The embeddings in the folder `embeddings` are loaded as it changes.
    `live` says whether visitors get pictures while they type; "auto" measures that once it is open.
    """

    def __init__(
        self,
        pipe: SDXLPipeline,
        limits: Limits,
        rates: RateLimits,
        observer: Observer,
        *,
        bundled: bool = False,
        more_sizes: Sequence[tuple[int, int]] = (),
        reveal: bool = True,
        loras: LoraFolder | None = None,
        embeddings: EmbeddingFolder | None = None,
        live: LiveMode = "off",
    ) -> None:
        model = replace(
            _describe(pipe, bundled),
            coming_sizes=tuple(more_sizes),
            loras=loras.describe(loras.look()) if loras else (),
        )
        super().__init__(model, limits, rates, observer)
        observer.compiled(pipe.compile_seconds)
        self._pipe = pipe
        self._reveal = reveal
        self._loras = loras
        self._loaded = LoadedLoras(pipe, loras) if loras else None
        self._in_use = ""  # the LoRAs of the newest request that was begun
        self._embeddings = embeddings
        self._live_mode = live
        self._live_s: dict[str, float] = {}  # measured seconds of a live picture, by recipe
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="devices")
        # Not one of asyncio's own threads, which asyncio waits for when it ends.
        self._compiler = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compiler")
        self._compiling = False
        self._stops: dict[str, threading.Event] = {}
        self._beside: list[asyncio.Task[None]] = []  # work beside the drawing
        self._stuck_s = _STUCK * limits.running_s
        self._heard_at: float | None = None  # last sign of the devices; None while idle

    @property
    def stuck(self) -> bool:
        """See `serving.generator.Generator.stuck`."""
        heard_at = self._heard_at
        return heard_at is not None and time.monotonic() - heard_at > self._stuck_s

    @property
    def at_work(self) -> bool:
        """See `serving.generator.Generator.at_work`."""
        return self._heard_at is not None or self._compiling

    async def open(self) -> None:
        """See `serving.generator.Generator.open`."""
        self._beside = [
            asyncio.create_task(self._add_sizes()),
            asyncio.create_task(self._watch()),
        ]

    async def measure(self, prompt: str) -> Length | None:
        """See `serving.generator.Generator.measure`."""
        return await asyncio.to_thread(self._measure, prompt)

    def _measure(self, prompt: str) -> Length:
        if self._embeddings:
            self._embeddings.refresh()
        return Length(*self._pipe.measure(prompt))

    async def thumbnail(self, lora: str) -> bytes | None:
        """See `serving.generator.Generator.thumbnail`."""
        return await asyncio.to_thread(self._loras.thumbnail, lora) if self._loras else None

    async def close(self, within_s: float) -> None:
        """See `serving.generator.Generator.close`."""
        for task in self._beside:
            task.cancel()
        await super().close(within_s)
        self._thread.shutdown(wait=False)
        self._compiler.shutdown(wait=False)

    @property
    def _parallel(self) -> int:
        return 1

    def _stop(self, record: Record) -> None:
        if stop := self._stops.get(record.request.id):
            stop.set()

    def _suits(self, request: Request) -> bool:
        return request.loras == self._in_use

    async def _watch(self) -> None:
        """Describe the LoRAs anew whenever their folder has changed, and offer live pictures."""
        described: Listing | None = None
        while folder := self._loras:
            try:
                listing = await asyncio.to_thread(folder.look)
                if listing is not described:
                    loras = await asyncio.to_thread(folder.describe, listing)
                    self.model, described = replace(self.model, loras=loras), listing
                    await self._offer_live()
            except Exception as error:  # the looks must go on
                log.error("The LoRAs cannot be listed", exc_info=error)
            await asyncio.sleep(RESCAN_S)
        await self._offer_live()

    async def _offer_live(self) -> None:
        """Draw live pictures from now on, if the model is quick and the operator allows it."""
        recipe = self.model.live_recipe
        quick = recipe is not None and self._live_mode != "off"
        if recipe is not None and self._live_mode == "auto":
            quick = await self._seconds_of_live(recipe) <= LIVE_WITHIN_S
        self.model = replace(self.model, live=quick)

    async def _seconds_of_live(self, recipe: str) -> float:
        """Return how long a live picture takes, measured between two requests."""
        if recipe not in self._live_s:
            wanted = Request("warm up", None, seed=0, live=True)
            wanted = expand(wanted, replace(self.model, live=True))
            self._in_use = wanted.loras
            loop = asyncio.get_running_loop()
            tries = [
                await loop.run_in_executor(self._thread, self._time, wanted)
                for _ in range(_LIVE_TRIES)
            ]
            self._live_s[recipe] = min(tries[1:])
            log.info("A live picture takes %.2f s", self._live_s[recipe])
        return self._live_s[recipe]

    def _time(self, wanted: Request) -> float:
        """Return the seconds that a request takes, infinity if it fails."""
        began = time.monotonic()
        drawn = self._generate(wanted, lambda _: self._hear(), threading.Event())
        return time.monotonic() - began if isinstance(drawn, Result) else math.inf

    async def _add_sizes(self) -> None:
        for size in self.model.coming_sizes:
            ready = await self._add_size(*size)
            coming = tuple(each for each in self.model.coming_sizes if each != size)
            more = (*self.model.more_sizes, size) if ready else self.model.more_sizes
            self.model = replace(self.model, more_sizes=more, coming_sizes=coming)

    async def _add_size(self, width: int, height: int) -> bool:
        """Compile one more size while drawing goes on, and warm it up between two requests.

        Returns whether that worked.
        """
        began = time.monotonic()
        loop = asyncio.get_running_loop()

        def compile_it() -> None:
            self._compiling = True
            try:
                self._pipe.add_size(height, width)
            finally:
                self._compiling = False

        def run() -> None:
            with self._heard():
                self._pipe.warm_up(height, width)

        try:
            await loop.run_in_executor(self._compiler, compile_it)
            await loop.run_in_executor(self._thread, run)
        except Exception as error:  # the other sizes can still be drawn
            log.error("Pictures of %dx%d cannot be drawn", width, height, exc_info=error)
            return False
        log.info("Ready for %dx%d after %.1f s", width, height, time.monotonic() - began)
        return True

    @contextmanager
    def _heard(self) -> Iterator[None]:
        """Mark the devices as at work inside a `with` block."""
        self._heard_at = time.monotonic()
        try:
            yield
        finally:
            self._heard_at = None

    async def _draw(self, record: Record) -> None:
        request = record.request
        self._in_use = request.loras
        stop = self._stops[request.id] = threading.Event()
        loop = asyncio.get_running_loop()

        def publish(event: Event) -> None:
            self._hear()
            loop.call_soon_threadsafe(self._registry.publish, record, event)

        began = time.monotonic()
        drawn = await loop.run_in_executor(self._thread, self._generate, request, publish, stop)
        del self._stops[request.id]
        if isinstance(drawn, Result):
            self._observe_pace(record, time.monotonic() - began)
        self._free(record)
        self._registry.publish(record, await self._ending(record, drawn))

    def _hear(self) -> None:
        self._heard_at = time.monotonic()

    def _generate(
        self, request: Request, publish: Publish, stop: threading.Event
    ) -> Result | Error:
        """Draw a request on the devices' thread, with its LoRAs and the newest embeddings."""
        with self._heard():
            try:
                if self._loaded:
                    self._loaded.prepare(request.lora_weights)
            except RequestError as error:
                return Error(error.kind, error.message)
            if self._embeddings:
                self._embeddings.refresh()
            return _generate(self._pipe, request, publish, stop)

    async def _ending(self, record: Record, drawn: Result | Error) -> Done | Error:
        """Publish the pictures, if there are any, and return the ending of the request."""
        if isinstance(drawn, Error):
            return drawn
        request = record.request
        if request.live:  # no settings and no PNG file, which would take longer
            jpeg = await asyncio.to_thread(jpeg_of, drawn.images[0])
            self._registry.publish(record, Preview((jpeg,)))
            return Done()
        for image in await _encoded(drawn, request.images, self._reveal and request.unblurred):
            self._registry.publish(record, image)
        cut = drawn.truncated + drawn.negative_truncated
        return Done(" … ".join(dict.fromkeys(filter(None, cut))))


def _generate(
    pipe: SDXLPipeline, request: Request, publish: Publish, stop: threading.Event
) -> Result | Error:
    """Draw a request on the devices' thread; return every exception as an `Error`."""
    previews = Previews()
    # Previews are not screened, so there are none where pictures must be.
    shows_early = request.previews and not (pipe.safety_checker or pipe.screened)

    def on_step(done: int, total: int, _latents: object) -> None:
        publish(Step(done, total))

    def on_preview(decode: Callable[[], np.ndarray]) -> None:
        if jpegs := previews.make(decode):
            publish(Preview(jpegs[: request.images]))

    try:
        return pipe.generate(
            **_for_all(request.settings, pipe.images_per_request),
            width=request.size[0] if request.size else None,
            height=request.size[1] if request.size else None,
            on_step=on_step,
            cancelled=stop,
            on_preview=on_preview if shows_early else None,
        )
    except Cancelled:
        return Error(ErrorKind.CANCELLED, Message(Code.CANCELLED))
    except InputError as error:
        return Error(ErrorKind.INVALID, untranslated(str(error)))
    except NotFiniteError as error:  # it would be the same on another instance
        log.warning("A request drew nothing: %s", error, extra=log_fields(request))
        return Error(ErrorKind.INVALID, Message(Code.NOT_FINITE))
    except Exception as error:  # the next request must not suffer from this one
        return _failed(request, error)


def _failed(request: Request, error: Exception) -> Error:
    log.error("A request failed", exc_info=error, extra=log_fields(request))
    if isinstance(error, ScreenError):
        return Error(ErrorKind.FAILED, Message(Code.UNSCREENED))
    # XLA has no exception type for this; its message has this word on every platform.
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return Error(ErrorKind.OUT_OF_MEMORY, Message(Code.OUT_OF_MEMORY))
    return Error(ErrorKind.FAILED, Message(Code.FAILED))


def _for_all(settings: dict[str, Any], count: int) -> dict[str, Any]:
    """Return settings with texts for all pictures that are drawn; surplus ones repeat the last."""
    return {
        name: [*value, *[value[-1]] * (count - len(value))] if isinstance(value, tuple) else value
        for name, value in settings.items()
    }


async def _encoded(drawn: Result, wanted: int | None, unblurred: bool) -> list[Image]:
    def encode(index: int, image: Pillow.Image) -> Image:
        itself = drawn.unblurred.get(index) if unblurred else None
        return Image(
            index, _png(image), drawn.seeds[index], _settings(image), itself and _png(itself)
        )

    images = enumerate(drawn.images[:wanted])
    return await asyncio.gather(*(asyncio.to_thread(encode, *each) for each in images))


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
        guidance_scale=pipe.guidance_scale,
        distilled=pipe.recipe is not None,
        vae=pipe.vae,
        unet=pipe.unet,
        max_inference_steps=pipe.max_inference_steps,
        family=pipe.family,
        safety_checker=pipe.safety_checker,
        scheduler=pipe.scheduler,
        version=pipe.version,
        screened=pipe.screened,
        sigma_schedule=pipe.sigma_schedule,
        schedulers=pipe.schedulers,
        sigma_schedules=pipe.sigma_schedules,
        refused_schedulers=tuple(pipe.refused_schedulers.items()),
        num_train_timesteps=pipe.num_train_timesteps,
        tiny_vae=pipe.tiny_vae,
    )
