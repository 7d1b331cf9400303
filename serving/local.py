"""Requests drawn in this process, by the one thread that owns the devices."""

import asyncio
import io
import logging
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor

from PIL import Image

from pipeline import Cancelled, InputError, SDXLPipeline, metadata
from serving.generator import Model, Pictures, Request, RequestError, Step

log = logging.getLogger(__name__)

Post = Callable[[Step | Pictures | Exception], None]


class LocalGenerator:
    """A `serving.generator.Generator` over a pipeline in this process.

    A single thread does all the drawing. So requests never meet on the devices, even while
    one that was stopped is still finishing its last step.
    """

    def __init__(self, pipe: SDXLPipeline) -> None:
        self.model = _describe(pipe)
        self._pipe = pipe
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="devices")
        self._running: set[threading.Event] = set()

    def close(self) -> None:
        """Stops what is being drawn, within one step, and draws nothing more."""
        for cancelled in tuple(self._running):
            cancelled.set()
        self._thread.shutdown(cancel_futures=True)

    async def run(self, request: Request) -> AsyncGenerator[Step | Pictures]:
        """See `serving.generator.Generator.run`."""
        events: asyncio.Queue[Step | Pictures | Exception] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        cancelled = threading.Event()

        def post(event: Step | Pictures | Exception) -> None:
            # Once stopped nobody listens, and the loop may be gone.
            if not cancelled.is_set():
                loop.call_soon_threadsafe(events.put_nowait, event)

        self._running.add(cancelled)
        self._thread.submit(self._draw, request, post, cancelled)
        try:
            while True:
                event = await events.get()
                if isinstance(event, Exception):
                    raise event
                yield event
                if isinstance(event, Pictures):
                    return
        finally:
            cancelled.set()
            self._running.discard(cancelled)

    def _draw(self, request: Request, post: Post, cancelled: threading.Event) -> None:
        try:
            post(self._pictures(request, post, cancelled))
        except Cancelled:
            pass
        except InputError as error:
            post(RequestError(str(error)))
        except Exception as error:  # whoever waits must hear of whatever happened
            log.exception("A request failed")
            post(error)

    def _pictures(self, request: Request, post: Post, cancelled: threading.Event) -> Pictures:
        result = self._pipe.generate(
            request.prompt,
            negative_prompt=request.negative_prompt,
            guidance_scale=request.guidance_scale,
            num_inference_steps=request.num_inference_steps,
            seed=request.seed,
            on_step=lambda step, total, _latents: post(Step(step, total)),
            cancelled=cancelled,
        )
        cut = result.truncated + result.negative_truncated
        return Pictures(
            pngs=tuple(_png(image) for image in result.images),
            seeds=tuple(result.seeds),
            truncated=" … ".join(dict.fromkeys(filter(None, cut))),
        )


def _describe(pipe: SDXLPipeline) -> Model:
    return Model(
        name=pipe.model,
        revision=pipe.revision,
        device=pipe.device_kind,
        num_devices=pipe.num_devices,
        height=pipe.height,
        width=pipe.width,
        images_per_request=pipe.images_per_request,
        num_inference_steps=pipe.num_inference_steps,
        max_inference_steps=pipe.max_inference_steps,
    )


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    metadata.save_png(image, buffer)
    return buffer.getvalue()
