"""The Model Context Protocol, tested with its official client over real connections."""

import asyncio
import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import types
from PIL import Image

from pipeline import metadata
from serving.http.limits import MCP_PATH as PATH
from tests.calls import ask, call, connected
from tests.web import Site, serve, wait_until


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve() as site:
        yield site


def said(result: types.CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, types.TextContent)
    return content.text


def test_the_one_tool_says_what_can_be_asked(site: Site):
    (tool,) = ask(site, lambda session: session.list_tools()).tools
    assert tool.name == "generate"
    assert tool.description is not None
    assert "Draws 2 pictures, 8x8 pixels each" in tool.description
    fields = tool.inputSchema["properties"]
    assert tool.inputSchema["required"] == ["prompt"]
    assert all(field.get("description") for field in fields.values())
    seed, _ = fields["seed"]["anyOf"]
    assert seed == {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
    guidance, _ = fields["guidance_scale"]["anyOf"]
    assert (guidance["minimum"], guidance["maximum"]) == (0, 50)


def test_pictures_come_as_pictures_with_their_seeds(site: Site, tmp_path: Path):
    file = tmp_path / "picture.png"
    *pictures, text = call(site, prompt="a red star", seed=2**32 - 1).content
    seeds = []
    for picture in pictures:
        assert isinstance(picture, types.ImageContent)
        assert picture.mimeType == "image/png"
        file.write_bytes(base64.b64decode(picture.data))
        settings = metadata.read(file)
        assert settings is not None
        seeds.append(settings.seed)
    assert seeds == [2**32 - 1, 0]
    assert isinstance(text, types.TextContent)
    ends = {"left_out": "the end", "ignored": ["the end"]}
    assert json.loads(text.text) == {"seeds": seeds, **ends}


def test_as_many_pictures_as_wanted(site: Site):
    result = call(site, prompt="a red star", images=1, seed=7, size="8x8")
    assert result.structuredContent == {"seeds": [7], "left_out": "the end", "ignored": ["the end"]}
    assert [content.type for content in result.content] == ["image", "text"]


def test_progress_is_reported_step_by_step(site: Site):
    told: list[tuple[float, float | None]] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total))

    arguments = {"prompt": "a red star", "num_inference_steps": 3}
    ask(
        site,
        lambda session: session.call_tool("generate", arguments, progress_callback=listen),
    )
    assert told[-1] == (3, 3)
    assert told == sorted(told)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "prompt: Field required"),
        ({"prompt": "a", "seed": -1}, "seed: Input should be greater than or equal to 0"),
        ({"prompt": "a", "guidance_scale": 51}, "guidance_scale: Input should be less than"),
        ({"prompt": "a", "num_inference_steps": 51}, "num_inference_steps is 51; expected 1 to 50"),
        ({"prompt": "a", "images": 3}, "images is 3; expected 1 to 2"),
        ({"prompt": "a" * 2001}, "2000 characters"),
        ({"prompt": "a", "size": "9x9"}, "size is 9x9; here it can only be 8x8"),
        ({"prompt": "a", "style": "Film"}, "style: Extra inputs are not permitted"),
        ({"prompt": "refuse"}, "not this"),
        ({"prompt": "break"}, "Something went wrong"),
    ],
)
def test_an_impossible_request_is_an_error(site: Site, arguments: dict[str, Any], message: str):
    result = call(site, **arguments)
    assert result.isError
    assert message in said(result)


def test_from_a_picture(site: Site):
    file = io.BytesIO()
    Image.new("RGB", (16, 16), (100, 100, 100)).save(file, "PNG")
    given = base64.b64encode(file.getvalue()).decode()
    result = call(site, prompt="a red star", image=given, strength=0.5, images=1, seed=7)
    picture, _ = result.content
    assert isinstance(picture, types.ImageContent)
    drawn = Image.open(io.BytesIO(base64.b64decode(picture.data)))
    assert drawn.getpixel((0, 0)) == (7, 100, 0)
    refused = call(site, prompt="a", image="data:image/png;base64,aGVsbG8=")
    assert "image cannot be used: it is not a PNG, JPEG or WebP file" in said(refused)


def test_an_unknown_tool_is_an_error(site: Site):
    result = ask(site, lambda session: session.call_tool("paint", {}))
    assert result.isError
    assert "There is no tool 'paint'" in said(result)


def test_a_client_that_leaves_stops_the_drawing():
    with serve(held=True) as site:

        async def leave() -> None:
            async with connected(site) as session:
                calling = asyncio.create_task(
                    session.call_tool("generate", {"prompt": "a red star"})
                )
                await asyncio.to_thread(wait_until, lambda: site.pipe.calls)
                calling.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await calling

        asyncio.run(leave())
        wait_until(lambda: httpx.get(f"{site.url}/readyz").json()["running"] == 0)
        assert len(site.pipe.calls) == 1


def test_a_key_is_needed_where_there_are_keys():
    with serve(keys=["secret"]) as site:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        headers = {"Accept": "application/json, text/event-stream"}
        refused = httpx.post(site.url + PATH, json=body, headers=headers)
        assert refused.status_code == 401
        headers["Authorization"] = "Bearer secret"
        answer = httpx.post(site.url + PATH, json=body, headers=headers)
        assert '"generate"' in answer.text


def test_other_requests_are_refused(site: Site):
    assert httpx.get(site.url + PATH).status_code == 405
    assert httpx.delete(f"{site.url}{PATH}/").status_code == 405
    junk = httpx.post(f"{site.url}{PATH}/", content=b"{", headers={"Accept": "*/*"})
    assert 400 <= junk.status_code < 500


def send(site: Site, **message: Any) -> httpx.Response:
    headers = {
        "Accept": "application/json, text/event-stream",
        "Content-Type": message.pop("content_type", "application/json"),
    }
    body = json.dumps({"jsonrpc": "2.0"} | message)
    return httpx.post(site.url + PATH, content=body, headers=headers)


SECRET = "nobody may read this"
CALL = {"name": "generate", "arguments": {"prompt": [SECRET]}}
WRONG = {
    "method": {"id": 1, "method": SECRET, "params": CALL},
    "surrogate": {"id": 1, "method": "\ud800", "params": CALL},
    "params": {"id": 1, "method": "tools/call", "params": {"name": [SECRET]}},
    "list": {"id": 1, "method": "tools/call", "params": [SECRET]},
    "arguments": {"id": 1, "method": "tools/call", "params": {**CALL, "arguments": SECRET}},
    "prompt": {"id": 1, "method": "tools/call", "params": CALL},
    "tool": {"id": 1, "method": "tools/call", "params": {**CALL, "name": SECRET}},
    "id": {"id": {"a": SECRET}, "method": "tools/call", "params": CALL},
    "notification": {"method": SECRET, "params": CALL},
    "cancelled": {"method": "notifications/cancelled", "params": {"requestId": [SECRET]}},
    "answer": {"id": 1, "result": {"text": SECRET}},
    "error": {"id": 1, "error": {"code": 1, "message": SECRET}},
    "header": {"id": 1, "method": "tools/list", "content_type": f"text/{SECRET}"},
}


@pytest.mark.parametrize("message", WRONG.values(), ids=WRONG)
def test_no_text_of_a_wrong_message_is_logged(
    site: Site, message: dict[str, Any], caplog: pytest.LogCaptureFixture
):
    answer = send(site, **message)
    assert answer.status_code < 500
    if answer.status_code == 200:
        assert '"id":1' in answer.text
    assert send(site, id=2, method="ping").status_code == 200  # the first is done by then
    assert SECRET not in caplog.text
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def test_a_message_that_is_nested_deeply_is_answered_with_an_error(
    site: Site, caplog: pytest.LogCaptureFixture
):
    nested = json.loads("[" * 900 + "]" * 900)
    answer = send(site, id=1, method="x", params={"a": nested})
    assert "error" in answer.text
    assert not [record for record in caplog.records if record.exc_info]
