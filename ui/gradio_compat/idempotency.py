"""Idempotent calls: a call that a browser repeats, because no answer came, is made once."""

import asyncio

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.http.addresses import address_of
from serving.requests.shares import first_to_go

_JOIN = "/queue/join"  # the route for all queued events of Gradio's pages
_MOST_KEYS = 1000
_MOST_CHARACTERS = 64
_MOST_BYTES = 4096

_Answer = asyncio.Task[list[Message]]


class Idempotency:
    """Middleware that answers a repeated call, known by its key, with the first call's answer.

    Only small answers of success are remembered: a call that was refused or broke off had no
    effect, so it may be made again.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._answers: dict[str, tuple[str, _Answer]] = {}  # by key; oldest first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on, or send the answer to an earlier call with the same key."""
        key = _key(scope)
        if key is None:
            await self._app(scope, receive, send)
            return
        # Read the body first: a call may break off before, and its repeat must not wait for it.
        receive = await _received(receive)
        _, answer = self._answers.get(key, ("", None))
        if answer is None:
            answer = asyncio.create_task(self._ask(scope, receive))
            self._remember(key, address_of(Request(scope)), answer)
        # Shielded, so that a client that gives up can still get the answer by a repeat.
        for message in await asyncio.shield(answer):
            await send(message)

    async def _ask(self, scope: Scope, receive: Receive) -> list[Message]:
        messages: list[Message] = []

        async def keep(message: Message) -> None:
            messages.append(message)

        await self._app(scope, receive, keep)
        return messages

    def _remember(self, key: str, address: str, answer: _Answer) -> None:
        def forget_failure(answer: _Answer) -> None:
            if answer.cancelled() or answer.exception() or not _is_success(answer.result()):
                self._answers.pop(key, None)

        answer.add_done_callback(forget_failure)
        self._answers[key] = address, answer
        if len(self._answers) > _MOST_KEYS:
            del self._answers[
                first_to_go((key, owner, 1) for key, (owner, _) in self._answers.items())
            ]


async def _received(receive: Receive) -> Receive:
    """Wait for the whole body, and return a `receive` that gives it again."""
    messages: list[Message] = []
    while True:
        message = await receive()
        messages.append(message)
        if not message.get("more_body", False):  # a disconnect has no such key
            break
    iterator = iter(messages)

    async def receive_again() -> Message:
        return next(iterator, None) or await receive()

    return receive_again


def _is_success(messages: list[Message]) -> bool:
    status = next((message["status"] for message in messages if "status" in message), 500)
    return (
        status < 300 and sum(len(message.get("body", b"")) for message in messages) <= _MOST_BYTES
    )


def _key(scope: Scope) -> str | None:
    if scope["type"] != "http" or not scope["path"].endswith(_JOIN):
        return None
    key = QueryParams(scope["query_string"]).get("once", "")
    return key if 0 < len(key) <= _MOST_CHARACTERS else None
