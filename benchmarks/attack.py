"""`python -m benchmarks.attack`: how much one address can harm a server and its other visitors.

The server draws with the bundled miniature, in a separate process. An attacker at 127.0.0.2 sends
each kind of request in `ATTACKS`, as fast as it is answered, for the given minutes in total. During
each attack a visitor at 127.0.0.1 keeps asking for pictures, and for the model's description.
Afterwards the server's memory is compared with that before. Then each attack is repeated for a few
seconds, and the server is told to stop in the middle of it. Writes
`benchmarks/results/<date>-attack.json`; ends with status 1 if a limit below was exceeded.
"""

import argparse
import asyncio
import base64
import io
import itertools
import json
import multiprocessing
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from benchmarks import record
from benchmarks.processes import Instance

ATTACKER = "127.0.0.2"
DRAWN_WITHIN_S = 5.0  # the visitor's picture
DESCRIBED_WITHIN_S = 2.0  # the model, by /v1/model
STOPS_WITHIN_S = 10.0  # after SIGTERM
MAY_KEEP_MB = 50.0
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
    """Post 15 MB with an idempotency key, which makes the server keep the answer."""
    url = f"/gradio_api/queue/join?once={_name()}"
    return (await client.post(url, json={"data": ["x" * 15_000_000]})).status_code


async def bracketed_texts(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Paste a text of settings with 240 kB of brackets, each time in a new session."""
    return await _join(client, functions["of_text"], [_settings_text(240_000)], _name())


async def bracketed_files(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Drop a picture whose settings have 1 MB of brackets."""
    files = {"files": ("a.png", _bracketed_picture(), "image/png")}
    answer = await client.post("/gradio_api/upload", files=files)
    if answer.status_code != 200:
        return answer.status_code
    dropped = {"path": answer.json()[0], "meta": {"_type": "gradio.FileData"}}
    return await _join(client, functions["of_picture"], [dropped], _name())


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
    return await _join(client, functions["length"], ["a red star", "(none)", False], _name())


async def unread_answers(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Start a generation through Gradio's API, and never fetch its answer."""
    answer = await client.post("/gradio_api/call/v2/generate", json={"prompt": "a", "steps": 1})
    return answer.status_code


async def followers(client: httpx.AsyncClient, functions: dict[str, int]) -> int:
    """Follow a request that is being drawn, and never fetch the updates."""
    request = {"prompt": "a", "num_inference_steps": 50, "id": _name(), "keep": True}
    async with client.stream("POST", "/v1/generate", json=request):
        return await _join(client, functions["again"], [request["id"], None], _name())


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


def attack(url: str, how: Attack, seconds: float) -> Counter[int]:
    """Attack a server for `seconds`.

    Returns:
        How often each status was answered; 0 counts idle connections, -1 those that failed.
    """
    functions = functions_of(url)
    answers: Counter[int] = Counter()
    ends = time.monotonic() + seconds

    async def go_on(client: httpx.AsyncClient) -> None:
        while time.monotonic() < ends:
            try:
                answers[await how(client, functions)] += 1
            except (httpx.HTTPError, OSError):
                answers[-1] += 1
                await asyncio.sleep(0.05)

    async def begin() -> None:
        limits = httpx.Limits(max_connections=None)
        transport = httpx.AsyncHTTPTransport(local_address=ATTACKER, limits=limits)
        async with httpx.AsyncClient(transport=transport, base_url=url, timeout=30) as client:
            await asyncio.gather(*(go_on(client) for _ in range(ATTACKS[how])))

    asyncio.run(begin())
    return answers


def attacked(
    attackers: ProcessPoolExecutor, url: str, how: Attack, seconds: float
) -> dict[str, Any]:
    """Attack from another process, and draw as a visitor meanwhile.

    Returns:
        The attacker's answers by status, and the most seconds that the visitor waited.
    """
    attacking = attackers.submit(attack, url, how, seconds)
    waited = list(visits(url, attacking))
    return {
        "answers": {str(status): count for status, count in sorted(attacking.result().items())},
        "visitor_waited_s": round(max(drawn_s for drawn_s, _ in waited), 2),
        "model_took_s": round(max(told_s for _, told_s in waited), 2),
    }


def visits(url: str, until: Future[Any]) -> Iterator[tuple[float, float]]:
    """Draw through the API and through the page's route in turns, and ask for the model.

    Yields:
        The seconds of both.
    """
    with httpx.Client(base_url=url, timeout=60) as client:
        for draw in itertools.cycle((_draw_by_api, _draw_by_page)):
            if until.done():
                return
            began = time.monotonic()
            draw(client)
            drawn_at = time.monotonic()
            client.get("/v1/model").raise_for_status()
            yield drawn_at - began, time.monotonic() - drawn_at
            time.sleep(0.5)


def _draw_by_api(client: httpx.Client) -> None:
    answer = client.post("/v1/generate", json={"prompt": "a star", **PICTURE})
    assert answer.status_code == 200, answer.text
    assert "event: done" in answer.text


def _draw_by_page(client: httpx.Client) -> None:
    """Draw through Gradio's queue, in which every waiting page takes a slot."""
    fields = {"prompt": "a star", "steps": 4, "seed": 7}
    call = client.post("/gradio_api/call/v2/generate", json=fields)
    assert call.status_code == 200, call.text
    answer = client.get(f"/gradio_api/call/v2/generate/{call.json()['event_id']}")
    assert "event: complete" in answer.text, answer.text


def functions_of(url: str) -> dict[str, int]:
    """Return the `fn_index` of each function of the page, by its API name."""
    config = httpx.get(f"{url}/config", timeout=60).json()
    return {each["api_name"]: each["id"] for each in config["dependencies"]}


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
        "rate-per-address": 100_000,
    }
    return ["app.py", *(f"--{name}={value}" for name, value in flags.items())]


def run(instance: Instance, seconds: float) -> dict[str, Any]:
    """Run every attack, for `seconds` in total, and report its effect."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as attackers:
        seconds_each = seconds / len(ATTACKS)
        for how in ATTACKS:  # a warm-up: caches that are filled once are not a leak
            attacked(attackers, instance.url, how, min(2.0, seconds_each))
        before = instance.usage().memory_mb
        report: dict[str, Any] = {"memory_before_mb": round(before)}
        for how in ATTACKS:
            effect = attacked(attackers, instance.url, how, seconds_each)
            report[how.__name__] = effect | {"memory_mb": round(instance.usage().memory_mb)}
            print(how.__name__, report[how.__name__], flush=True)
    report["memory_after_mb"] = round(instance.usage().memory_mb)
    return report


def stops(instance: Instance, how: Attack) -> float:
    """Start a server, and return the seconds that it takes to stop during an attack."""
    instance.start()
    instance.wait_until_ready()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as attackers:
        attacking = attackers.submit(attack, instance.url, how, 4.0)
        time.sleep(3.0)
        began = time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            instance.stop(60)
        took_s = time.monotonic() - began
        attacking.result()
    return round(took_s, 2)


def main() -> None:
    """Run the attacks, record them, and fail if a limit was exceeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        instance = Instance(program(Path(folder)), Path(folder) / "log")
        instance.start()
        try:
            instance.wait_until_ready()
            report = run(instance, 60 * options.minutes)
        finally:
            instance.stop()
        for how in ATTACKS:
            report[how.__name__]["stopped_s"] = stops(instance, how)
    record.write("attack", report)
    sys.exit(json.dumps(faults) if (faults := found_wrong(report)) else 0)


def found_wrong(report: dict[str, Any], patience: float = 1.0) -> list[str]:
    """Return a sentence for each limit that was exceeded; `patience` multiplies those of times."""
    limits = {
        "visitor_waited_s": (DRAWN_WITHIN_S, "a visitor's picture took"),
        "model_took_s": (DESCRIBED_WITHIN_S, "/v1/model took"),
        "stopped_s": (STOPS_WITHIN_S, "the server's end took"),
    }
    faults = [
        f"during {name} {said} {effect[key]} s"
        for name, effect in report.items()
        for key, (most, said) in limits.items()
        if isinstance(effect, dict) and effect.get(key, 0) > patience * most
    ]
    kept = report["memory_after_mb"] - report["memory_before_mb"]
    if kept > MAY_KEEP_MB:
        faults.append(f"{kept} MB of memory were kept")
    return faults


if __name__ == "__main__":
    main()
