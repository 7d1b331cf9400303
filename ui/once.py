"""Calls that a browser makes again, having had no answer: each counts once."""

import asyncio
from collections import OrderedDict

from starlette.datastructures import QueryParams
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_JOIN = "/queue/join"  # by which Gradio's pages have anything done
_MOST_KEYS = 1000
_MOST_CHARACTERS = 64

_Answer = asyncio.Task[list[Message]]


class Once:
    """Answers what comes again under the key of an earlier call with that call's answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._answers: OrderedDict[str, _Answer] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on what has no key, as that of other clients."""
        key = _key(scope)
        if key is None:
            await self._app(scope, receive, send)
            return
        answer = self._answers.get(key)
        if answer is None:
            answer = asyncio.create_task(self._ask(scope, receive))
            self._remember(key, answer)
        # Who gives up waiting may come again.
        for message in await asyncio.shield(answer):
            await send(message)

    async def _ask(self, scope: Scope, receive: Receive) -> list[Message]:
        messages: list[Message] = []

        async def keep(message: Message) -> None:
            messages.append(message)

        await self._app(scope, receive, keep)
        return messages

    def _remember(self, key: str, answer: _Answer) -> None:
        def forget_failure(answer: _Answer) -> None:
            if answer.cancelled() or answer.exception():
                self._answers.pop(key, None)

        answer.add_done_callback(forget_failure)
        self._answers[key] = answer
        if len(self._answers) > _MOST_KEYS:
            self._answers.popitem(last=False)


def _key(scope: Scope) -> str | None:
    if scope["type"] != "http" or not scope["path"].endswith(_JOIN):
        return None
    key = QueryParams(scope["query_string"]).get("once", "")
    return key if 0 < len(key) <= _MOST_CHARACTERS else None
