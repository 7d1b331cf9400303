"""Stand-ins for what the page draws with."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
from PIL import Image as Pillow

from pipeline.facts import Facts
from pipeline.images.metadata import Settings
from pipeline.text.prompt_syntax import PLAIN, texts_of
from serving.generator import (
    Done,
    Error,
    ErrorKind,
    Event,
    Image,
    Length,
    Load,
    Pictured,
    Preview,
    Request,
    RequestError,
    Started,
    Step,
)
from serving.messages import untranslated
from tests import models
from ui.form import components, requests
from ui.form.fields import Fields, Visitor
from ui.page.generation import Drawing
from ui.samples.model_kind import Kind, kind_of
from ui.samples.styles import NONE, styles_for
from ui.wiring import Call, Updates, Wiring

MADE_HERE = Settings(
    "a star",
    "dull",
    seed=7,
    num_inference_steps=30,
    guidance_scale=6.5,
    width=256,
    height=256,
    model="org/model",
    scheduler="euler",
)
MODEL = replace(models.MODEL, family="Stable Diffusion", safety_checker=True)
CLIENT = SimpleNamespace(client=SimpleNamespace(host="::1"))
SENDER = gr.Request(CLIENT, session_hash="a session")  # type: ignore[arg-type]
VALUES: dict[str, Any] = {
    "prompt": "a red star",
    "style": NONE,
    "negative_prompt": "",
    "guidance_scale": 5,
    "steps": 25,
    "seed": 7,
}


def said_of(request: Request, seed: int) -> dict[str, str | int | float | None]:
    steps, guidance = request.num_inference_steps, request.guidance_scale
    prompt = str(request.prompt)
    return asdict(
        Settings(
            prompt,
            "",
            seed=seed,
            num_inference_steps=steps,
            guidance_scale=guidance,
            width=256,
            height=256,
            model="org/model",
        )
    )


class StandIn:
    """A generator that draws nothing, but records its requests."""

    facts = MODEL
    load = Load(0, 0, 3, accepting=True)
    stuck = at_work = False

    def __init__(
        self,
        truncated: str = "",
        refusal: RequestError | None = None,
        error: Error | None = None,
        first: tuple[Event, ...] = (Started(),),
        blurred: int | None = None,
    ) -> None:
        self.asked: list[Request] = []
        self.cancelled: list[str] = []
        self.closed = False
        self._truncated = truncated
        self._refusal = refusal
        self._error = error
        self._first = first
        self._blurred = blurred

    async def open(self) -> None:
        raise NotImplementedError

    async def measure(
        self, prompt: str, prompt_syntax: str = PLAIN, steps: int | None = None
    ) -> Length | None:
        texts = texts_of(prompt, prompt_syntax, steps or self.facts.num_inference_steps)
        words = max(map(str.split, texts), key=len)
        return Length(2 + len(words), 77, " ".join(words[75:])) if words[:1] != ["away"] else None

    async def thumbnail(self, kind: Pictured, name: str) -> bytes | None:
        raise NotImplementedError

    async def submit(self, request: Request) -> None:
        if self._refusal:
            raise self._refusal
        self.asked.append(request)

    async def take_up(self, request_id: str) -> None:
        if self._refusal:
            raise self._refusal

    async def events(self, request_id: str, pause_s: float | None = None) -> AsyncGenerator[Event]:
        if request_id not in (request.id for request in self.asked):
            raise RequestError(untranslated("gone"), ErrorKind.UNKNOWN)
        request = self.asked[-1]
        try:
            for event in self._first:
                yield event
            for step in range(request.steps):
                yield Step(step + 1, request.steps)
                if request.previews and step == 0:
                    yield Preview((b"look 0", b"look 1"))
            if self._error:
                yield self._error
                return
            for i in range(4):
                seed = request.seed + i
                settings = said_of(request, seed)
                if i == self._blurred:
                    settings["safety_checker"] = "blurred"
                yield Image(i, b"png%d" % seed, seed, settings)
            yield Done(self._truncated)
        finally:
            self.closed = True

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    async def close(self, within_s: float) -> None:
        raise NotImplementedError


def to_request(**changes: Any) -> Request:
    fields = Fields.for_model(MODEL)._replace(**{"prompt_syntax": "plain"} | VALUES | changes)
    return requests.to_request(MODEL, styles_for(Kind.SDXL), fields, Visitor("a session", "::1"))


def call_with(data: Any = None, told: dict[str, Any] | None = None, **values: Any) -> Call:
    """Return an event of a page whose browser `told` something."""
    return Call(SENDER, {"relay": told or {}, **values}, data)


def all_of(drawing: Drawing, answer: Coroutine[Any, Any, Updates]) -> list[Updates]:
    """Return the answer to a press, and what the page gets when the request has ended."""
    first = asyncio.run(answer)
    if not first.get("status", {}).get("request"):
        return [first]
    return [first, asyncio.run(drawing.ended(call_with({"id": first["relay"]["request"]})))]


def uploaded(folder: Path, name: str, image: Pillow.Image) -> dict[str, str]:
    """Upload a picture; return its file as the browser names it."""
    file = BytesIO()
    image.save(file, "PNG")
    path = folder / f"hash of {name}" / f"{name}.png"
    path.parent.mkdir()
    path.write_bytes(file.getvalue())
    return {"path": str(path)}


def field_of(facts: Facts, name: str) -> Any:
    """Return the component of a field of the page."""
    with gr.Blocks() as blocks:
        wiring = Wiring(blocks)
        components.create(wiring, facts, styles_for(kind_of(facts)))
    return wiring[name]
