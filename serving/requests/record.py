"""State of one request, from its arrival on."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import replace

from serving.generator import (
    Done,
    Ending,
    Error,
    ErrorKind,
    Event,
    Image,
    Pause,
    Preview,
    Request,
    Started,
    Step,
)

# An event replaces the earlier event with the same key.
_Key = type[Event] | int


class Record:
    """State of one request, for any number of followers. Belongs to one event loop.

    It holds every picture, and the newest event of each other kind. So a slow follower misses
    outdated events, and a late one begins with the current state.

    Attributes:
        turns: number of turns in the queue that it still needs.
        ending: the event that ended it, None before.
        followers: number of iterators over `events` at present.
        followed: whether there was ever a follower.
        accepted_at, started_at, drawn_at, ended_at: `time.monotonic()` when the request was taken
            in, first begun, had its last step done, and ended; None for stages not reached.
        lost_input: whether the picture that the request started from has been dropped.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.turns = 1
        self.ending: Ending | None = None
        self.attempts = 0
        self.followers = 0
        self.followed = False
        self.accepted_at = time.monotonic()
        self.started_at: float | None = None
        self.drawn_at: float | None = None
        self.ended_at: float | None = None
        self.lost_input = False
        self._count = 0
        self._state: dict[_Key, tuple[int, Event]] = {}
        self._changed = asyncio.Event()

    @property
    def images(self) -> int:
        """Number of pictures so far."""
        return sum(isinstance(event, Image) for _, event in self._state.values())

    @property
    def bytes(self) -> int:
        """Number of bytes of its pictures and previews so far."""
        files: list[bytes | None] = []
        for _, event in self._state.values():
            if isinstance(event, Image):
                files += event.png, event.unblurred
            elif isinstance(event, Preview):
                files += event.jpegs
        return sum(len(file or b"") for file in files)

    @property
    def abandoned(self) -> bool:
        """Whether it ended because it had no followers."""
        return isinstance(self.ending, Error) and self.ending.kind is ErrorKind.ABANDONED

    @property
    def is_being_drawn(self) -> bool:
        """Whether it occupies the devices."""
        return self.started_at is not None and self.drawn_at is None and self.ending is None

    @property
    def steps_left(self) -> int:
        """Number of denoising steps still to be done."""
        entry = self._state.get(Step)
        done = entry[1].done if entry and isinstance(entry[1], Step) else 0
        return self.request.drawn_steps - done

    def drop_input(self) -> None:
        """Drop the pictures that the request starts from: it has ended."""
        if self.request.input_bytes:
            self.request = replace(self.request, image=None, mask=None, followed=())
            self.lost_input = True

    def publish(self, event: Event) -> None:
        """Send an event to the followers; ignore it after an ending, or if its picture was sent."""
        key = event.index if isinstance(event, Image) else type(event)
        if self.ending or (isinstance(event, Image) and key in self._state):
            return
        if isinstance(event, Started):
            self._begin(event)
        elif isinstance(event, Step) and event.done == event.total:
            self.drawn_at = time.monotonic()
        elif isinstance(event, Done | Error):
            self.ending, self.ended_at = event, time.monotonic()
        self._count += 1
        self._state[key] = self._count, event
        self._changed.set()
        self._changed = asyncio.Event()

    def _begin(self, event: Started) -> None:
        self.attempts = event.attempt
        self.started_at = self.started_at or time.monotonic()
        self.drawn_at = None
        # Queue positions, and steps and previews of an earlier attempt, no longer hold.
        self._state = {key: entry for key, entry in self._state.items() if isinstance(key, int)}

    async def events(
        self, left: Callable[[], None], pause_s: float | None = None
    ) -> AsyncGenerator[Event]:
        """Yield the current state, then further events; call `left` when this follower leaves.

        With `pause_s`, a `Pause` follows every so many seconds without an event.
        """
        last_number = 0
        self.followers += 1
        self.followed = True
        try:
            while True:
                change = self._changed
                for number, event in sorted(self._state.values(), key=lambda pair: pair[0]):
                    if number > last_number:
                        last_number = number
                        yield event
                if self.ending and last_number == self._count:
                    return
                if last_number == self._count and not await _happens(change, pause_s):
                    yield Pause()
        finally:
            self.followers -= 1
            left()


async def _happens(event: asyncio.Event, within_s: float | None) -> bool:
    """Wait for an event, and return whether it happened in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            return await event.wait()
    return False
