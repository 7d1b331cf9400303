"""Kinds of requests that one address sends to harm a server, and the files that they name."""

import asyncio
import base64
import io
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from PIL import Image
from PIL.PngImagePlugin import PngInfo

ATTACKER = "127.0.0.2"
AT_A_TIME = 40
LIST, LORA = "large", "repeated"  # names of hostile files that the operator has
PICTURE = {"images": 1, "num_inference_steps": 4, "seed": 7}

Attack = Callable[[httpx.AsyncClient, "dict[str, int]"], Awaitable[int]]


def _name() -> str:
    return secrets.token_urlsafe(16)


async def _join(client: httpx.AsyncClient, function: int, data: list[Any], session: str) -> int:
    body = {"fn_index": function, "data": data, "session_hash": session}
    return (await client.post("/gradio_api/queue/join", json=body)).status_code


async def large_bodies(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Post 15 MB to the page's own API."""
    body = {"data": ["x" * 15_000_000]}
    return (await client.post("/gradio_api/queue/join", json=body)).status_code


async def bracketed_texts(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Paste a text of settings with 240 kB of brackets, each time in a new session."""
    return await _join(client, functions["of_text"], [_settings_text(240_000)], _name())


async def bracketed_files(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Drop a picture whose settings have 1 MB of brackets."""
    files = {"files": ("a.png", _bracketed_picture(), "image/png")}
    answer = await client.post("/gradio_api/upload", files=files)
    if answer.status_code != 200:
        return answer.status_code
    file_data = {"path": answer.json()[0], "meta": {"_type": "gradio.FileData"}}
    return await _join(client, functions["of_picture"], [file_data], _name())


async def bracketed_pictures(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Ask AUTOMATIC1111's API for the settings in such a picture."""
    body = {"image": base64.b64encode(_bracketed_picture()).decode()}
    return (await client.post("/sdapi/v1/png-info", json=body)).status_code


async def bracketed_lengths(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Ask for the length of a prompt of 2,000 brackets."""
    body = {"prompt": _brackets(2000), "prompt_syntax": "a1111"}
    return (await client.post("/v1/length", json=body)).status_code


async def bracketed_prompts(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Draw such a prompt."""
    prompt = _brackets(2000)
    return await _draw(client, prompt=prompt, prompt_syntax="a1111")


async def lists(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Draw a prompt that names a list of 1 MB 199 times, and hang up after a second."""
    prompt = f"__{LIST}__ " * 199
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            return await _draw(client, prompt=prompt[:2000], prompt_syntax="a1111")
    return 0


async def repeated_names(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Draw with a LoRA whose file has 200,001 names, one of them twice."""
    return await _draw(client, prompt="a", loras={LORA: 1.0})


async def large_pictures(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Draw from a picture of 31 megapixels, which takes long to open."""
    return await _draw(client, prompt="a", image=_large_picture())


async def made_up_ports(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Draw as a client of a proxy that adds ports to addresses, each time from another port."""
    headers = {"X-Forwarded-For": f"203.0.113.7:{secrets.randbelow(60_000) + 1024}"}
    return await _draw(client, headers, prompt="a")


async def _draw(
    client: httpx.AsyncClient, headers: dict[str, str] | None = None, **fields: Any
) -> int:
    body = PICTURE | fields
    return (await client.post("/v1/generate", json=body, headers=headers)).status_code


def _brackets(characters: int) -> str:
    """Return lists in brackets in lists, as deep as they can be."""
    depth = characters // len("{[({a|b}}])")
    return "{[({a|b}" * depth + "}])" * depth


def _settings_text(characters: int) -> str:
    return _brackets(characters) + "\nSteps: 20, Sampler: Euler, Seed: 7"


@cache
def _bracketed_picture() -> bytes:
    info = PngInfo()
    info.add_text("parameters", _settings_text(1_000_000), zip=True)
    return _png(64, info)


@cache
def _large_picture() -> str:
    return base64.b64encode(_png(5600)).decode()


def _png(side: int, info: PngInfo | None = None) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side)).save(file, "PNG", pnginfo=info)
    return file.getvalue()


async def large_sessions(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Join the queue with a session name of 900 kB."""
    return await _join(client, functions["stop"], [None], "x" * 900_000)


async def made_up_sessions(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Join the queue in a new session for each call."""
    return await _join(
        client,
        functions["length"],
        ["a red star", "(none)", False, "", "plain", "", 25, ""],
        _name(),
    )


async def unread_answers(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Start a generation through Gradio's API, and never fetch its answer."""
    answer = await client.post("/gradio_api/call/v2/generate", json={"prompt": "a", "steps": 1})
    return answer.status_code


async def followers(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Follow a request that is being drawn, and never fetch the updates."""
    request = PICTURE | {"prompt": "a", "num_inference_steps": 16, "id": _name(), "keep": True}
    async with client.stream("POST", "/v1/generate", json=request):
        return await _join(client, functions["again"], [{"request": request["id"]}], _name())


async def uploads(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Upload a file of 1 MB that nothing uses, with its own progress to follow."""
    url = f"/gradio_api/upload?upload_id={_name()}"
    return (await client.post(url, files={"files": ("a.png", b"x" * 1_000_000)})).status_code


async def held_heartbeats(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Hold the heartbeat of a made-up session open until the server closes it, at most 5 s."""
    async with client.stream("GET", f"/gradio_api/heartbeat/{_name()}") as answer:
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                async for _ in answer.aiter_raw():
                    pass
        return answer.status_code


async def small_chunks(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Send a body in chunks of one byte, 60 kB in all."""
    return await _send_raw(
        client, b"POST", b"Transfer-Encoding: chunked\r\n", b"1\r\n \r\n" * 10_000
    )


async def many_headers(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Send 15,000 headers."""
    return await _send_raw(client, b"GET", b"a:\r\n" * 15_000, b"")


async def _send_raw(client: httpx.AsyncClient, method: bytes, headers: bytes, body: bytes) -> int:
    """Send a request as it is; return the status of the answer, 0 for none."""
    url = urlsplit(str(client.base_url))
    reader, writer = await asyncio.open_connection(url.hostname, url.port, local_addr=(ATTACKER, 0))
    answer = b""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(5):
            head = b" /v1/generate HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            writer.write(method + head + headers + b"\r\n" + body)
            await writer.drain()
            answer = await reader.readline()
    writer.close()
    return int(answer.split()[1]) if answer else 0


async def idle_connections(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Hold a connection open without a request, until the server closes it, at most 5 s."""
    url = urlsplit(str(client.base_url))
    reader, writer = await asyncio.open_connection(url.hostname, url.port, local_addr=(ATTACKER, 0))
    with suppress(TimeoutError):
        async with asyncio.timeout(5):
            await reader.read()
    writer.close()
    return 0


# Each attack with the number of its concurrent calls.
ATTACKS: dict[Attack, int] = {
    large_bodies: 4,
    small_chunks: AT_A_TIME,
    many_headers: AT_A_TIME,
    bracketed_texts: AT_A_TIME,
    bracketed_files: AT_A_TIME,
    bracketed_pictures: AT_A_TIME,
    bracketed_lengths: AT_A_TIME,
    bracketed_prompts: AT_A_TIME,
    lists: AT_A_TIME,
    repeated_names: AT_A_TIME,
    large_pictures: AT_A_TIME,
    made_up_ports: AT_A_TIME,
    large_sessions: 8,
    made_up_sessions: AT_A_TIME,
    unread_answers: AT_A_TIME,
    followers: AT_A_TIME,
    uploads: 8,
    held_heartbeats: 1000,
    idle_connections: 1000,
}


def program(folder: Path) -> list[str]:
    """Return the program of a server with hostile files in a folder, behind one proxy."""
    (folder / f"{LIST}.txt").write_text("".join(f"word{i}\n" for i in range(100_000)))
    tensor = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    names = [*(f"lora_unet_{i}.alpha" for i in range(200_000)), "lora_unet_7.alpha"]
    header = ("{" + ",".join(f'"{name}":{tensor}' for name in names) + "}").encode()
    (folder / f"{LORA}.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    flags = {
        "wildcard-dir": folder,
        "lora-dir": folder,
        "a1111-api": "on",
        "trusted-proxies": 1,
        "live": "off",
        "cache-dir": folder / "cache",  # for the servers that are started later
        "rate-per-address": 100_000,
    }
    return ["app.py", *(f"--{name}={value}" for name, value in flags.items())]
