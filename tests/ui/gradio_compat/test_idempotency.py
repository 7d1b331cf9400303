"""Repeated calls: one at a time, side by side, after a failure, and far too many."""

import asyncio
from collections.abc import AsyncGenerator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ui.gradio_compat import idempotency
from ui.gradio_compat.idempotency import Idempotency

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Shop:
    """An application that counts its calls and answers with the count."""

    def __init__(self) -> None:
        self.asked = 0
        self.open = asyncio.Event()
        self.open.set()
        self.failing = False
        self.status = 201
        self.answer = "tea"
        routes = [Route(path, self._sell, methods=["POST"]) for path in ("/queue/join", "/run/x")]
        transport = httpx.ASGITransport(Idempotency(Starlette(routes=routes)))
        self._client = httpx.AsyncClient(transport=transport, base_url="http://shop")

    async def _sell(self, call: Request) -> JSONResponse:
        self.asked += 1
        number = self.asked
        await self.open.wait()
        if self.failing:
            raise RuntimeError("sold out")
        await call.json()
        return JSONResponse([number, self.answer], status_code=self.status)

    async def buy(
        self,
        query: str,
        path: str = "/queue/join",
        content: str | AsyncGenerator[bytes] = '"tea"',
    ) -> tuple[int, object]:
        answer = await self._client.post(f"{path}{query}", content=content)
        return answer.status_code, answer.json()


async def test_a_repeated_call_gets_the_same_answer():
    shop = Shop()
    assert await shop.buy("?once=a&seed=1") == (201, [1, "tea"])
    assert await shop.buy("?once=a&seed=1") == (201, [1, "tea"])
    assert await shop.buy("?once=b") == (201, [2, "tea"])


@pytest.mark.parametrize("query", ["", "?once=", f"?once={'x' * 65}", "?seed=1"])
async def test_calls_without_a_key_are_all_made(query: str):
    shop = Shop()
    assert [await shop.buy(query), await shop.buy(query)] == [(201, [n, "tea"]) for n in (1, 2)]


async def test_keys_are_ignored_on_other_routes():
    shop = Shop()
    for number in (1, 2):
        assert await shop.buy("?once=a", "/run/x") == (201, [number, "tea"])


async def test_a_repeat_waits_for_the_first_call_even_if_its_client_has_left():
    shop = Shop()
    shop.open.clear()
    first = asyncio.create_task(shop.buy("?once=a"))
    while not shop.asked:
        await asyncio.sleep(0)
    first.cancel()
    sent = asyncio.Event()

    async def content() -> AsyncGenerator[bytes]:
        yield b'"tea"'
        sent.set()

    second = asyncio.create_task(shop.buy("?once=a", content=content()))
    await sent.wait()
    shop.open.set()
    assert await second == (201, [1, "tea"])


async def test_a_call_whose_body_breaks_off_does_not_block_its_repeat():
    shop, begun = Shop(), asyncio.Event()

    async def half() -> AsyncGenerator[bytes]:
        yield b'"te'
        begun.set()
        await asyncio.Event().wait()

    first = asyncio.create_task(shop.buy("?once=a", content=half()))
    await begun.wait()
    assert await shop.buy("?once=a") == (201, [1, "tea"])
    first.cancel()


async def test_a_failed_call_is_made_again():
    shop = Shop()
    shop.failing = True
    with pytest.raises(RuntimeError):
        await shop.buy("?once=a")
    shop.failing = False
    assert await shop.buy("?once=a") == (201, [2, "tea"])


@pytest.mark.parametrize("status", [400, 404, 429, 500])
async def test_a_refusal_is_not_remembered(status: int):
    shop = Shop()
    shop.status = status
    assert await shop.buy("?once=a") == (status, [1, "tea"])
    shop.status = 201
    assert await shop.buy("?once=a") == (201, [2, "tea"])


async def test_a_long_answer_is_not_remembered():
    shop = Shop()
    shop.answer = "tea" * 10_000
    for number in (1, 2):
        assert await shop.buy("?once=a") == (201, [number, shop.answer])


async def test_a_bounded_number_of_answers_is_remembered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(idempotency, "_MOST_KEYS", 2)
    shop = Shop()
    for key in "abc":
        await shop.buy(f"?once={key}")
    assert await shop.buy("?once=c") == (201, [3, "tea"])
    assert await shop.buy("?once=a") == (201, [4, "tea"])
