"""Generators for tests: the life of requests over a drawer, made in one call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pipeline.facts import Facts
from serving.generator import (
    Done,
    Error,
    ErrorKind,
    Event,
    Request,
    RequestError,
)
from serving.generators.client import Client
from serving.generators.local import LocalDrawer
from serving.generators.remote import RemoteDrawer
from serving.messages import Code
from serving.metrics import Observer
from serving.requests.lifecycle import RequestLifecycle
from serving.requests.registry import Limits
from tests.fake_pipeline import FakePipeline

if TYPE_CHECKING:
    from pipeline import SDXLPipeline


def local_generator(
    pipe: SDXLPipeline, limits: Limits, observer: Observer, **options: Any
) -> RequestLifecycle:
    """Return a generator that draws with a pipeline in this process."""
    return RequestLifecycle(LocalDrawer(pipe, limits, observer, **options), limits, observer)


def remote_generator(
    client: Client, urls: Sequence[str], facts: Facts, limits: Limits, observer: Observer
) -> RequestLifecycle:
    """Return a generator that sends requests to other instances."""
    return RequestLifecycle(RemoteDrawer(client, urls, facts, observer), limits, observer)


def drawer_of(generator: RequestLifecycle) -> Any:
    """Return the drawer of a generator, with its private parts."""
    return generator._drawer


def change_facts(generator: RequestLifecycle, **changes: Any) -> None:
    """Change the facts about the model of a local generator."""
    drawer_of(generator)._facts = replace(generator.facts, **changes)


T = TypeVar("T")
PATIENCE_S = 60.0


def request(prompt: str | tuple[str, ...] = "a red star", **others: Any) -> Request:
    values = {"negative_prompt": None, "guidance_scale": 5.0, "num_inference_steps": 4, "seed": 7}
    return Request(prompt, **values | others)


def run(
    test: Callable[[RequestLifecycle, FakePipeline], Awaitable[T]],
    *,
    held: bool = False,
    **limits: Any,
) -> T:
    """Run a test with a generator of its own, and close the generator."""
    pipe = FakePipeline(held=held)

    async def whole() -> T:
        generator = local_generator(pipe.as_pipeline(), Limits(**limits), Observer())
        async with closing(generator, pipe):
            return await test(generator, pipe)

    return asyncio.run(whole())


@asynccontextmanager
async def closing(generator: RequestLifecycle, pipe: FakePipeline) -> AsyncIterator[None]:
    """Close a generator at the end of this context, which may take `PATIENCE_S`."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield
    finally:
        pipe.let_all()
        await generator.close(PATIENCE_S)


async def follow(generator: RequestLifecycle, request_id: str) -> list[Event]:
    return [event async for event in generator.events(request_id)]


async def draw(generator: RequestLifecycle, wanted: Request) -> list[Event]:
    await generator.submit(wanted)
    return await follow(generator, wanted.id)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


@contextmanager
def refuses(reason: ErrorKind | Code) -> Iterator[None]:
    """Check that what is asked inside this context is refused with a kind or a code of errors."""
    with pytest.raises(RequestError) as caught:
        yield
    error = caught.value
    assert (error.kind if isinstance(reason, ErrorKind) else error.message.code) is reason


def ending(events: list[Event]) -> Event:
    assert [isinstance(event, Done | Error) for event in events].count(True) == 1
    return events[-1]
