"""The one thread that owns the devices, with a stand-in for the pipeline."""

import asyncio
import io
import threading
import time
from typing import Any, cast

import pytest
from PIL import Image

from pipeline import Cancelled, InputError, SDXLPipeline, metadata
from pipeline.pipeline import Result
from serving.generator import Pictures, Request, RequestError, Step
from serving.local import LocalGenerator

REQUEST = Request("a red star", None, 5.0, 4, 7)
SETTINGS = metadata.Settings("a red star", "", 7, 4, 5.0, 8, 8, "stand-in", None)


class StandIn:
    """A pipeline that takes its time over grey squares."""

    model, revision, device_kind, num_devices = "stand-in", None, "cpu", 1
    height = width = 8
    images_per_request = 1
    num_inference_steps, max_inference_steps = 25, 50

    def __init__(self, step_seconds: float = 0.0) -> None:
        self._step_seconds = step_seconds
        self._busy = threading.Lock()
        self.steps = 0

    def generate(self, prompt: str, num_inference_steps: int, seed: int, **others: Any) -> Result:
        assert self._busy.acquire(blocking=False), "two requests met on the devices"
        try:
            return self._drawn(prompt, num_inference_steps, seed, **others)
        finally:
            self._busy.release()

    def _drawn(self, prompt: str, steps: int, seed: int, **others: Any) -> Result:
        if prompt == "refuse":
            raise InputError("not this")
        if prompt == "break":
            raise MemoryError("out of memory")
        for step in range(steps):
            if others["cancelled"].is_set():
                raise Cancelled
            time.sleep(self._step_seconds)
            self.steps += 1
            others["on_step"](step + 1, steps, None)
        image = Image.new("RGB", (8, 8), "grey")
        metadata.attach(image, SETTINGS)
        return Result([image], [seed], ["the end"], ["the end"])


def make(**options: Any) -> tuple[LocalGenerator, StandIn]:
    pipe = StandIn(**options)
    return LocalGenerator(cast(SDXLPipeline, pipe)), pipe


async def collect(generator: LocalGenerator, request: Request = REQUEST) -> list[Step | Pictures]:
    return [event async for event in generator.run(request)]


def test_steps_and_then_pictures():
    generator, _ = make()
    *steps, pictures = asyncio.run(collect(generator))
    assert steps == [Step(done, 4) for done in (1, 2, 3, 4)]
    assert isinstance(pictures, Pictures)
    assert pictures.seeds == (7,)
    assert pictures.truncated == "the end"
    with Image.open(io.BytesIO(pictures.pngs[0])) as image:
        assert image.info[metadata.KEY] == metadata.to_text(SETTINGS)


@pytest.mark.parametrize(("prompt", "error"), [("refuse", RequestError), ("break", MemoryError)])
def test_an_error_ends_its_request_and_no_other(prompt: str, error: type[Exception]):
    generator, _ = make()
    with pytest.raises(error):
        asyncio.run(collect(generator, Request(prompt, None, 5.0, 4, 7)))
    assert len(asyncio.run(collect(generator))) == 5


def test_requests_take_turns():
    generator, _ = make(step_seconds=0.002)

    async def both() -> list[list[Step | Pictures]]:
        return list(await asyncio.gather(collect(generator), collect(generator)))

    assert [len(events) for events in asyncio.run(both())] == [5, 5]


def test_cancelling_stops_within_one_step():
    generator, pipe = make(step_seconds=0.02)

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(collect(generator, Request("x", None, 5.0, 1000, 7)), 0.1)

    asyncio.run(leave())
    steps = pipe.steps
    time.sleep(0.1)
    assert pipe.steps <= steps + 1
    assert len(asyncio.run(collect(generator))) == 5


def test_close_stops_what_runs():
    generator, pipe = make(step_seconds=0.02)

    async def run() -> None:
        task = asyncio.create_task(collect(generator, Request("x", None, 5.0, 1000, 7)))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(generator.close)
        task.cancel()

    asyncio.run(run())
    assert pipe.steps < 20
