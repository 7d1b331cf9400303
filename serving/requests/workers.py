"""Threads for the work of strangers, which addresses use in turns."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from anyio.lowlevel import RunVar

from pipeline.drawing.fair_queue import FairQueue
from serving.generator import ErrorKind, RequestError
from serving.messages import Code, Message
from serving.requests.shares import Shares

T = TypeVar("T")


def once_per_loop(make: Callable[[], T]) -> Callable[[], T]:
    """Return a function that makes a value once for each event loop, whose callers share it."""
    variable = RunVar[T]("once_per_loop")

    def shared() -> T:
        if (value := variable.get(None)) is None:
            variable.set(value := make())
        return value

    return shared


class Workers:
    """A few threads of one event loop, which take the calls of each address in turn.

    Args:
        threads: number of calls that run at a time.
        most: limit of calls that run or wait.
        most_each: limit of calls that run or wait for one address.
        refused: the message to callers beyond a limit.
    """

    def __init__(
        self, threads: int, most: int, most_each: int, refused: Code = Code.TOO_MANY_CALLS
    ) -> None:
        self._limiter = CapacityLimiter(threads)
        self._free = threads
        self._shares = Shares(most, most_each)
        self._waiting: FairQueue[asyncio.Event] = FairQueue()
        self._refused = refused

    async def run(self, address: str, work: Callable[[], T]) -> T:
        """Run `work` on a thread in turn, and return what it returns.

        A caller that is cancelled does not wait for work that has begun, whose thread stays in use
        until it ends.

        Raises:
            RequestError: as `turn`.
        """
        await self._take(address)
        working = asyncio.ensure_future(anyio.to_thread.run_sync(work, limiter=self._limiter))
        working.add_done_callback(lambda _: self._give_back(address))
        return await asyncio.shield(working)

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncGenerator[None]:
        """Have the turn of one thread for as long as the context is open.

        A caller that is cancelled while it waits loses its place.

        Raises:
            RequestError: if too many calls run or wait, in all or of this address.
        """
        await self._take(address)
        try:
            yield
        finally:
            self._give_back(address)

    async def _take(self, address: str) -> None:
        if not self._shares.take(address):
            raise RequestError(Message(self._refused), ErrorKind.TOO_MANY)
        if self._free:
            self._free -= 1
            return
        turn = asyncio.Event()
        self._waiting.push(address, address, turn)
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self._give_back(address)
            else:
                self._waiting.remove(turn)
                self._shares.give_back(address)
            raise

    def _give_back(self, address: str) -> None:
        """Give a thread to the next call that waits, or note that it is free."""
        self._shares.give_back(address)
        if turn := self._waiting.pop():
            turn.set()
        else:
            self._free += 1
