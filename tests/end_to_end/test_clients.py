"""The examples of docs/api.md, run with the real clients against the whole program."""

import asyncio
import json
import re
import subprocess
import sys
from base64 import b64decode
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
from gradio_client import Client, handle_file
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, ImageContent
from PIL import Image

from benchmarks.processes import ROOT
from tests.documents import fences

NODE = ROOT / "tests" / "node"
URL = "http://127.0.0.1:7860"
PNG = b"\x89PNG"


def example(language: str, word: str, address: str) -> str:
    """Return the only `language` block of docs/api.md that contains `word`, with this address."""
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (found,) = [block for block in blocks if word in block]
    assert URL in found
    return found.replace(URL, address)


def output(*command: str, folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_python(address: str, tmp_path: Path):
    program = example("python", "gradio_client", address)
    # Python prints each picture's path between quotes.
    said = output(sys.executable, "-c", program, folder=tmp_path)
    pictures = [Path(path) for path in re.findall(r"'([^']+\.png)'", said)]
    assert [path.read_bytes()[:4] for path in pictures] == [PNG] * 4
    assert "[7, 8, 9, 10]" in said


def test_openai(address: str, tmp_path: Path):
    program = example("python", "from openai", address)
    assert output(sys.executable, "-c", program, folder=tmp_path) == ""
    pictures = [tmp_path / f"{name}.png" for name in ("moon-0", "moon-1", "star")]
    assert [path.read_bytes()[:4] for path in pictures] == [PNG] * 3


def test_webuiapi(address: str, tmp_path: Path):
    program = example("python", "webuiapi", address)
    said = output(sys.executable, "-c", program, folder=tmp_path)
    assert said == "[7, 8] []\n"
    pictures = [tmp_path / name for name in ("moon-0.png", "moon-1.png", "red.png")]
    assert [path.read_bytes()[:4] for path in pictures] == [PNG] * 3


def test_openai_with_every_extra(address: str):
    """The real model draws as many pictures as asked for, in another file format."""
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    answer = client.images.generate(
        prompt="a yellow moon",
        model="dall-e-3",
        n=6,
        quality="hd",
        style="vivid",
        user="somebody",
        response_format="url",
        output_format="jpeg",
        output_compression=80,
        extra_body={"seed": 7},
    )
    files = [httpx.get(image.url or "") for image in answer.data or ()]
    assert [file.headers["content-type"] for file in files] == ["image/jpeg"] * 6
    assert len({file.content for file in files}) == 6
    (model,) = client.models.list()
    assert client.models.retrieve(model.id).id == model.id


def test_python_with_a_picture(address: str, tmp_path: Path):
    """Only the masked part of the uploaded picture changes."""
    Image.new("RGB", (256, 256), "red").save(tmp_path / "red.png")
    lower_half = Image.new("L", (256, 256))
    lower_half.paste(255, (0, 128, 256, 256))
    lower_half.save(tmp_path / "mask.png")
    client = Client(address, verbose=False, download_files=str(tmp_path))
    files = {name: handle_file(tmp_path / f"{name}.png") for name in ("red", "mask")}
    pictures, _, _ = client.predict(
        "a blue moon", image=files["red"], mask=files["mask"], seed=7, api_name="/generate"
    )
    with Image.open(pictures[0]) as picture:
        assert "Denoising strength: 0.8" in picture.info["parameters"]
        pixels = np.asarray(picture, np.int64)
    difference = np.abs(pixels - (255, 0, 0)).max(axis=(1, 2))
    assert difference[:128].max() <= 2 < difference[150:].max()


def test_javascript(address: str):
    if not (NODE / "node_modules").exists():
        pytest.fail("@gradio/client is missing; make test installs it")
    node = str(Path(sys.executable).with_name("node"))
    said = output(node, "--input-type=module", "-e", example("js", "Client", address), folder=NODE)
    addresses, seeds, left_out = json.loads(said)
    assert [httpx.get(address).content[:4] for address in addresses] == [PNG] * 4
    assert (seeds, left_out) == ([7, 8, 9, 10], "")


def test_assistants(address: str):
    """The address in docs/api.md is right; test_mcp.py tests everything else."""
    url = json.loads(example("json", "mcpServers", address))["mcpServers"]["sdxl"]["url"]

    async def draw() -> CallToolResult:
        async with (
            streamable_http_client(url) as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            return await session.call_tool("generate", {"prompt": "a yellow moon", "seed": 7})

    answer = asyncio.run(draw())
    pictures = [each for each in answer.content if isinstance(each, ImageContent)]
    assert [b64decode(each.data)[:4] for each in pictures] == [PNG] * 4
    assert answer.structuredContent == {
        "seeds": [7, 8, 9, 10],
        "left_out": "",
        "ignored": [],
    }


def test_how_a_prompt_is_read(address: str):
    """The answer in docs/prompts.md is that to its call."""
    (_, call), (_, answer) = fences((ROOT / "docs" / "prompts.md").read_text("utf-8"))
    [body] = re.findall(r"-d '(.*)'", call)
    headers = {"Content-Type": "application/json"}
    said = httpx.post(f"{address}/v1/length", content=body, headers=headers).json()
    assert said == json.loads(answer)
