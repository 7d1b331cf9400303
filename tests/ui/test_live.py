"""The route of live pictures, and the recipe that draws them."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from pipeline.facts import LoraFacts
from serving.metrics import Observer
from serving.requests.registry import Limits
from tests.fake_pipeline import FakePipeline
from tests.generators import closing, local_generator, until
from tests.models import MODEL
from tests.run_by import run_by
from ui import live

Test = Callable[[FastAPI, FakePipeline], Awaitable[None]]


def run(test: Test, *, held: bool = False) -> None:
    pipe = FakePipeline(held=held)
    pipe.facts = replace(pipe.facts, distilled=True)

    async def whole() -> None:
        made = local_generator(pipe.as_pipeline(), Limits(), Observer(), live="on")
        await made.open()
        await until(lambda: made.facts.live)
        app = FastAPI()
        live.connect(app, made)
        async with closing(made, pipe):
            await test(app, pipe)

    asyncio.run(whole())


def body(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"session": "mine", "prompt": prompt, "fields": fields}


async def answer_to(app: FastAPI, **sent: Any) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.post(live.PATH, json=body(**sent))


@run_by(run)
async def test_a_picture_of_what_is_typed(app: FastAPI, pipe: FakePipeline):
    answer = await answer_to(app, prompt="a star", style="Photograph", seed=7, steps=50)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/jpeg")
    assert answer.content.startswith(b"\xff\xd8\xff")
    [call] = pipe.calls
    assert "a star" in call["prompt"]
    assert call["prompt"] != "a star"  # the style's words are around it
    assert (call["seed"], call["num_inference_steps"]) == (7, pipe.facts.num_inference_steps)


@pytest.mark.parametrize(
    ("fields", "syntax"),
    [({}, "a1111"), ({"prompt_syntax": "plain"}, "plain"), ({"prompt_syntax": "a1111"}, "a1111")],
)
@run_by(run)
async def test_the_syntax_is_that_of_the_page(
    app: FastAPI, pipe: FakePipeline, fields: dict[str, str], syntax: str
):
    assert (await answer_to(app, prompt="a (star:1.3)", **fields)).status_code == 200
    assert pipe.calls[0]["prompt_syntax"] == syntax


@pytest.mark.parametrize(
    "sent",
    [{"prompt": " "}, {"prompt": "a star", "style": "none such"}, {"prompt": "refuse"}],
)
@run_by(run)
async def test_nothing_for_what_cannot_be_drawn(
    app: FastAPI, pipe: FakePipeline, sent: dict[str, Any]
):
    answer = await answer_to(app, **sent)
    assert (answer.status_code, answer.content) == (204, b"")


@run_by(run, held=True)
async def test_a_page_that_turns_to_the_next_picture_stops_the_drawing(
    app: FastAPI, pipe: FakePipeline
):
    content = json.dumps(body("a star")).encode()
    left = asyncio.Event()
    messages = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(_: object) -> None:
        pass

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": live.PATH, "headers": headers}
    scope |= {"query_string": b"", "client": ("here", 1), "http_version": "1.1"}
    answering = asyncio.create_task(app(scope, receive, send))  # type: ignore[arg-type]
    await until(lambda: pipe.at_rest)
    left.set()
    await answering
    await until(lambda: not pipe.at_rest)  # its step ends without a permit
    assert pipe.steps == 0


@pytest.mark.parametrize(
    ("files", "recipe"),
    [
        ([], None),
        (["pixel"], None),
        (["sdxl_lightning_8step_lora", "sdxl_lightning_2step_lora"], "lightning-2"),
        (["sdxl_lightning_2step_lora", "sdxl_lightning_4step_lora"], "lightning-4"),
    ],
)
def test_the_recipe_of_about_four_steps_draws_them(files: list[str], recipe: str | None):
    loras = tuple(LoraFacts(name, name) for name in files)
    assert replace(MODEL, loras=loras).live_recipe == recipe
    assert replace(MODEL, loras=loras, distilled=True).live_recipe == ""
