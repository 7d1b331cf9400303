"""Submitting, drawing, following, leaving and cancelling in any order, chosen by Hypothesis."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from serving.generator import Done, Error, ErrorKind, Event, Image, Request, Started
from serving.metrics import Observer
from serving.requests.lifecycle import RequestLifecycle
from serving.requests.registry import Limits
from tests.fake_pipeline import FakePipeline
from tests.generators import drawer_of, local_generator, refuses

T = TypeVar("T")
MAX_WAITING = 4
FOR_OTHERS = 1  # the last place is for visitors without a waiting request
STEPS = 3
SLOTS = 2


class Follower:
    """Reader of a request's events, until `go` is called."""

    def __init__(self, events: AsyncGenerator[Event]) -> None:
        self.heard: list[Event] = []
        self._events = events
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for event in self._events:
            self.heard.append(event)

    async def go(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self._events.aclose()


class LifeOfRequests(RuleBasedStateMachine):
    """Properties of the generator that hold for actions in any order.

    The model keeps each visitor's requests in the order they came, and each request's possible
    endings. Each request has one follower.
    """

    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.pipe = FakePipeline(held=True, slots=SLOTS)
        self.generator = self.on_loop(self.make())
        self.followers: dict[str, Follower] = {}
        self.order: dict[str, list[str]] = {}
        self.kept: set[str] = set()
        self.images: dict[str, int] = {}
        self.endings: dict[str, set[str]] = {}

    async def make(self) -> RequestLifecycle:
        limits = Limits(max_waiting=MAX_WAITING, grace_s=60.0, kept=1000)
        return local_generator(self.pipe.as_pipeline(), limits, Observer())

    def on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    async def settle(self) -> None:
        """Wait until the devices' thread waits for a permit or a picture."""
        async with asyncio.timeout(60):
            while not self.is_settled():
                await asyncio.sleep(0.001)
        for _ in range(10):  # for the followers
            await asyncio.sleep(0)

    def is_settled(self) -> bool:
        """Return whether nothing happens until the next action."""
        seated = drawer_of(self.generator)._seated.values()
        given = all(
            each.drawing is not None and each.given == len(each.turns_at) for each in seated
        )
        drawn = all(each.is_over or self.pipe.at_rest for each in seated)
        return given and drawn and drawer_of(self.generator)._encoding == 0

    def waiting(self) -> list[str]:
        """Return the visitors of the requests that have neither begun nor ended."""
        under_way = self.generator._registry.under_way()
        return [one.request.visitor for one in under_way if one.started_at is None]

    def is_under_way(self, request_id: str) -> bool:
        return self.generator._registry.find(request_id).ending is None

    @rule(
        target=ids, visitor=st.sampled_from("abc"), keep=st.booleans(), images=st.integers(1, SLOTS)
    )
    def submit(self, visitor: str, keep: bool, images: int) -> str:
        async def submit() -> str:
            prompt = f"{visitor} {len(self.followers)}"
            wanted = Request(prompt, None, 5.0, STEPS, 7, visitor=visitor, keep=keep, images=images)
            waiting = self.waiting()
            kept_free = bool(waiting) + (visitor in waiting)  # all share one address
            places = MAX_WAITING - FOR_OTHERS * kept_free
            if len(waiting) >= places:
                with refuses(ErrorKind.FULL):
                    await self.generator.submit(wanted)
                return ""
            await self.generator.submit(wanted)
            self.followers[wanted.id] = Follower(self.generator.events(wanted.id))
            self.order.setdefault(visitor, []).append(str(wanted.prompt))
            self.kept |= {wanted.id} if keep else set()
            self.endings[wanted.id] = {"done"}
            self.images[wanted.id] = images
            await self.settle()
            return wanted.id

        return self.on_loop(submit())

    @rule(steps=st.integers(1, 2 * STEPS))
    def draw(self, steps: int) -> None:
        self.pipe.let_step(steps)
        self.on_loop(self.settle())

    @rule(request_id=ids)
    def cancel(self, request_id: str) -> None:
        async def cancel() -> None:
            if request_id:
                if self.is_under_way(request_id):
                    self.endings[request_id] = {ErrorKind.CANCELLED}
                self.generator.cancel(request_id)
                await self.settle()

        self.on_loop(cancel())

    @rule(request_id=consumes(ids))
    def leave(self, request_id: str) -> None:
        async def leave() -> None:
            if request_id:
                if self.is_under_way(request_id) and request_id not in self.kept:
                    # A request that is nearly done may end before its visitor has left.
                    self.endings[request_id] = {ErrorKind.ABANDONED, "done"}
                await self.followers[request_id].go()
                await self.settle()

        self.on_loop(leave())

    @invariant()
    def never_more_waiting_than_allowed(self) -> None:
        load = self.generator.load
        assert 0 <= load.waiting <= MAX_WAITING
        assert 0 <= load.slots_in_use <= load.slots == SLOTS
        assert (
            load.slots_in_use == SLOTS or load.waiting == 0 or drawer_of(self.generator)._encoding
        )

    @invariant()
    def each_visitors_requests_are_drawn_in_order(self) -> None:
        drawn = [call["prompt"] for call in self.pipe.calls]
        assert len(set(drawn)) == len(drawn)
        for visitor, order in self.order.items():
            own = [prompt for prompt in drawn if prompt.startswith(visitor)]
            assert own == sorted(own, key=order.index)

    @invariant()
    def nothing_follows_an_ending(self) -> None:
        for follower in self.followers.values():
            endings = [i for i, e in enumerate(follower.heard) if isinstance(e, Done | Error)]
            assert len(endings) <= 1
            assert not endings or endings[0] == len(follower.heard) - 1

    def teardown(self) -> None:
        async def end() -> None:
            self.pipe.let_all()
            await self.all_over()
            # Whatever has happened, another request is accepted.
            last = Request("the last", None, 5.0, STEPS, 7, visitor="d")
            await self.generator.submit(last)
            self.followers[last.id] = Follower(self.generator.events(last.id))
            self.endings[last.id], self.images[last.id] = {"done"}, SLOTS
            await self.all_over()
            for request_id, follower in self.followers.items():
                await self.ended_as_it_may(request_id, follower)
            await self.generator.close(20)

        try:
            self.on_loop(end())
            self.nothing_follows_an_ending()
        finally:
            self.on_loop(self.generator.close(0))
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    async def all_over(self) -> None:
        """Wait until no request waits or is drawn."""
        async with asyncio.timeout(60):
            while self.generator.load.waiting or self.generator.load.running:
                await asyncio.sleep(0.002)

    async def ended_as_it_may(self, request_id: str, follower: Follower) -> None:
        heard = [event async for event in self.generator.events(request_id)]
        ending = heard[-1]
        assert isinstance(ending, Done | Error), "a request has no ending"
        assert ("done" if isinstance(ending, Done) else ending.kind) in self.endings[request_id]
        if isinstance(ending, Done):
            assert heard[0] == Started(1)
            pictures = [(e.index, e.seed) for e in heard if isinstance(e, Image)]
            assert pictures == [(i, 7 + i) for i in range(self.images[request_id])]
        if not follower.task.cancelled():
            await follower.task
            assert follower.heard[-1] == ending


TestLifeOfRequests = LifeOfRequests.TestCase
TestLifeOfRequests.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
