"""Threads that addresses use in turns."""

import asyncio
import threading
from typing import Any

import pytest

from serving.generator import ErrorKind, RequestError
from serving.requests.workers import Workers
from tests.generators import refuses
from tests.run_by import run_alone, run_by


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@run_by(run_alone)
async def test_addresses_take_turns():
    workers, go_on, order = Workers(1, 10, 10), threading.Event(), []
    calls: list[asyncio.Task[Any]] = [asyncio.create_task(workers.run("a", go_on.wait))]
    await settled()
    for address in "aaabc":
        calls.append(asyncio.create_task(workers.run(address, lambda it=address: order.append(it))))
    await settled()
    go_on.set()
    await asyncio.gather(*calls)
    assert order == ["a", "b", "c", "a", "a"]


@run_by(run_alone)
async def test_an_address_has_a_share():
    workers, go_on = Workers(1, 3, 2), threading.Event()
    calls = [asyncio.create_task(workers.run("a", go_on.wait)) for _ in range(2)]
    await settled()
    with refuses(ErrorKind.TOO_MANY):
        await workers.run("a", go_on.wait)
    calls.append(asyncio.create_task(workers.run("b", go_on.wait)))
    await settled()
    with pytest.raises(RequestError):
        await workers.run("c", go_on.wait)
    go_on.set()
    await asyncio.gather(*calls)
    assert await workers.run("a", lambda: 7) == 7


@run_by(run_alone)
async def test_a_cancelled_call_loses_its_place_and_no_thread():
    workers, go_on, ran = Workers(1, 10, 10), threading.Event(), []
    running = asyncio.create_task(workers.run("a", go_on.wait))
    await settled()
    waiting = asyncio.create_task(workers.run("b", lambda: ran.append("b")))
    await settled()
    waiting.cancel()
    running.cancel()  # its thread stays in use until its work has ended
    await settled()
    last = asyncio.create_task(workers.run("c", lambda: ran.append("c")))
    await settled()
    assert not ran
    go_on.set()
    await last
    assert ran == ["c"]
    assert await workers.run("a", lambda: 7) == 7


@run_by(run_alone)
async def test_a_call_that_is_cancelled_as_its_turn_comes_passes_it_on():
    workers, go_on = Workers(1, 10, 10), threading.Event()
    running = asyncio.create_task(workers.run("a", go_on.wait))
    await settled()
    waiting = [asyncio.create_task(workers.run(each, lambda: 7)) for each in "bc"]
    await settled()
    go_on.set()
    running.add_done_callback(lambda _: waiting[0].cancel())
    assert await waiting[1] == 7
