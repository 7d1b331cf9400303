"""Requests in the local generator, with a pipeline whose steps the tests control."""

import asyncio
import io
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import pytest
from PIL import Image as Pillow

from pipeline import SDXLPipeline, metadata
from pipeline.drawing.scheduler import Scheduler
from serving.generator import (
    Done,
    Error,
    ErrorKind,
    Event,
    Image,
    Preview,
    Queued,
    RequestError,
    Started,
    Step,
)
from serving.generators.local import LocalDrawer
from serving.messages import Code, Message, untranslated
from serving.metrics import Observer
from serving.requests import lifecycle
from serving.requests.blocked_words import BlockedWords
from serving.requests.eta import Pace
from serving.requests.lifecycle import RequestLifecycle
from serving.requests.record import Record
from serving.requests.registry import Limits, Registry
from tests.checkpoints import EXECUTABLES, SMALLEST
from tests.fake_pipeline import FakePipeline
from tests.generators import (
    PATIENCE_S,
    change_facts,
    draw,
    drawer_of,
    ending,
    follow,
    local_generator,
    refuses,
    request,
    run,
    until,
)
from tests.run_by import run_alone, run_by
from tests.web import skip

# --- one request ---


def test_from_the_queue_to_the_pictures():
    async def test(generator: RequestLifecycle, pipe: FakePipeline) -> list[Event]:
        return await draw(generator, request())

    events = run(test)
    assert events[0] == Started(1)
    images = [event for event in events if isinstance(event, Image)]
    assert [(image.index, image.seed) for image in images] == [(0, 7), (1, 8)]
    assert ending(events) == Done("the end")
    with Pillow.open(io.BytesIO(images[0].png)) as picture:
        written = metadata.from_text(picture.info[metadata.KEY])
    assert (written.prompt, written.seed) == ("a red star", 7)
    assert images[0].settings["prompt"] == "a red star"
    assert images[1].settings["seed"] == 8


@run_by(run, held=True)
async def test_every_step_is_published(generator: RequestLifecycle, pipe: FakePipeline):
    wanted = request()
    await generator.submit(wanted)
    events = generator.events(wanted.id)
    assert await anext(events) == Started(1)
    for done in (1, 2, 3, 4):
        pipe.let_step()
        assert await anext(events) == Step(done, 4)
    await events.aclose()


@pytest.mark.parametrize("safety_checker", [False, True])
def test_with_a_safety_checker_there_are_no_previews(safety_checker: bool):
    async def test(generator: RequestLifecycle, pipe: FakePipeline) -> list[Event]:
        change_facts(generator, safety_checker=safety_checker)
        return await draw(generator, request(previews=True))

    previews = [event for event in run(test) if isinstance(event, Preview)]
    assert bool(previews) != safety_checker


def test_one_picture_with_a_prompt_of_its_own():
    async def test(generator: RequestLifecycle, pipe: FakePipeline) -> list[Event]:
        events = await draw(generator, request(("a cat",), images=1, negative_prompt=("a dog",)))
        assert pipe.calls[0]["prompt"] == ("a cat",)
        assert pipe.calls[0]["negative_prompt"] == ("a dog",)
        assert pipe.evaluated == (4, 4)  # one slot
        return events

    assert sum(isinstance(event, Image) for event in run(test)) == 1


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("refuse", Error(ErrorKind.INVALID, untranslated("not this"))),
        ("break", Error(ErrorKind.FAILED, Message(Code.FAILED))),
        ("exhaust", Error(ErrorKind.OUT_OF_MEMORY, Message(Code.OUT_OF_MEMORY))),
        ("overflow", Error(ErrorKind.INVALID, Message(Code.NOT_FINITE))),
    ],
)
def test_an_error_ends_its_request_and_no_other(
    prompt: str, said: Error, caplog: pytest.LogCaptureFixture
):
    async def test(generator: RequestLifecycle, pipe: FakePipeline) -> str:
        wanted = request(prompt)
        assert ending(await draw(generator, wanted)) == said
        assert ending(await draw(generator, request())) == Done("the end")
        return wanted.id

    request_id = run(test)
    failures = [vars(each)["fields"] for each in caplog.records if each.levelname == "ERROR"]
    assert failures == ([] if prompt in ("refuse", "overflow") else [{"request_id": request_id}])


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"prompt": "  "}, "prompt", "prompt is blank"),
        ({"prompt": ("a", " ")}, "prompt", "prompt is blank"),
        ({"prompt": ("a", "b", "c")}, "prompt", "prompt has 3 texts; expected one, or one for"),
        ({"prompt": "x" * 2001}, "prompt", "prompt has 2001 characters; at most 2000"),
        ({"negative_prompt": ("a",)}, "negative_prompt", "negative_prompt has 1 texts"),
        ({"images": 3}, "images", "images is 3; expected 1 to 2"),
        ({"images": 0}, "images", "images is 0"),
        ({"guidance_scale": float("nan")}, "guidance_scale", "not a finite number"),
        ({"guidance_scale": 51.0}, "guidance_scale", "guidance_scale is 51.0; expected 0 to 50"),
        ({"guidance_until": 1.1}, "guidance_until", "guidance_until is 1.1; expected 0 to 1"),
        ({"cache_interval": 2}, "cache_interval", "there is no step cache here; leave it out"),
        ({"variation_strength": float("inf")}, "variation_strength", "not a finite number"),
        ({"variation_seed": -1}, "variation_seed", "variation_seed is -1; expected 0 to"),
        ({"num_inference_steps": 51}, "num_inference_steps", "expected 1 to 50"),
        ({"seed": 2**32}, "seed", "seed is 4294967296; expected 0 to 4294967295"),
        ({"size": (1024, 8)}, "size", "size is 1024x8; here it can only be 8x8"),
    ],
)
@run_by(run)
async def test_refused_before_it_waits(
    generator: RequestLifecycle, pipe: FakePipeline, changes: dict[str, Any], field: str, said: str
):
    with pytest.raises(RequestError) as refused:
        await generator.submit(request(**changes))
    assert refused.value.field == field
    assert said in str(refused.value)
    assert generator.load.waiting == 0


# --- sizes ---


def test_more_sizes_once_they_are_ready(caplog: pytest.LogCaptureFixture):
    pipe = FakePipeline(held=True)
    more = ((16, 8), (13, 8), (8, 24))
    generator = local_generator(pipe.as_pipeline(), Limits(), Observer(), more_sizes=more)

    async def test() -> None:
        await generator.open()
        assert generator.facts.sizes == ((8, 8),)
        said = "size is 16x8, which is not ready yet; try again later, or choose 8x8"
        with pytest.raises(RequestError, match=said):
            await generator.submit(request(size=(16, 8)))
        await until(lambda: pipe.calls)  # the new size's first run, on the devices' thread
        assert generator.facts.coming_sizes == more
        pipe.let_all()
        await until(lambda: not generator.facts.coming_sizes)
        assert generator.facts.sizes == ((8, 8), (16, 8), (8, 24))
        *_, image, _ = await draw(generator, request(size=(16, 8)))
        assert isinstance(image, Image)
        assert (image.settings["width"], image.settings["height"]) == (16, 8)
        with pytest.raises(RequestError, match=r"size is 13x8; .* be 8x8 or 16x8 or 8x24"):
            await generator.submit(request(size=(13, 8)))
        await generator.close(PATIENCE_S)

    asyncio.run(test())
    assert "Pictures of 13x8 cannot be drawn" in caplog.text


@run_by(run_alone)
async def test_stuck_in_the_first_run_of_a_size_but_not_while_it_is_compiled():
    compiled = threading.Event()

    class Compiling(FakePipeline):
        def add_size(self, height: int, width: int) -> None:
            assert compiled.wait(PATIENCE_S)

    pipe = Compiling(held=True)
    limits = Limits(running_s=0.0)  # stuck after any time at all
    generator = local_generator(pipe.as_pipeline(), limits, Observer(), more_sizes=((16, 8),))
    await generator.open()
    await until(lambda: generator.at_work)
    assert not generator.stuck
    compiled.set()
    await until(lambda: generator.stuck)
    pipe.let_all()
    await until(lambda: not generator.facts.coming_sizes)
    await until(lambda: not generator.stuck)
    await generator.close(PATIENCE_S)


@pytest.mark.slow
def test_nothing_of_an_added_size_runs_for_the_first_time_in_a_request(
    monkeypatch: pytest.MonkeyPatch,
):
    # The test needs a pipeline of its own, as the shared one must keep its single size.
    pipe = SDXLPipeline.from_pretrained(
        SMALLEST, num_inference_steps=3, devices=jax.devices()[:1], cache_dir=EXECUTABLES
    )
    ran: list[tuple[object, str]] = []
    run = jax.stages.Compiled.__call__

    def note(self: jax.stages.Compiled, *args: object) -> object:
        ran.append((self, threading.current_thread().name))
        return run(self, *args)

    monkeypatch.setattr(jax.stages.Compiled, "__call__", note)
    generator = local_generator(pipe, Limits(), Observer(), more_sizes=((20, 16),))

    async def test() -> None:
        await generator.open()
        await until(lambda: not generator.facts.coming_sizes)
        assert generator.facts.sizes == ((16, 16), (20, 16))
        await generator.close(PATIENCE_S)

    asyncio.run(test())
    executables = pipe._by_size[16, 20].executables
    assert {executable for executable, _ in ran} == {*executables.values()}
    assert {thread for _, thread in ran} == {"devices_0"}


# --- waiting ---


@contextmanager
def refused_with(places: int) -> Iterator[pytest.ExceptionInfo[RequestError]]:
    """Expect that a request is refused because so many places of the queue are taken."""
    with pytest.raises(RequestError) as refused:
        yield refused
    assert refused.value.kind is ErrorKind.FULL
    assert refused.value.message.code is Code.FULL
    assert refused.value.message.params["places"] == places


@run_by(run, max_waiting=2)
async def test_a_full_queue_is_refused_with_a_time_to_come_back(
    generator: RequestLifecycle, pipe: FakePipeline
):
    await draw(generator, request())  # so that the speed is known
    pipe.held = True
    for _ in range(3):
        await generator.submit(request())
        await until(lambda: generator.load.running == 1)
    assert not generator.load.has_room
    with refused_with(places=2) as refused:
        await generator.submit(request())
    assert str(refused.value).startswith("The queue is full")
    assert refused.value.retry_after_s is not None


@run_by(run, held=True, max_waiting=8)
async def test_no_visitor_can_take_all_places(generator: RequestLifecycle, pipe: FakePipeline):
    await generator.submit(request(visitor="greedy"))
    await until(lambda: generator.load.running == 1)
    for _ in range(4):
        await generator.submit(request(visitor="greedy"))
    with refused_with(places=4):
        await generator.submit(request(visitor="greedy"))
    await generator.submit(request(visitor="patient"))
    with refused_with(places=4):
        await generator.submit(request(visitor="patient"))
    await generator.submit(request(visitor="another"))
    with refused_with(places=6):
        await generator.submit(request(visitor="the last"))


@run_by(run, held=True, max_waiting=8)
async def test_no_address_can_take_all_places(generator: RequestLifecycle, pipe: FakePipeline):
    await generator.submit(request(address="greedy"))
    await until(lambda: generator.load.running == 1)
    for i in range(6):
        await generator.submit(request(address="greedy", visitor=f"made up {i}"))
    with refused_with(places=6):
        await generator.submit(request(address="greedy", visitor="another"))
    for address in ("patient", "quiet"):
        await generator.submit(request(address=address, prompt=address))
    with refused_with(places=8):
        await generator.submit(request(address="the last"))
    pipe.let_all()
    await until(lambda: len(pipe.calls) == 9)
    assert [call["prompt"] for call in pipe.calls].index("patient") <= 3


def test_visitors_take_turns_and_know_their_place():
    async def test(generator: RequestLifecycle, pipe: FakePipeline) -> list[str]:
        await generator.submit(request("greedy 0", visitor="greedy"))
        await until(lambda: generator.load.running == 1)
        for i in (1, 2, 3):
            await generator.submit(request(f"greedy {i}", visitor="greedy"))
        patient = request("patient", visitor="patient", keep=True)
        await generator.submit(patient)
        assert await anext(generator.events(patient.id)) == Queued(2, None)
        pipe.let_all()
        await until(lambda: len(pipe.calls) == 5)
        return [call["prompt"] for call in pipe.calls]

    order = run(test, held=True)
    assert order == ["greedy 0", "greedy 1", "patient", "greedy 2", "greedy 3"]


@run_by(run)
async def test_expected_wait_grows_with_the_place(generator: RequestLifecycle, pipe: FakePipeline):
    await draw(generator, request())  # so that the speed is known
    pipe.held = True
    await generator.submit(request())
    await until(lambda: generator.load.running == 1)
    waits = []
    for steps in (1, 10, 4):
        wanted = request(num_inference_steps=steps, keep=True)
        await generator.submit(wanted)
        event = await anext(generator.events(wanted.id))
        assert isinstance(event, Queued)
        waits.append(event.expected_wait_s)
    # Waits in steps: 4 of the running request, then 4 + 1, then 4 + 1 + 10.
    step_s = waits[0] / 4
    assert waits == pytest.approx([4 * step_s, 5 * step_s, 15 * step_s])
    assert step_s > 0


def test_speed_follows_what_is_recent():
    pace = Pace()
    assert pace.expect(25) is None
    pace.observe(10, 10.0)
    assert pace.expect(25) == 25.0
    for _ in range(30):
        pace.observe(25, 50.0)
    assert pace.expect(25) == pytest.approx(50.0, rel=0.01)


# --- endings before the end ---


def test_a_change_costs_the_same_however_many_wait(monkeypatch: pytest.MonkeyPatch):
    calls: list[str] = []

    def count(owner: type, name: str) -> None:
        plain = getattr(owner, name)

        def call(*args: Any, **named: Any) -> Any:
            calls.append(name)
            return plain(*args, **named)

        monkeypatch.setattr(owner, name, call)

    monkeypatch.setattr(lifecycle, "TOLD_S", PATIENCE_S)
    count(Scheduler, "suits")
    count(LocalDrawer, "place")
    count(Registry, "publish")

    async def test(generator: RequestLifecycle, pipe: FakePipeline) -> None:
        async def submit(requests: int) -> int:
            """Submit some more requests, and return the calls that the last one took."""
            for i in range(requests):
                del calls[:]
                await generator.submit(request(visitor=f"visitor {i}"))
            return len(calls)

        await submit(1)
        await until(lambda: generator.load.running == 1)
        few = await submit(2 * lifecycle.FRONT)
        assert await submit(2 * lifecycle.FRONT) == few
        assert generator.load.waiting == 4 * lifecycle.FRONT
        record = generator._registry.under_way()[-1]
        generator.cancel(record.request.id)
        assert generator.load.waiting == 4 * lifecycle.FRONT - 1

    run(test, held=True, max_waiting=1000)


def test_changes_that_come_close_together_are_told_as_one(monkeypatch: pytest.MonkeyPatch):
    told: list[str] = []
    looks: list[None] = []
    publish, begin_next = Registry.publish, RequestLifecycle.begin_next

    def note(registry: Registry, record: Record, event: Event) -> None:
        if isinstance(event, Queued):
            told.append(record.request.id)
        publish(registry, record, event)

    def look(generator: RequestLifecycle) -> None:
        looks.append(None)
        begin_next(generator)

    monkeypatch.setattr(lifecycle, "TOLD_S", 8.0, raising=False)
    monkeypatch.setattr(Registry, "publish", note)
    monkeypatch.setattr(RequestLifecycle, "begin_next", look)

    async def test(generator: RequestLifecycle, pipe: FakePipeline) -> None:
        requests = [request(visitor=str(i), images=1) for i in range(10)]
        for each in requests:
            await generator.submit(each)
        await until(lambda: generator.load.running == 2)
        assert told == []
        await skip(8.0)  # before the requests are missed by their followers
        assert told == [each.id for each in requests[2:]]
        told.clear()
        looks.clear()
        for each in requests[2:6]:
            generator.cancel(each.id)
        await asyncio.sleep(0)
        assert len(looks) == 1
        assert told == []

    run(test, held=True)


@run_by(run, held=True)
async def test_a_full_house_looks_at_no_turns(
    generator: RequestLifecycle, pipe: FakePipeline, monkeypatch: pytest.MonkeyPatch
):
    await generator.submit(request(images=2))
    await until(lambda: generator.load.slots_in_use == 2)
    monkeypatch.setattr(lifecycle, "TOLD_S", PATIENCE_S, raising=False)
    asked: list[Record] = []
    monkeypatch.setattr(drawer_of(generator), "place", asked.append)
    await generator.submit(request(images=2))
    await generator.submit(request(images=2))
    assert asked == []


@run_by(run, held=True, max_waiting=1000)
async def test_visitors_far_from_the_front_are_told_their_places_in_a_while(
    generator: RequestLifecycle, pipe: FakePipeline
):
    requests = [request(visitor=str(i), images=1) for i in range(2 * lifecycle.FRONT)]
    for each in requests:
        await generator.submit(each)
    waiting = generator.load.waiting
    assert waiting > lifecycle.FRONT
    following = asyncio.create_task(anext(generator.events(requests[-1].id)))
    await asyncio.sleep(0)
    assert not following.done()
    await skip(lifecycle.TOLD_S)
    await skip(lifecycle.FAR_TOLD_S)
    assert await following == Queued(waiting, None)


@run_by(run_alone)
async def test_a_refused_duplicate_costs_no_token():
    generator = local_generator(
        FakePipeline().as_pipeline(), Limits(rate_per_address=2), Observer()
    )
    first = request(address="1.1.1.1")
    await draw(generator, first)
    await until(lambda: not generator._tasks)
    for _ in range(3):
        with refuses(ErrorKind.DUPLICATE):
            await generator.submit(first)
    await draw(generator, request(address="1.1.1.1"))
    await generator.close(PATIENCE_S)


@run_by(run, held=True, kept=0)
async def test_an_id_is_not_used_again_while_its_last_step_runs(
    generator: RequestLifecycle, pipe: FakePipeline
):
    pipe.stuck = True
    first = request()
    await generator.submit(first)
    await until(lambda: pipe.calls)
    generator.cancel(first.id)
    with refuses(ErrorKind.UNKNOWN):  # its result was not kept
        generator.events(first.id)
    with refuses(ErrorKind.DUPLICATE):
        await generator.submit(request(id=first.id))
    pipe.let_step()
    pipe.stuck = False

    async def taken_in() -> bool:
        try:
            await generator.submit(request(id=first.id))
        except RequestError:
            return False
        return True

    async with asyncio.timeout(PATIENCE_S):
        while not await taken_in():
            await asyncio.sleep(0.001)
    await until(lambda: len(pipe.calls) == 2)
    # The cancellation must stop the new request.
    generator.cancel(first.id)
    await until(lambda: not generator.load.running)
    assert ending(await draw(generator, request("refuse", keep=True))) == Error(
        ErrorKind.INVALID, untranslated("not this")
    )


@run_by(run, held=True)
async def test_cancelled_while_waiting_and_while_drawn(
    generator: RequestLifecycle, pipe: FakePipeline
):
    drawn, waiting = request(), request()
    await generator.submit(drawn)
    await until(lambda: generator.load.running == 1)
    await generator.submit(waiting)
    await until(lambda: pipe.calls)
    for wanted in (waiting, drawn):
        generator.cancel(wanted.id)
        said = ending(await follow(generator, wanted.id))
        assert said == Error(ErrorKind.CANCELLED, Message(Code.CANCELLED))
    generator.cancel(drawn.id)  # cancelling again changes nothing
    pipe.let_all()
    assert ending(await draw(generator, request())) == Done("the end")
    assert len(pipe.calls) == 2
    assert pipe.steps <= 1 + 4


@run_by(run, held=True, waiting_s=0.05, running_s=0.5)
async def test_deadlines(generator: RequestLifecycle, pipe: FakePipeline):
    drawn, waiting = request(), request()
    await generator.submit(drawn)
    await generator.submit(waiting)
    said = ending(await follow(generator, waiting.id))
    assert said == Error(ErrorKind.DEADLINE, Message(Code.NOT_STARTED, {"seconds": 0.05}))
    said = ending(await follow(generator, drawn.id))
    assert said == Error(ErrorKind.DEADLINE, Message(Code.NOT_FINISHED, {"seconds": 0.5}))


@pytest.mark.parametrize(("keep", "grace_s"), [(False, 60.0), (True, 0.02)])
def test_a_visitor_who_is_gone_frees_the_place(keep: bool, grace_s: float):
    async def test(generator: RequestLifecycle, pipe: FakePipeline) -> None:
        wanted = request(keep=keep)
        await generator.submit(wanted)
        events = generator.events(wanted.id)
        await anext(events)
        await events.aclose()
        await until(lambda: generator.load.running + generator.load.waiting == 0)
        said = ending(await follow(generator, wanted.id))
        assert said == Error(ErrorKind.ABANDONED, Message(Code.ABANDONED))

    run(test, held=True, grace_s=grace_s)


@run_by(run, held=True, grace_s=0.02)
async def test_a_request_that_was_abandoned_is_drawn_when_its_visitor_is_back(
    generator: RequestLifecycle, pipe: FakePipeline
):
    wanted = request(keep=True)
    await generator.submit(wanted)
    events = generator.events(wanted.id)
    await anext(events)
    await generator.take_up(wanted.id)  # it is still under way
    await events.aclose()
    await until(lambda: generator.load.running + generator.load.waiting == 0)
    pipe.let_all()
    await generator.take_up(wanted.id)
    said = await follow(generator, wanted.id)
    assert [event.seed for event in said if isinstance(event, Image)] == [7, 8]
    assert ending(said) == Done("the end")
    await generator.take_up(wanted.id)  # its pictures are kept
    assert generator.load.running + generator.load.waiting == 0
    with pytest.raises(RequestError, match=re.escape(str(Message(Code.UNKNOWN_REQUEST)))):
        await generator.take_up("of nobody")


@run_by(run, held=True, grace_s=30.0)
async def test_a_request_to_be_kept_survives_a_reload(
    generator: RequestLifecycle, pipe: FakePipeline
):
    wanted = request(keep=True)
    await generator.submit(wanted)
    events = generator.events(wanted.id)
    await anext(events)
    pipe.let_step(2)
    while await anext(events) != Step(2, 4):
        pass
    await events.aclose()
    await skip(29)
    again = generator.events(wanted.id)
    assert [await anext(again), await anext(again)] == [Started(1), Step(2, 4)]
    pipe.let_all()
    assert ending([event async for event in again]) == Done("the end")


@run_by(run, held=True, grace_s=10.0)
async def test_returning_restarts_the_time_to_keep_a_request(
    generator: RequestLifecycle, pipe: FakePipeline
):
    wanted = request(keep=True)
    await generator.submit(wanted)
    for _ in range(5):
        events = generator.events(wanted.id)
        await anext(events)
        await events.aclose()
        await skip(6)  # more than half the grace period, five times
    assert generator.load.running == 1


# --- afterwards ---


@run_by(run, kept=2, kept_s=30.0)
async def test_results_are_kept_for_a_while_and_not_for_ever(
    generator: RequestLifecycle, pipe: FakePipeline
):
    wanted = [request() for _ in range(3)]
    told = [await draw(generator, each) for each in wanted]
    with pytest.raises(RequestError, match="no longer") as refused:
        generator.events(wanted[0].id)
    assert refused.value.kind is ErrorKind.UNKNOWN
    again = await follow(generator, wanted[2].id)
    assert again[0] == Started(1)
    assert again[-3:] == told[2][-3:]
    with refuses(ErrorKind.DUPLICATE):
        await generator.submit(wanted[2])
    await skip(31)
    with pytest.raises(RequestError):
        generator.cancel(wanted[2].id)


@run_by(run, held=True)
async def test_closing_tells_what_waits_and_lets_finish_what_runs(
    generator: RequestLifecycle, pipe: FakePipeline
):
    drawn, waiting = request(), request()
    await generator.submit(drawn)
    await until(lambda: generator.load.running == 1)
    await generator.submit(waiting)
    closed = asyncio.create_task(generator.close(PATIENCE_S))
    said = ending(await follow(generator, waiting.id))
    assert said == Error(ErrorKind.STOPPING, Message(Code.STOPPING))
    with refuses(ErrorKind.STOPPING):
        await generator.submit(request())
    assert not generator.load.accepting
    pipe.let_all()
    await closed
    assert ending(await follow(generator, drawn.id)) == Done("the end")


@run_by(run, held=True)
async def test_closing_has_a_limit(generator: RequestLifecycle, pipe: FakePipeline):
    drawn = request()
    await generator.submit(drawn)
    await until(lambda: generator.load.running == 1)
    await generator.close(0.05)
    said = ending(await follow(generator, drawn.id))
    assert said == Error(ErrorKind.STOPPING, Message(Code.STOPPING))


def test_closing_does_not_wait_for_devices_that_are_stuck(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lifecycle, "STOPS_WITHIN_S", 0.05)

    async def test(generator: RequestLifecycle, pipe: FakePipeline) -> None:
        pipe.stuck = True
        drawn = request()
        await generator.submit(drawn)
        await until(lambda: pipe.calls)
        await generator.close(0.05)
        said = ending(await follow(generator, drawn.id))
        assert said == Error(ErrorKind.STOPPING, Message(Code.STOPPING))
        assert generator.at_work
        pipe.let_all()
        await until(lambda: not generator.at_work)

    run(test, held=True)


@run_by(run, held=True)
async def test_closing_publishes_no_queue_positions(
    generator: RequestLifecycle, pipe: FakePipeline, monkeypatch: pytest.MonkeyPatch
):
    for each in [request() for _ in range(20)]:
        await generator.submit(each)
    told: list[Event] = []
    publish = Record.publish
    monkeypatch.setattr(
        Record, "publish", lambda record, event: told.append(event) or publish(record, event)
    )
    pipe.let_all()
    await generator.close(PATIENCE_S)
    assert told.count(Error(ErrorKind.STOPPING, Message(Code.STOPPING))) == 19
    assert not any(isinstance(event, Queued) for event in told)


@run_by(run)
async def test_several_follow_and_the_slow_miss_only_what_is_out_of_date(
    generator: RequestLifecycle, pipe: FakePipeline
):
    wanted = request()
    await generator.submit(wanted)
    slow = generator.events(wanted.id)
    await anext(slow)
    quick = await follow(generator, wanted.id)
    rest = [event async for event in slow]
    assert [event for event in rest if isinstance(event, Step)] == [Step(4, 4)]
    assert rest[-3:] == quick[-3:]


class SlowWords(BlockedWords):
    """Blocked words that are looked for until a test lets that end."""

    def __init__(self) -> None:
        super().__init__(["other"])
        self.began, self.may_end, self.ended = (threading.Event() for _ in range(3))

    def find(self, text: str) -> str:
        self.began.set()
        self.may_end.wait(PATIENCE_S)
        self.ended.set()
        return super().find(text)


def test_words_are_read_beside_the_event_loop() -> None:
    words = SlowWords()

    async def test(generator: RequestLifecycle, _: FakePipeline) -> None:
        drawing = asyncio.create_task(draw(generator, request()))
        await until(words.began.is_set)
        assert not words.ended.is_set()
        words.may_end.set()
        assert isinstance(ending(await drawing), Done)

    run(test, blocked=words)
