"""Threads for the work of strangers, which addresses use in turns."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio.to_thread
from anyio import CapacityLimiter, Event

from serving.generator import ErrorKind, RequestError
from serving.messages import Code, Message
from serving.requests.fair_queue import FairQueue
from serving.requests.shares import Shares

T = TypeVar("T")


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
        self._waiting: FairQueue[Event] = FairQueue()
        self._refused = refused

    async def run(self, address: str, work: Callable[[], T]) -> T:
        """Run `work` on a thread in turn, and return what it returns.

        Work that has begun is finished before its caller's cancellation takes effect.

        Raises:
            RequestError: as `turn`.
        """
        async with self.turn(address):
            return await anyio.to_thread.run_sync(work, limiter=self._limiter)

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncGenerator[None]:
        """Have one of the threads' turns for as long as the context is open.

        A caller that is cancelled while it waits loses its place.

        Raises:
            RequestError: if too many calls run or wait, in all or of this address.
        """
        if not self._shares.take(address):
            raise RequestError(Message(self._refused), ErrorKind.TOO_MANY)
        try:
            if self._free:
                self._free -= 1
            else:
                await self._wait(address)
            try:
                yield
            finally:
                self._pass_on()
        finally:
            self._shares.give_back(address)

    async def _wait(self, address: str) -> None:
        turn = Event()
        self._waiting.push(address, address, turn)
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self._pass_on()
            self._waiting.remove(address, address, turn)
            raise

    def _pass_on(self) -> None:
        """Give a thread to the next call that waits, or note that it is free."""
        if turn := self._waiting.pop():
            turn.set()
        else:
            self._free += 1
