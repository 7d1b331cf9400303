"""The scheduler: whose picture enters the slots next, and with which model and LoRAs."""

import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Generic, TypeVar

from pipeline.drawing.fair_queue import FairQueue

T = TypeVar("T", bound=Hashable)

# Seconds that a request may have waited and still be passed over by others, whose model and LoRAs
# are in use. It is about the time of one request for SDXL's pictures on one chip. So a change is
# shared by requests that come close together, and nobody waits much longer than in the fair order.
PASSED_OVER_S = 10.0
# Turns at the front of the queue that may be given in another order. The bound keeps that quick,
# however many wait.
FRONT = 64


@dataclass(frozen=True)
class Rules(Generic[T]):
    """Answers to the questions of a scheduler about requests and devices.

    Attributes:
        pictures: returns the number of pictures of a request that have not entered.
        evaluations: returns how often the networks are evaluated for each of them.
        since: returns when a request came, by the scheduler's clock.
        group: returns the model and the LoRAs that a request is drawn with.
        enter: reserves what the next picture of a request needs; returns False if nothing is free.
        has_room: returns whether anything is free.
        read_ahead: begins to read the model and the LoRAs of a request that waits for others.
        suits: returns whether some device has the group of a request. None if all devices have the
            same group, which changes only while no picture is drawn.
        programs: returns which programs draw a request. Requests for different programs are drawn
            side by side, whatever their groups.
    """

    pictures: Callable[[T], int]
    evaluations: Callable[[T], float]
    since: Callable[[T], float]
    group: Callable[[T], Hashable]
    enter: Callable[[T], bool]
    has_room: Callable[[], bool]
    read_ahead: Callable[[T], object]
    suits: Callable[[T], bool] | None = None
    programs: Callable[[T], Hashable] = lambda _: ""


class Scheduler(Generic[T]):
    """Decides which request's picture enters next.

    Senders share the evaluations of the networks fairly. Requests for the model and LoRAs that are
    on the devices go before others that have waited for less than `PASSED_OVER_S`. Once a request
    for another model or other LoRAs has waited that long, and the devices have had theirs for that
    long, it blocks all requests behind it, and enters when the slots are empty. Live requests
    enter only while no other request waits.

    Args:
        rules: answers about requests and devices.
        resident: the group that the devices have at first, for the programs "".
        clock: returns the present time in seconds.

    Attributes:
        live: the live requests that wait.
    """

    def __init__(
        self, rules: Rules[T], resident: Hashable, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.live: FairQueue[T] = FairQueue()
        self._rules = rules
        self._clock = clock
        # The group that the devices have for each of the programs, and since when.
        self._resident: dict[Hashable, tuple[Hashable, float]] = {"": (resident, -math.inf)}
        self._queue: FairQueue[T] = FairQueue(rules.pictures)

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[T]:
        """Iterate over the requests that wait, live ones left out, in their fair order."""
        return iter(self._queue)

    def push(self, address: str, visitor: str, request: T, live: bool = False) -> None:
        """Let a request wait."""
        (self.live if live else self._queue).push(
            address, visitor, request, self._rules.evaluations(request)
        )

    def remove(self, request: T) -> None:
        """Forget a request, wherever it is; do nothing if it is not there."""
        self.live.remove(request)
        self._queue.remove(request)

    def next(self) -> T | None:
        """Let the next picture enter and return its request; None if none can."""
        request = self._queue.pop(self._enter, self._offered)
        return self.live.pop(self._enter) if request is None and not self._queue else request

    def in_turn(self) -> Iterator[T]:
        """Iterate over the turns of all requests in the order in which they enter as of now."""
        return self._arranged(self._queue.in_turn())

    def suits(self, request: T) -> bool:
        """Return whether a request can be drawn beside the pictures in the slots."""
        if self._rules.suits:
            return self._rules.suits(request)
        return self._rules.group(request) == self._resident_for(request)[0]

    def _resident_for(self, request: T) -> tuple[Hashable, float]:
        return self._resident.get(self._rules.programs(request), (None, -math.inf))

    def _enter(self, request: T) -> bool:
        suits = self.suits(request)
        if not (self._rules.has_room() and self._rules.enter(request)):
            return False
        if not suits:
            resident = self._rules.group(request), self._clock()
            self._resident[self._rules.programs(request)] = resident
        return True

    def _offered(self, turns: Iterator[T]) -> Iterable[T]:
        """Return the turns at the front that may be given now."""
        front: Iterable[T] = islice(self._arranged(turns), FRONT)
        if self._rules.suits is None:
            front = self._until_late([*front])
        return front if self._rules.has_room() else ()

    def _until_late(self, front: list[T]) -> list[T]:
        """Return the turns up to that of a request which must wait no longer for empty slots."""
        misfits = [request for request in front if not self.suits(request)]
        if misfits:
            self._rules.read_ahead(misfits[0])
        late_requests = (
            request
            for request in misfits
            if self._is_late(request) and self._is_long_ago(self._resident_for(request)[1])
        )
        late_request = next(late_requests, None)
        return front if late_request is None else front[: front.index(late_request) + 1]

    def _arranged(self, turns: Iterator[T]) -> Iterator[T]:
        """Yield first the requests at the front that suit; they pass over none that waited long."""
        passed_over: list[T] = []
        for request in islice(turns, FRONT):
            if self._is_late(request):
                turns = chain([request], turns)
                break
            if self.suits(request):
                yield request
            else:
                passed_over.append(request)
        yield from passed_over
        yield from turns

    def _is_late(self, request: T) -> bool:
        return self._is_long_ago(self._rules.since(request))

    def _is_long_ago(self, moment: float) -> bool:
        return moment < self._clock() - PASSED_OVER_S
