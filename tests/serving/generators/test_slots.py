"""Pictures of several requests in the slots of the local generator: turns, ends and failures."""

import asyncio
import math
import re
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import InputError
from pipeline.drawing.drawing import Drawing
from pipeline.facts import LoraFacts
from serving.generator import Done, Error, ErrorKind, Event, Image, Preview, Request, Step
from serving.generators import picture_files
from serving.messages import Code, Message
from serving.metrics import Observer
from serving.requests.lifecycle import RequestLifecycle
from serving.requests.registry import Limits
from tests.fake_pipeline import FakePipeline
from tests.generators import (
    change_facts,
    closing,
    draw,
    drawer_of,
    ending,
    follow,
    local_generator,
    request,
    until,
)
from tests.run_by import run_by
from tests.web import skip

Test = Callable[[RequestLifecycle, FakePipeline], Awaitable[None]]
LONG = 50  # steps of a picture that holds its slot


def run(test: Test, slots: int, *, observer: Observer | None = None, **options: Any) -> None:
    """Run a test with a generator of its own, whose steps are held."""
    pipe = FakePipeline(held=True, slots=slots)

    async def whole() -> None:
        generator = local_generator(
            pipe.as_pipeline(),
            Limits(running_s=20.0),
            observer or Observer(),
            **options,
        )
        async with closing(generator, pipe):
            await test(generator, pipe)

    asyncio.run(whole())


def one(prompt: str, steps: int = 4, **others: Any) -> Request:
    return request(prompt, num_inference_steps=steps, keep=True, **{"images": 1} | others)


def add_lora(generator: RequestLifecycle, pipe: FakePipeline) -> None:
    """Add a LoRA named "pixel"."""
    pipe.loras["pixel"] = Path("pixel.safetensors")
    change_facts(generator, loras=(LoraFacts("pixel", "pixel"),))


async def submitted(generator: RequestLifecycle, pipe: FakePipeline, *wanted: Request) -> None:
    """Submit requests, and wait until those that have slots are prepared and a step waits."""
    for each in wanted:
        await generator.submit(each)
    await settled(generator, pipe)


async def settled(generator: RequestLifecycle, pipe: FakePipeline) -> None:
    """Wait until a step waits, and all pictures that have a turn are prepared for the next one."""

    def is_settled() -> bool:
        seated = [each for each in drawer_of(generator)._seated.values() if not each.is_over]
        given = all(each.drawing and each.given == len(each.turns_at) for each in seated)
        return given and pipe.at_rest

    await until(is_settled)


async def step_until(
    generator: RequestLifecycle, pipe: FakePipeline, condition: Callable[[], object]
) -> None:
    """Let steps end, one after the other, until a condition holds."""
    while not condition():
        before = pipe.steps
        pipe.let_step()
        await until(lambda before=before: pipe.steps > before)
        await settled(generator, pipe)


def prompts(pipe: FakePipeline) -> list[Any]:
    return [call["prompt"] for call in pipe.calls]


def pictures(events: list[Event]) -> list[bytes]:
    return [event.png for event in events if isinstance(event, Image)]


def newest(generator: RequestLifecycle, wanted: Request) -> dict[Any, Event]:
    """Return the newest event of each kind, and each picture by its index."""
    return {key: event for key, (_, event) in generator._registry.find(wanted.id)._state.items()}


@run_by(run, slots=4)
async def test_requests_are_drawn_beside_each_other_and_as_they_are_alone(
    generator: RequestLifecycle, pipe: FakePipeline
):
    wanted = [one("a", seed=1), one("b", steps=6, seed=2), one("c", seed=3, images=2)]
    await submitted(generator, pipe, *wanted)
    assert prompts(pipe) == ["a", "b", "c"]
    assert generator.load.slots_in_use == 4
    pipe.let_all()
    together = [await follow(generator, each.id) for each in wanted]
    assert {type(ending(events)) for events in together} == {Done}
    assert pipe.evaluated[1] == 4 + 6 + 2 * 4
    for each, events in zip(wanted, together, strict=True):
        alone = await draw(generator, replace(each, id=each.id + " alone"))
        assert pictures(events) == pictures(alone)


@run_by(run, slots=4)
async def test_visitors_take_turns_by_pictures(generator: RequestLifecycle, pipe: FakePipeline):
    """The many pictures of one visitor do not hold back the single picture of another one."""

    first = one("first", images=4)
    greedy = one("greedy", images=4, visitor="greedy")
    patient = one("patient", visitor="patient")
    await submitted(generator, pipe, first, greedy, patient)
    assert prompts(pipe) == ["first"]
    # All four slots are free at once.
    await step_until(generator, pipe, lambda: len(pipe.calls) > 1)
    assert prompts(pipe) == ["first", "greedy", "patient"]
    assert len(drawer_of(generator)._seated[greedy.id].turns_at) == 3
    assert generator.load.waiting == 0  # it has begun
    pipe.let_all()
    assert isinstance(ending(await follow(generator, patient.id)), Done)
    events = await follow(generator, greedy.id)
    assert [event.index for event in events if isinstance(event, Image)] == [0, 1, 2, 3]
    assert isinstance(ending(events), Done)


@run_by(run, slots=2)
async def test_a_picture_is_sent_when_it_is_finished(
    generator: RequestLifecycle, pipe: FakePipeline
):
    long, wanted = one("long", steps=LONG), one("wanted", steps=20, images=2)
    await submitted(generator, pipe, long, wanted)
    drawing = drawer_of(generator)._seated[wanted.id].drawing
    assert drawing is not None
    await step_until(generator, pipe, lambda: drawing.pictures)
    await until(lambda: 0 in newest(generator, wanted))
    seen = newest(generator, wanted)
    assert 1 not in seen
    step = seen[Step]  # the devices may be some steps further than the first picture
    assert isinstance(step, Step)
    assert step.total == 20
    assert 20 / 2 <= step.done < 20
    pipe.let_all()
    events = await follow(generator, wanted.id)
    assert [event.index for event in events if isinstance(event, Image)] == [0, 1]
    assert events[-1] == Done("the end")


@run_by(run, slots=2)
async def test_finished_pictures_stay_among_the_previews(
    generator: RequestLifecycle, pipe: FakePipeline
):
    wanted = one("wanted", images=2, previews=True)
    await submitted(generator, pipe, one("long", steps=LONG), wanted)
    seated = drawer_of(generator)._seated[wanted.id]
    await step_until(generator, pipe, lambda: 0 in seated.looks)
    unfinished = seated.looks[0]
    drawing = seated.drawing
    assert drawing is not None
    await step_until(generator, pipe, lambda: drawing.pictures)
    await until(lambda: seated.looks[0] != unfinished)
    preview = newest(generator, wanted)[Preview]
    assert isinstance(preview, Preview)
    assert preview.jpegs[0] == seated.looks[0]


@pytest.mark.parametrize(
    ("prompt", "code"), [("break", Code.FAILED), ("exhaust", Code.OUT_OF_MEMORY)]
)
@run_by(run, slots=2)
async def test_a_failure_of_the_devices_ends_the_requests_in_slots_alone(
    generator: RequestLifecycle, pipe: FakePipeline, prompt: str, code: Code
):
    beside = one("beside", steps=LONG)
    await submitted(generator, pipe, beside, one("short", steps=3))
    broken, waiting = one(prompt), one("waiting", images=2)
    await submitted(generator, pipe, broken, waiting)
    await step_until(generator, pipe, lambda: prompt in prompts(pipe))
    pipe.let_all()
    for each in (broken, beside):
        said = ending(await follow(generator, each.id))
        assert isinstance(said, Error)
        assert said.message == Message(code)
    assert ending(await follow(generator, waiting.id)) == Done("the end")


@run_by(run, slots=2)
async def test_a_failure_of_a_preview_ends_the_requests_in_slots(
    generator: RequestLifecycle, pipe: FakePipeline
):
    def broken(drawing: Drawing) -> dict[int, np.ndarray]:
        raise RuntimeError(f"RESOURCE_EXHAUSTED: no memory for {drawing.total} steps")

    pipe.look = broken
    pipe.let_all()
    said = ending(await draw(generator, one("a", previews=True)))
    assert said == Error(ErrorKind.OUT_OF_MEMORY, Message(Code.OUT_OF_MEMORY))
    assert ending(await draw(generator, one("b"))) == Done("the end")


@run_by(run, slots=2)
async def test_a_picture_that_is_not_finite_ends_its_own_request_alone(
    generator: RequestLifecycle, pipe: FakePipeline
):
    wanted = one("overflow"), one("beside")
    await submitted(generator, pipe, *wanted)
    pipe.let_all()
    overflown, beside = [ending(await follow(generator, each.id)) for each in wanted]
    assert overflown == Error(ErrorKind.INVALID, Message(Code.NOT_FINITE))
    assert beside == Done("the end")


@run_by(run, slots=2)
async def test_a_cancelled_request_leaves_its_slot_to_another(
    generator: RequestLifecycle, pipe: FakePipeline
):
    stopped, beside, waiting = (one(name, steps=LONG) for name in ("stopped", "beside", "next"))
    await submitted(generator, pipe, stopped, beside, waiting)
    assert prompts(pipe) == ["stopped", "beside"]
    generator.cancel(stopped.id)
    await until(lambda: len(pipe.calls) == 3)
    await settled(generator, pipe)
    assert generator.load.slots_in_use == 2
    assert pipe.steps == 0
    pipe.let_all()
    for each in (beside, waiting):
        assert ending(await follow(generator, each.id)) == Done("the end")


async def paused(generator: RequestLifecycle, pipe: FakePipeline) -> Request:
    """Return a request of two pictures; one is finished, the other waits for its turn."""
    wanted = one("wanted", images=2, visitor="wanted")
    others = [one(f"long {i}", steps=LONG, visitor=f"other {i}") for i in range(2)]
    await submitted(generator, pipe, others[0], wanted, others[1])
    drawing = drawer_of(generator)._seated[wanted.id].drawing
    assert drawing is not None
    await step_until(generator, pipe, lambda: drawing.pictures)
    await until(lambda: 0 in newest(generator, wanted))
    assert prompts(pipe) == ["long 0", "wanted", "long 1"]
    assert drawer_of(generator)._seated[wanted.id].in_slots == 0
    return wanted


@run_by(run, slots=2)
async def test_a_request_that_waits_for_its_second_picture_can_be_cancelled(
    generator: RequestLifecycle, pipe: FakePipeline
):
    wanted = await paused(generator, pipe)
    generator.cancel(wanted.id)
    pipe.let_step()
    await until(lambda: wanted.id not in generator._tasks)
    pipe.let_all()
    await until(lambda: generator.load.running == 0)
    assert len(pipe.calls) == 3


@run_by(run, slots=2)
async def test_a_request_has_its_time_anew_with_every_picture(
    generator: RequestLifecycle, pipe: FakePipeline
):
    wanted = await paused(generator, pipe)
    records = {str(each.request.prompt): each for each in generator._registry.under_way()}
    followed = [
        asyncio.create_task(follow(generator, each.request.id)) for each in records.values()
    ]
    await skip(15)
    generator.cancel(records["long 1"].request.id)
    await until(lambda: len(drawer_of(generator)._seated[wanted.id].turns_at) == 2)
    await skip(15)
    pipe.let_all()
    assert ending(await follow(generator, wanted.id)) == Done("the end")
    await asyncio.gather(*followed)


@pytest.mark.parametrize("waited_s", [0, 11])
@run_by(run, slots=2)
async def test_another_lora_waits_for_empty_slots_but_not_for_long(
    generator: RequestLifecycle, pipe: FakePipeline, waited_s: int
):
    add_lora(generator, pipe)
    await submitted(generator, pipe, one("in a slot", steps=9))
    await generator.submit(one("pixel", loras="pixel:1", visitor="pixel"))
    [record] = list(generator._scheduler)
    record.accepted_at -= waited_s
    await generator.submit(one("plain", visitor="plain"))
    await settled(generator, pipe)
    assert ("plain" in prompts(pipe)) == (waited_s == 0)
    pipe.let_all()
    await until(lambda: generator.load.running + generator.load.waiting == 0)
    order = ["in a slot", "plain", "pixel"] if waited_s == 0 else ["in a slot", "pixel", "plain"]
    assert prompts(pipe) == order


def test_a_picture_that_is_finished_as_others_fail_is_sent(monkeypatch: pytest.MonkeyPatch):
    """A preview of another request fails after the step that finishes the picture."""
    monkeypatch.setattr(picture_files, "PAUSE_S", 0.0)
    monkeypatch.setattr(picture_files, "SHARE", math.inf)  # a preview after every step

    async def test(generator: RequestLifecycle, pipe: FakePipeline) -> None:
        wanted = one("wanted", images=2, visitor="wanted")
        shown = one("shown", steps=LONG, visitor="shown", previews=True)
        beside = one("beside", steps=LONG, visitor="beside")
        await submitted(generator, pipe, shown, wanted, beside)
        own = drawer_of(generator)._seated[wanted.id].drawing
        assert own is not None

        def look(drawing: Drawing) -> dict[int, np.ndarray]:
            if own.pictures:
                raise RuntimeError("RESOURCE_EXHAUSTED")
            wait(pipe._decoded)  # the next step finds the pictures, however slow they are
            return {}

        pipe.look = look
        pipe.let_all()
        events = await follow(generator, wanted.id)
        assert [event.index for event in events if isinstance(event, Image)] == [0, 1]
        assert ending(events) == Done("the end")
        failed = ending(await follow(generator, shown.id))
        assert failed == Error(ErrorKind.OUT_OF_MEMORY, Message(Code.OUT_OF_MEMORY))

    run(test, slots=2)


@run_by(run, slots=4)
async def test_pictures_with_one_lora_fill_the_slots_before_those_with_another(
    generator: RequestLifecycle, pipe: FakePipeline
):
    """Two requests that have waited long, with different LoRAs, do not alternate by pictures."""

    add_lora(generator, pipe)
    await submitted(generator, pipe, one("before", images=4))
    plain = one("plain", images=4, visitor="plain", address="plain")
    other = one("pixel", images=4, loras="pixel:1", visitor="pixel", address="pixel")
    for each in (plain, other):
        await generator.submit(each)
    for record in list(generator._scheduler):
        record.accepted_at -= 11
    evaluations, _ = pipe.evaluated
    pipe.let_all()
    for each in (plain, other):
        assert ending(await follow(generator, each.id)) == Done("the end")
    # Four steps for each kind, and those under way.
    assert pipe.evaluated[0] - evaluations <= 4 * 4


@run_by(run, slots=2)
async def test_a_request_that_has_begun_ends_before_the_generator_closes(
    generator: RequestLifecycle, pipe: FakePipeline
):
    wanted = await paused(generator, pipe)
    following = asyncio.create_task(follow(generator, wanted.id))
    closing_ = asyncio.create_task(generator.close(20.0))
    await asyncio.sleep(0)
    pipe.let_all()
    assert ending(await following) == Done("the end")
    await closing_


@run_by(run, slots=2)
async def test_others_begin_when_the_request_that_held_them_up_is_cancelled(
    generator: RequestLifecycle, pipe: FakePipeline
):
    add_lora(generator, pipe)
    await submitted(generator, pipe, one("long", steps=LONG))
    other = one("pixel", loras="pixel:1", visitor="pixel")
    await generator.submit(other)
    [record] = list(generator._scheduler)
    record.accepted_at -= 11
    await generator.submit(one("plain", visitor="plain"))
    generator.cancel(other.id)
    await until(lambda: generator.load.slots_in_use == 2)
    pipe.let_all()


class Gate:
    """A gate at which a pipeline's preparation waits."""

    def __init__(self, pipe: FakePipeline) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self._prepare, pipe.prepare = pipe.prepare, self.prepare

    def prepare(self, *args: Any, **options: Any) -> Drawing:
        self.reached.set()
        assert self.open.wait(20)
        return self._prepare(*args, **options)


@run_by(run, slots=2)
async def test_slow_preparation_is_no_stuck_device_but_a_hung_one_is(
    generator: RequestLifecycle, pipe: FakePipeline
):
    gate = Gate(pipe)
    pipe.let_all()
    await generator.submit(wanted := one("slow"))
    await until(gate.reached.is_set)
    assert generator.at_work
    drawer = drawer_of(generator)
    drawer._stuck_s = 0.0
    assert not generator.stuck
    await generator.submit(other := one("another"))
    drawer._running_s = 0.0  # it goes on although its request has ended
    assert generator.stuck
    drawer._stuck_s = drawer._running_s = 20.0
    gate.open.set()
    for each in (wanted, other):
        assert ending(await follow(generator, each.id)) == Done("the end")


@run_by(run, slots=2)
async def test_a_request_that_ends_while_it_waits_for_its_preparation_is_not_prepared(
    generator: RequestLifecycle, pipe: FakePipeline
):
    gate = Gate(pipe)
    pipe.let_all()
    first, gone, last = one("first"), one("gone"), one("last")
    await generator.submit(first)
    await until(gate.reached.is_set)
    await generator.submit(gone)
    await until(lambda: drawer_of(generator)._seated[gone.id].given == 1)
    generator.cancel(gone.id)
    gate.open.set()
    await generator.submit(last)
    for each in (first, last):
        assert ending(await follow(generator, each.id)) == Done("the end")
    assert [call["prompt"] for call in pipe.calls] == ["first", "last"]


def test_metrics_of_the_slots():
    observer = Observer()
    counted = observer.registry.get_sample_value

    async def test(generator: RequestLifecycle, pipe: FakePipeline) -> None:
        await submitted(generator, pipe, one("a"))
        assert (counted("sdxl_slots"), counted("sdxl_slots_in_use")) == (4, 1)
        pipe.let_all()
        await until(lambda: generator.load.running == 0)
        assert counted("sdxl_slots_in_use") == 0
        steps, picture_steps = counted("sdxl_steps_total"), counted("sdxl_picture_steps_total")
        assert (steps, picture_steps) == (4, 4)
        await draw(generator, one("b", images=3))
        assert counted("sdxl_picture_steps_total") == 4 + 3 * 4

    run(test, slots=4, observer=observer)


@run_by(run, slots=2)
async def test_an_error_of_one_request_is_not_told_to_its_neighbour(
    generator: RequestLifecycle, pipe: FakePipeline
):
    beside = one("beside", steps=LONG)
    await submitted(generator, pipe, beside)
    refused = ending(await draw(generator, one("refuse")))
    assert isinstance(refused, Error)
    assert re.search(str(InputError("not this")), str(refused.message))
    await settled(generator, pipe)
    assert generator.load.slots_in_use == 1
    pipe.let_all()
    assert ending(await follow(generator, beside.id)) == Done("the end")
