"""A front-end that sends requests to instances while these have free slots."""

import asyncio
from dataclasses import replace

import httpx
import pytest

from serving.generator import Request
from serving.generators import backends, remote
from serving.generators.client import Client
from serving.generators.remote import RemoteDrawer
from serving.metrics import Observer
from serving.requests.lifecycle import RequestLifecycle
from serving.requests.record import Record
from serving.requests.registry import Limits
from tests.calls import Background, generate, metric
from tests.fleets import MODEL, front_of, pictures
from tests.web import serve, wait_until

pytestmark = pytest.mark.lasting

STEPS = 12


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "HEALTH_S", 0.1)


def test_an_instance_is_sent_requests_while_it_has_a_free_slot():
    with serve(held=True) as site, front_of(site.url) as front:
        requests = [Background(front, images=1, seed=seed) for seed in (1, 2, 3)]
        wait_until(lambda: len(site.pipe.calls) == 2)
        wait_until(lambda: metric(front, "sdxl_queue_depth") == 1)
        assert [metric(front, name) for name in ("sdxl_slots ", "sdxl_slots_in_use")] == [2, 2]
        assert metric(site, "sdxl_queue_depth") == 0
        site.pipe.let_all()
        drawn = [request.finished() for request in requests]
        assert [events[-1][0] for events in drawn] == ["done"] * 3
        for seed, events in zip((1, 2, 3), drawn, strict=True):
            assert pictures(events) == pictures(generate(site, images=1, seed=seed))


def test_the_instance_with_most_room_is_sent_a_request_first():
    with serve(held=True) as one, serve(held=True) as other, front_of(one.url, other.url) as front:
        requests = [Background(front, images=1)]
        wait_until(lambda: one.pipe.calls)
        requests += [Background(front, images=2)]
        wait_until(lambda: other.pipe.calls)
        requests += [Background(front, images=1)]
        wait_until(lambda: len(one.pipe.calls) == 2)
        one.pipe.let_all()
        other.pipe.let_all()
        assert [request.finished()[-1][0] for request in requests] == ["done"] * 3
        assert len(other.pipe.calls) == 1


def test_pictures_beyond_the_room_of_an_instance_wait_there():
    with serve(held=True) as site, front_of(site.url) as front:
        one = Background(front, images=1)
        wait_until(lambda: site.pipe.calls)
        two = Background(front, images=2)
        wait_until(lambda: len(site.pipe.calls) == 2)
        load = httpx.get(f"{site.url}/v1/model").json()["load"]
        assert (load["slots"], load["slots_in_use"]) == (2, 2)
        waits = Background(front, images=1)
        wait_until(lambda: metric(front, "sdxl_queue_depth") == 1)
        site.pipe.let_all()
        assert [each.finished()[-1][0] for each in (one, two, waits)] == ["done"] * 3


def test_the_next_request_is_sent_before_the_last_steps():
    """The slot of a request is free on its instance some steps before its last one is told."""
    with serve(held=True) as site, front_of(site.url) as front:
        requests = [Background(front, num_inference_steps=STEPS, seed=seed) for seed in (1, 2)]
        wait_until(lambda: site.pipe.calls)
        site.pipe.let_step(STEPS - remote._AHEAD)
        wait_until(lambda: len(site.pipe.calls) == 2)
        assert site.pipe.steps == STEPS - remote._AHEAD
        site.pipe.let_all()
        assert [request.finished()[-1][0] for request in requests] == ["done"] * 2


class _Held(RemoteDrawer):
    """A drawer that sends nothing, and whose pictures end when a test says so."""

    def __init__(self) -> None:
        facts = replace(MODEL, images_per_request=4)
        super().__init__(Client(), ["http://instance"], facts, Observer())
        self.begun: list[str] = []
        [self.backend] = self.backends
        self.backend.facts = facts

    async def draw(self, record: Record) -> None:
        self._sent[record.request.id].task = asyncio.current_task()
        self.begun.append(record.request.visitor)
        await asyncio.Event().wait()

    async def end_a_picture(self) -> None:
        self.backend.finish(min(self.backend.drawing), pictures=1)
        self.requests.begin_next()
        await asyncio.sleep(0)  # the requests that begin are tasks


def test_visitors_take_turns_by_pictures():
    async def draw() -> list[str]:
        drawer = _Held()
        front = RequestLifecycle(drawer, Limits(), Observer())

        async def ask(visitor: str, images: int) -> None:
            await front.submit(Request("a", None, seed=7, visitor=visitor, images=images))

        await ask("first", 4)
        await asyncio.sleep(0)
        await ask("four at once", 4)
        for _ in range(5):
            await ask("one by one", 1)
        for _ in range(4):
            await drawer.end_a_picture()
        await front.close(0)
        return drawer.begun

    assert asyncio.run(draw()) == ["first", *["one by one"] * 3, "four at once"]
