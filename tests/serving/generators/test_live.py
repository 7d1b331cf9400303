"""Live pictures in the local generator, with a pipeline whose steps the tests control."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from pipeline.drawing.drawing import Drawing
from serving.generator import Done, Error, ErrorKind, Preview, Request, Started, Step
from serving.generators import local
from serving.generators.local import LiveMode, LocalDrawer
from serving.messages import Code, Message
from serving.metrics import Observer
from serving.requests.lifecycle import MOST_LIVE, MOST_LIVE_EACH, RequestLifecycle
from serving.requests.registry import LIVE_WAITING_S, Limits
from tests.fake_pipeline import FakePipeline
from tests.generators import (
    closing,
    draw,
    drawer_of,
    ending,
    follow,
    local_generator,
    refuses,
    request,
    until,
)
from tests.run_by import run_by
from tests.web import skip

Test = Callable[[RequestLifecycle, FakePipeline], Awaitable[None]]
DROPPED = Error(ErrorKind.CANCELLED, Message(Code.CANCELLED))


def run(
    test: Test,
    *,
    live: LiveMode = "on",
    held: bool = False,
    distilled: bool = True,
    limits: Limits | None = None,
    observer: Observer | None = None,
) -> None:
    """Run a test with a generator of its own, whose model draws in few steps if `distilled`."""
    pipe = FakePipeline()
    pipe.facts = replace(pipe.facts, distilled=distilled)

    async def whole() -> None:
        generator = local_generator(
            pipe.as_pipeline(),
            limits or Limits(),
            observer or Observer(),
            live=live,
        )
        await generator.open()
        await asyncio.gather(*drawer_of(generator)._beside)
        pipe.held = held
        async with closing(generator, pipe):
            await test(generator, pipe)

    asyncio.run(whole())


def typed(prompt: str = "a star", visitor: str = "", address: str = "") -> Request:
    return request(prompt, visitor=visitor, address=address, live=True)


async def submitted(generator: RequestLifecycle, *wanted: Request) -> None:
    for each in wanted:
        await generator.submit(each)


def test_one_picture_that_leaves_nothing_behind():
    observer = Observer()

    async def test(generator: RequestLifecycle, pipe: FakePipeline) -> None:
        for _ in range(3):  # the rate limits do not count them
            wanted = typed(visitor="me", address="here")
            started, *steps, picture, end = await draw(generator, wanted)
            assert (started, end) == (Started(1), Done())
            assert steps[-1] == Step(4, 4)
            assert isinstance(picture, Preview)
            assert [jpeg[:3] for jpeg in picture.jpegs] == [b"\xff\xd8\xff"]
            with refuses(ErrorKind.UNKNOWN):
                generator.events(wanted.id)
        await draw(generator, request(visitor="me", address="here"))

    run(test, limits=Limits(rate_per_address=1, rate_per_session=1), observer=observer)
    counted = observer.registry.get_sample_value
    assert counted("sdxl_live_total", {"outcome": "done"}) == 3
    assert counted("sdxl_requests_total", {"outcome": "done"}) == 1


@run_by(run, held=True)
async def test_twenty_visitors_who_type_delay_no_request(
    generator: RequestLifecycle, pipe: FakePipeline
):
    drawn = [typed(f"live {i}", address=f"visitor {i}") for i in range(20)]
    followed = [asyncio.create_task(draw(generator, each)) for each in drawn]
    await until(lambda: pipe.at_rest and len(pipe.calls) == 2)
    assert [call["prompt"] for call in pipe.calls] == ["live 0", "live 1"]
    first, second = request("first", keep=True), request("second", keep=True)
    await submitted(generator, first, second)
    for each in followed[:2]:
        assert ending(await each) == DROPPED
    await until(lambda: len(pipe.calls) == 3)
    assert pipe.steps == 0  # not one step of a live picture was waited for
    pipe.let_all()
    assert {type(ending(await each)) for each in followed[2:]} == {Done}
    prompts = [call["prompt"] for call in pipe.calls]
    assert prompts[:4] == ["live 0", "live 1", "first", "second"]
    assert sorted(prompts[4:]) == sorted(f"live {i}" for i in range(2, 20))


@run_by(run, held=True)
async def test_a_visitors_next_picture_replaces_the_one_before(
    generator: RequestLifecycle, pipe: FakePipeline
):
    texts = "a", "a r", "a red", "a red star"
    mine = [typed(text, visitor="me", address="here") for text in texts]
    other = typed("a ring", visitor="you", address="here")
    followed = [asyncio.create_task(draw(generator, mine[0]))]
    await until(lambda: pipe.at_rest)
    followed += [asyncio.create_task(draw(generator, each)) for each in (*mine[1:], other)]
    for each in followed[:3]:
        assert ending(await each) == DROPPED
    pipe.let_all()
    for each in followed[3:]:
        assert ending(await each) == Done()
    prompts = [call["prompt"] for call in pipe.calls]
    assert (prompts[0], *prompts[-2:]) == ("a", "a red star", "a ring")


@pytest.mark.parametrize(("address", "most"), [("greedy", MOST_LIVE_EACH), ("{}", MOST_LIVE)])
@run_by(run, held=True)
async def test_few_pictures_wait_for_an_address_and_in_all(
    generator: RequestLifecycle, pipe: FakePipeline, address: str, most: int
):
    await submitted(generator, request("drawn", keep=True))
    made_up = [
        typed(f"{i}", visitor=f"made up {i}", address=address.format(i)) for i in range(most + 5)
    ]
    followed = [asyncio.create_task(draw(generator, each)) for each in made_up]
    for each in followed[:-most]:
        assert ending(await each) == DROPPED
    pipe.let_all()
    for each in followed[-most:]:
        assert ending(await each) == Done()


@run_by(run, held=True)
async def test_a_picture_that_waited_too_long_is_not_drawn(
    generator: RequestLifecycle, pipe: FakePipeline
):
    drawn, late = request("drawn", keep=True), typed("late")
    await submitted(generator, drawn, late)
    followed = asyncio.create_task(follow(generator, late.id))
    await until(lambda: pipe.at_rest)
    await skip(LIVE_WAITING_S)
    said = ending(await followed)
    assert isinstance(said, Error)
    assert said.kind is ErrorKind.DEADLINE
    pipe.let_all()
    await follow(generator, drawn.id)
    assert [call["prompt"] for call in pipe.calls] == ["drawn"]


@pytest.mark.parametrize(
    ("live", "distilled", "within_s", "offered", "measured"),
    [
        ("on", True, 0.0, True, False),
        ("auto", True, 60.0, True, True),
        ("auto", True, 0.0, False, True),
        ("off", True, 60.0, False, False),
        ("on", False, 60.0, False, False),
    ],
)
def test_live_pictures_are_drawn_where_they_are_quick(
    live: LiveMode,
    distilled: bool,
    within_s: float,
    offered: bool,
    measured: bool,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(local, "LIVE_WITHIN_S", within_s)

    async def test(generator: RequestLifecycle, pipe: FakePipeline) -> None:
        assert generator.facts.live is offered
        assert bool(pipe.calls) is measured
        if not offered:
            with refuses(Code.NOT_LIVE):
                await generator.submit(typed())

    run(test, live=live, distilled=distilled)


@pytest.mark.lasting
def test_a_measurement_that_failed_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "LIVE_WITHIN_S", 60.0)
    monkeypatch.setattr(local, "LIVE_AGAIN_S", 0.0)
    draw_alone, failures = LocalDrawer._draw_alone, [OSError("once"), OSError("twice")]

    def fail_first(drawer: LocalDrawer, drawing: Drawing) -> float:
        if failures:
            raise failures.pop()
        return draw_alone(drawer, drawing)

    monkeypatch.setattr(LocalDrawer, "_draw_alone", fail_first)

    async def test(generator: RequestLifecycle, pipe: FakePipeline) -> None:
        assert not failures
        assert generator.facts.live

    run(test, live="auto")
