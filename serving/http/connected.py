"""Work that ends when its client hangs up."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request as HttpRequest

from serving.generator import ErrorKind, RequestError
from serving.messages import Code, Message

T = TypeVar("T")


async def while_connected(sender: HttpRequest, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns; cancel it when the sender hangs up."""
    task, hang_up = asyncio.ensure_future(work), asyncio.ensure_future(_hung_up(sender))
    try:
        await asyncio.wait([task, hang_up], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RequestError(Message(Code.ABANDONED), ErrorKind.ABANDONED)  # the client is gone
        return task.result()
    finally:
        task.cancel()
        hang_up.cancel()


async def _hung_up(sender: HttpRequest) -> None:
    while (await sender.receive())["type"] != "http.disconnect":
        pass
