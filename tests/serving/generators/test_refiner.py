"""Requests that a base model and its refiner draw, of which serving sees one drawing each."""

import asyncio
from typing import Any

import jax
import pytest

from pipeline import SDXLPipeline
from serving.generator import Done, Image, Request, Step
from serving.metrics import Observer
from serving.requests.registry import Limits
from tests.checkpoints import EXECUTABLES, GOLDEN, PLAIN
from tests.generators import local_generator

STEPS = 8


@pytest.mark.slow
def test_several_requests_go_through_both_models() -> None:
    pipe = SDXLPipeline.from_pretrained(
        PLAIN,
        refiner=GOLDEN / "refiner/checkpoint",
        images_per_request=2,
        devices=jax.devices()[:1],
        cache_dir=EXECUTABLES,
    )

    async def drawn() -> list[list[Any]]:
        generator = local_generator(pipe, Limits(), Observer())
        await generator.open()
        assert generator.facts.refiner == "checkpoint"
        wanted = [
            Request("a star", None, num_inference_steps=STEPS, seed=seed, previews=True, images=2)
            for seed in range(4)
        ]
        for request in wanted:
            await generator.submit(request)

        async def follow(request: Request) -> list[Any]:
            return [event async for event in generator.events(request.id)]

        found = await asyncio.gather(*map(follow, wanted))
        await generator.close(1)
        return found

    for events in asyncio.run(drawn()):
        assert isinstance(events[-1], Done)
        steps = [event for event in events if isinstance(event, Step)]
        assert steps[-1] == Step(STEPS, STEPS)
        images = [event for event in events if isinstance(event, Image)]
        assert [image.index for image in images] == [0, 1]
        assert all(image.settings["denoising_end"] == 0.8 for image in images)
