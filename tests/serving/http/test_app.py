"""The HTTP API as clients use it: a real server, real connections, the real openai client."""

import asyncio
import base64
import io
import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
import openai
import pytest
from anyio import BrokenResourceError
from PIL import Image as Pillow

from serving.generator import Done, Image, Preview, Request
from serving.generators import local
from serving.generators.local import LocalDrawer
from serving.http import app, calls, limits, middleware, timeouts
from serving.messages import Code, Message
from serving.metrics import Observer
from serving.requests.lifecycle import RequestLifecycle
from serving.requests.rate_limits import Buckets
from serving.requests.record import Record
from serving.requests.registry import Limits
from tests.calls import BODY, Background, generate, metric, post, read
from tests.fake_pipeline import FakePipeline
from tests.generators import local_generator
from tests.web import Site, serve, wait_until


def drawing_by(kind: type[LocalDrawer]) -> RequestLifecycle:
    """Return a generator with a drawer of this kind."""
    drawer = kind(FakePipeline().as_pipeline(), Limits(), Observer())
    return RequestLifecycle(drawer, Limits(), Observer())


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve() as site:
        yield site


# --- our own API ---


def test_events_up_to_the_pictures(site: Site):
    events = generate(site, id="0123456789abcdef", images=2, size="8x8")
    assert {fields["id"] for _, fields in events} == {"0123456789abcdef"}
    names = [name for name, _ in events]
    assert names[0] == "started"
    assert names[-3:] == ["image", "image", "done"]
    image = events[-3][1]
    assert (image["index"], image["seed"], image["settings"]["prompt"]) == (0, 7, "a red star")
    with Pillow.open(io.BytesIO(base64.b64decode(image["png"]))) as picture:
        assert picture.size == (8, 8)

    with httpx.stream("GET", f"{site.url}/v1/requests/0123456789abcdef") as again:
        assert list(read(again))[-3:] == events[-3:]


@pytest.mark.parametrize("path", ["/v1/generate", "/v1/images/generations"])
def test_variations_and_guidance_that_ends(site: Site, path: str):
    body = {"prompt": "a star", "guidance_until": 0.5, "variation_strength": 0.25}
    assert post(site, body | {"variation_seed": 9}, path).status_code == 200
    asked = site.pipe.calls[-1]
    assert (asked["guidance_until"], asked["variation_strength"]) == (0.5, 0.25)
    assert asked["variation_seed"] == 9
    assert post(site, body, path).status_code == 200
    assert site.pipe.calls[-1]["variation_seed"] != 9
    assert post(site, body | {"variation_strength": 1.5}, path).status_code == 400


def test_every_size_there_is():
    pipe = FakePipeline().as_pipeline()
    generator = local_generator(pipe, Limits(), Observer(), more_sizes=((16, 8),))
    with serve(generator=generator) as site:
        wait_until(lambda: not generator.facts.coming_sizes)
        assert httpx.get(f"{site.url}/v1/model").json()["more_sizes"] == [[16, 8]]
        for size in ("16x8", "8x8", "auto"):
            body = {"prompt": "a star", "size": size}
            answer = post(site, body, "/v1/images/generations").json()
            assert answer["size"] == ("8x8" if size == "auto" else size)
            with Pillow.open(io.BytesIO(base64.b64decode(answer["data"][0]["b64_json"]))) as drawn:
                assert "{}x{}".format(*drawn.size) == answer["size"]
        answer = post(site, {"prompt": "a star", "size": "9x9"}, "/v1/images/generations")
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "width is 9; expected 64 to 2048"
        answer = post(site, {"prompt": "a star", "size": "9x9"})
        assert answer.json()["error"]["message"] == "size is 9x9; here it can only be 8x8 or 16x8"


def test_previews_are_sent_on_request(site: Site):
    assert "preview" not in dict(generate(site))
    (jpeg,) = dict(generate(site, previews=True, images=1))["preview"]["jpegs"]
    with Pillow.open(io.BytesIO(base64.b64decode(jpeg))) as picture:
        assert picture.format == "JPEG"


def test_length_of_a_prompt(site: Site):
    found = post(site, {"prompt": "one two three four five six seven"}, "/v1/length")
    length = {"tokens": 9, "limit": 8, "left_out": "seven", "chunks": 1}
    assert found.json().items() >= length.items()
    assert post(site, {"prompt": "x" * 2001}, "/v1/length").status_code == 400


def test_parts_of_prompts_without_effect_are_named(site: Site):
    asked = {"prompt": "a <lora:gone:1> <hypernet:b:1> __c__ # d", "prompt_syntax": "a1111"}
    tags = ["<lora:gone:1>", "<hypernet:b:1>"]
    assert post(site, asked, "/v1/length").json()["reading"]["ignored"] == tags
    image = dict(generate(site, **asked, images=1))["image"]
    assert image["ignored"] == [*tags, "__c__", "the end"]
    assert image["settings"]["prompt"] == "a __c__"
    plain = dict(generate(site, prompt=asked["prompt"], images=1))["image"]
    assert (plain["ignored"], plain["settings"]["prompt"]) == (["the end"], asked["prompt"])


def test_how_a_prompt_is_read(site: Site):
    asked = {"prompt": "(red:1.5) [cat:big dog:2] {a|b} <lora:pixel:0.8>", "prompt_syntax": "a1111"}
    found = post(site, asked, "/v1/length").json()  # the model has 4 steps
    reading = found["reading"]
    assert [each["steps"] for each in reading["texts"]] == [[1, 2], [3, 4]]
    assert reading["texts"][0]["fragments"] == [
        [{"text": "red", "weight": 1.5}, {"text": " cat a", "weight": 1.0}]
    ]
    assert (reading["loras"], reading["ignored"]) == ({}, ["<lora:pixel:0.8>"])  # it is not there
    assert reading["lists"] == ["{a|b}"]
    found = post(site, asked | {"num_inference_steps": 1}, "/v1/length").json()
    assert [each["steps"] for each in found["reading"]["texts"]] == [[1]]
    plain = post(site, {"prompt": asked["prompt"]}, "/v1/length").json()["reading"]
    (whole,) = plain["texts"]
    assert whole["fragments"] == [[{"text": asked["prompt"], "weight": 1.0}]]
    assert plain["loras"] == {}
    many = post(
        site,
        {"prompt": "[a|b|c|d|e]", "prompt_syntax": "a1111", "num_inference_steps": 5},
        "/v1/length",
    )
    assert "5 different texts" in many.json()["error"]["message"]
    unknown = post(site, {"prompt": "a", "prompt_syntax": "compel"}, "/v1/length")
    assert "expected 'plain' or 'a1111'" in unknown.json()["error"]["message"]
    for steps in (0, 10**6, "4"):
        refused = post(site, {"prompt": "a", "num_inference_steps": steps}, "/v1/length")
        assert refused.status_code == 400


class AtOnce(RequestLifecycle):
    """A generator that cancels every request as soon as it is submitted."""

    def __init__(self, pipe: FakePipeline, limits: Limits) -> None:
        super().__init__(LocalDrawer(pipe.as_pipeline(), limits, Observer()), limits, Observer())

    async def submit(self, request: Request) -> None:
        await super().submit(request)
        asyncio.get_running_loop().call_soon(self.cancel, request.id)


def test_a_request_that_ends_at_once_gets_its_ending_without_kept_results():
    pipe = FakePipeline(held=True)
    with serve(generator=AtOnce(pipe, Limits(kept=0))) as site:
        name, fields = generate(site)[-1]
        assert (name, fields["kind"]) == ("error", "cancelled")
        pipe.let_all()


def test_failure_is_an_event(site: Site):
    name, fields = generate(site, prompt="exhaust")[-1]
    assert (name, fields["kind"]) == ("error", "out_of_memory")
    assert generate(site)[-1][0] == "done"


def test_cancel_and_come_back():
    with serve(held=True) as site:
        url = f"{site.url}/v1/generate"
        with httpx.stream("POST", url, json=BODY, timeout=30) as sent:
            where = site.url + sent.headers["content-location"]
            request_id = where.rpartition("/")[2]
            with httpx.stream("GET", where, timeout=30) as other:
                assert next(read(other))[0] == "started"
                assert httpx.delete(where).json() == {"id": request_id}
                assert list(read(sent))[-1][1]["kind"] == "cancelled"
        assert post(site, BODY | {"id": request_id}).json()["error"]["code"] == "duplicate"


@pytest.mark.lasting
@pytest.mark.parametrize("keep", [False, True])
def test_closing_the_connection_frees_the_place(keep: bool):
    with serve(held=True, limits=Limits(grace_s=0.5 if keep else 60)) as site:
        url = f"{site.url}/v1/generate"
        with httpx.stream("POST", url, json=BODY | {"keep": keep}, timeout=30) as sent:
            next(read(sent))
        wait_until(lambda: metric(site, 'sdxl_requests_total{outcome="abandoned"}') == 1)
        assert metric(site, "sdxl_inflight") == 0


def test_hanging_up_on_the_openai_api_frees_the_place():
    body = json.dumps({"prompt": "a star"}).encode()
    head = b"POST /v1/images/generations HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    with serve(held=True) as site:
        with connected(site) as client:
            client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            wait_until(lambda: metric(site, "sdxl_inflight") == 1)
        wait_until(lambda: metric(site, 'sdxl_requests_total{outcome="abandoned"}') == 1)


def test_a_full_queue_is_429_with_a_time_to_come_back():
    with serve(held=True, limits=Limits(max_waiting=1)) as site:
        threads = [threading.Thread(target=generate, args=(site,)) for _ in range(2)]
        threads[0].start()
        wait_until(lambda: metric(site, "sdxl_inflight") == 1)
        assert httpx.get(f"{site.url}/readyz").status_code == 200
        threads[1].start()
        wait_until(lambda: metric(site, "sdxl_queue_depth") == 1)
        refused = post(site, BODY)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "5"  # the default, as nothing was drawn yet
        assert refused.json()["error"] == {
            "message": str(Message(Code.FULL, {"wait_s": None})),
            "type": "rate_limit_error",
            "param": None,
            "code": "full",
            "message_code": "full",
            "message_params": {"places": 1, "wait_s": None},
        }
        assert httpx.get(f"{site.url}/readyz").status_code == 503
        assert httpx.get(f"{site.url}/healthz").status_code == 200
        site.pipe.let_all()
        for thread in threads:
            thread.join(60)
        assert metric(site, 'sdxl_requests_total{outcome="done"}') == 2


def test_a_crowd_is_refused_and_health_is_still_answered(monkeypatch: pytest.MonkeyPatch):
    """With too many calls, new ones are refused, but probes are answered.

    Every open page holds a call. If a probe failed for that, the restart would end all of them.
    """
    monkeypatch.setattr(app, "MAX_CALLS", 3)
    with serve(held=True) as site, ExitStack() as calls:
        url = f"{site.url}/v1/generate"
        sent = calls.enter_context(httpx.stream("POST", url, json=BODY, timeout=30))
        where = site.url + sent.headers["content-location"]
        for _ in range(2):
            assert calls.enter_context(httpx.stream("GET", where, timeout=30)).status_code == 200
        for refused in (
            post(site, BODY),
            post(site, BODY, "/v1/images/generations"),
            httpx.get(f"{site.url}/v1/model", headers={"Origin": "https://example.org"}),
        ):
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["code"] == "unavailable"
            assert "x-content-type-options" in refused.headers
        for path in ("/healthz", "/readyz", "/metrics"):
            assert httpx.get(site.url + path).status_code == 200
        calls.close()
        wait_until(lambda: httpx.get(f"{site.url}/v1/model").status_code == 200)


@contextmanager
def full_queue(**drawn_with: str | int) -> Iterator[tuple[Site, FakePipeline]]:
    """Serve while a request is drawn with some settings and another fills the queue.

    An evaluation takes 3.5 s. Both are drawn to their ends afterwards.
    """
    pipe, observer = FakePipeline(held=True), Observer()
    generator = local_generator(pipe.as_pipeline(), Limits(max_waiting=1), observer)
    generator._pace.observe(evaluations=10, seconds=35.0)
    with serve(generator=generator, observer=observer) as site:
        drawn = Background(site, **drawn_with)
        wait_until(lambda: pipe.calls)
        waiting = Background(site)
        wait_until(lambda: metric(site, "sdxl_queue_depth") == 1)
        yield site, pipe
        pipe.let_all()
        assert [each.finished()[-1][0] for each in (drawn, waiting)] == ["done"] * 2


def test_retry_after_is_when_a_place_is_free():
    with full_queue(num_inference_steps=8) as (site, pipe):
        assert post(site, BODY).headers["retry-after"] == "28"  # eight steps of 3.5 s
        pipe.let_step(3)
        wait_until(lambda: post(site, BODY).headers.get("retry-after") == "18")  # five steps


def test_a_wait_counts_the_evaluations_of_each_request():
    with full_queue(scheduler="heun") as (site, _):
        assert post(site, BODY).headers["retry-after"] == "25"  # seven evaluations of 3.5 s


@pytest.mark.lasting
def test_stuck_devices_fail_the_health_check(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local, "_STUCK", 0.01)  # noticed long before the deadline
    with serve(held=True, limits=Limits(running_s=60.0)) as site, ThreadPoolExecutor() as pool:
        health = f"{site.url}/healthz"
        assert httpx.get(health).status_code == 200
        asked = pool.submit(generate, site)
        wait_until(lambda: httpx.get(health).json() == {"status": "stuck"})
        assert httpx.get(health).status_code == 503
        assert httpx.get(f"{site.url}/readyz").status_code == 503
        load = httpx.get(f"{site.url}/v1/model").json()["load"]
        assert (load["accepting"], load["stuck"]) == (False, True)
        assert post(site, BODY).json()["error"]["code"] == "unavailable"
        site.pipe.let_all()
        assert asked.result()[-1][0] == "done"
        assert httpx.get(health).status_code == 200


# --- invalid requests ---


@pytest.mark.parametrize(
    ("changes", "param", "said"),
    [
        ({"prompt": None}, "prompt", "string"),
        ({"prompt": " "}, "prompt", "prompt is blank"),
        ({"prompt": "x" * 2001}, "prompt", "at most 2000"),
        ({"prompt": ["a"]}, "prompt", "one for each of the 2 pictures"),
        ({"seed": "7"}, "seed", "valid integer"),
        ({"seed": 1.5}, "seed", "valid integer"),
        ({"seed": 2**32}, "seed", "less than or equal to 4294967295"),
        ({"seed": True}, "seed", "valid integer"),
        ({"num_inference_steps": 10**100}, "num_inference_steps", "less than or equal"),
        ({"num_inference_steps": 51}, "num_inference_steps", "expected 1 to 50"),
        ({"guidance_scale": 1e308}, "guidance_scale", "less than or equal to 50"),
        ({"images": 0}, "images", "greater than or equal to 1"),
        ({"size": "8x9"}, "size", "here it can only be 8x8"),
        ({"size": "9" * 50}, "size", "pattern"),
        ({"id": "../../etc/passwd"}, "id", "pattern"),
        ({"scheduler": "deis"}, "scheduler", "here it can only be euler or heun or ddim"),
        ({"scheduler": "x" * 101}, "scheduler", "at most 100"),
        ({"scheduler": "LCM"}, "scheduler", "with this model: prediction_type = 'x' is not supp"),
        ({"scheduler": "DDIM Karras"}, "sigma_schedule", "which scheduler ddim cannot use"),
        ({"sigma_schedule": "beta"}, "sigma_schedule", "here it can only be default or karras"),
        ({"timestep_spacing": "even"}, "timestep_spacing", "linspace or leading or trailing"),
        ({"timesteps": [5, 9]}, "timesteps", "expected up to 50 falling whole numbers from 0 to"),
        ({"timesteps": [1000]}, "timesteps", "whole numbers from 0 to 999"),
        ({"timesteps": [-1]}, "timesteps", "greater than or equal to 0"),
        ({"timesteps": "999"}, "timesteps", "list"),
        ({"timesteps": [9], "scheduler": "ddim"}, "timesteps", "which scheduler ddim cannot use"),
        ({"timesteps": [9], "sigma_schedule": "karras"}, "timesteps", "leave one of them out"),
        ({"eta": 0.5}, "eta", "which scheduler euler cannot use; leave it out, or set scheduler"),
        ({"eta": 2, "scheduler": "ddim"}, "eta", "less than or equal to 1"),
        ({"colour": "red"}, "colour", "not permitted"),
    ],
)
def test_wrong_value(site: Site, changes: dict[str, Any], param: str, said: str):
    refused = post(site, BODY | changes)
    error = refused.json()["error"]
    assert refused.status_code == 400
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert said in error["message"]
    assert len(refused.content) < 1000


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"7", b"\xff\xfe", b'{"prompt": NaN}', b"[" * 50_000, b"9" * 5000],
)
def test_wrong_body(site: Site, content: bytes):
    headers = {"Content-Type": "application/json"}
    for path in ("/v1/generate", "/v1/images/generations"):
        refused = httpx.post(site.url + path, content=content, headers=headers, timeout=30)
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["message"]


@pytest.mark.lasting
@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("/v1/generate", limits.MAX_PICTURE_BODY_BYTES),
        ("/v1/images/generations", limits.MAX_BODY_BYTES),
    ],
)
@pytest.mark.parametrize("over", [1, 2**24])
@pytest.mark.parametrize("stated", [True, False])
def test_large_body(site: Site, path: str, most: int, over: int, stated: bool):
    headers = {"Content-Type": "application/json"}

    def send(size: int) -> httpx.Response:
        content = json.dumps(BODY).encode().ljust(size)
        body = content if stated else iter([content])
        return httpx.post(site.url + path, content=body, headers=headers, timeout=30)

    assert send(most).status_code == 200
    refused = send(most + over)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "http_413")
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert f"at most {most // 1024} KiB are possible" in refused.json()["error"]["message"]


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PUT"])
@pytest.mark.parametrize("path", ["/v1/", "/v1/audio", "/v1/images/masks", "/v1/model/a"])
def test_no_route_below_v1(site: Site, method: str, path: str):
    refused = httpx.request(method, site.url + path)
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "http_404")


@pytest.mark.parametrize("path", ["/v1/generate", "/v1/images/generations"])
def test_an_unexpected_error_has_the_usual_format(path: str, monkeypatch: pytest.MonkeyPatch):
    async def fail(_: RequestLifecycle, request: Request) -> None:
        raise KeyError("a secret")

    monkeypatch.setattr(RequestLifecycle, "submit", fail)
    with serve() as site:
        failed = post(site, {"prompt": "a star"}, path)
    assert failed.status_code == 500
    assert failed.json()["error"] == {
        "message": str(Message(Code.BROKEN)),
        "type": "server_error",
        "param": None,
        "code": "failed",
        "message_code": "broken",
        "message_params": {},
    }


def test_unknown_request(site: Site):
    for method in ("GET", "DELETE"):
        refused = httpx.request(method, f"{site.url}/v1/requests/{'x' * 24}")
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unknown")
        assert httpx.request(method, f"{site.url}/v1/requests/short").status_code == 400


@pytest.mark.parametrize(
    "head", [b"", b"POST /v1/generate HTTP/1.1\r\n", b"GET /healthz HTTP/1.1\r\nHost: a\r\nX-A: "]
)
def test_slow_headers(head: bytes):
    with serve() as site, connected(site) as slow:
        slow.sendall(head)
        wait_until(lambda: site.connections)
        site.skip(timeouts.HEAD_WITHIN_S - 1)
        assert site.connections
        site.skip(1)
        assert slow.recv(100) == b""


def test_a_request_that_comes_early_has_as_much_time():
    """A pipelined request, sent before the previous answer, is drawn to its end."""
    body = json.dumps(BODY).encode()
    first = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
    second = b"POST /v1/generate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    with serve(held=True) as site, connected(site) as client:
        client.sendall(first + second + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: site.pipe.calls)
        site.skip(timeouts.HEAD_WITHIN_S + 1)
        site.pipe.let_all()
        answer = b""
        while b"event: done" not in answer and (part := client.recv(2**16)):
            answer += part
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert b"event: done" in answer


MANY = [
    b"GET /v1/model HTTP/1.1\r\nHost: a\r\n" + b"a:\r\n" * 10_000 + b"\r\n",
    b"GET /v1/model?" + b"a&" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
]


@pytest.mark.parametrize("head", [*MANY, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n" + MANY[0]])
def test_heads_that_would_take_long_are_refused(head: bytes):
    with serve() as site, connected(site) as client:
        client.sendall(head)
        answer = b""
        while part := client.recv(2**16):
            answer += part
    assert answer.rpartition(b"HTTP/1.1 ")[2].startswith(b"400 ")


def test_bodies_in_very_many_small_parts_are_cut_off():
    """Each part costs the event loop as much as a large one; some small ones are usual."""
    head = b"POST /v1/generate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    head += b"Transfer-Encoding: chunked\r\n\r\n"
    chunks = [b"1\r\n%c\r\n" % each for each in json.dumps(BODY).encode()]
    with serve() as site:
        with connected(site) as client:
            client.sendall(head + b"".join(chunks) + b"0\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        with connected(site) as client:
            client.sendall(head)
            with suppress(ConnectionError):
                client.sendall(b"1\r\n \r\n" * 10_000)
                assert client.recv(100) == b""
        wait_until(lambda: not site.connections)


def connected(site: Site) -> socket.socket:
    """Return a connection with a small receive buffer."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)
    client.settimeout(60)
    client.connect(("127.0.0.1", int(site.url.rpartition(":")[2])))
    return client


class Large(LocalDrawer):
    """A drawer of pictures larger than the system's buffers for a client."""

    async def draw(self, record: Record) -> None:
        for index in range(2):
            self.requests.publish(record, Image(index, b"\x89PNG" + bytes(12 * 2**20), 7, {}))
        self.requests.publish(record, Done())


def taken_slowly(client: socket.socket) -> int:
    """Read slowly, with pauses, until the connection ends; return the number of bytes read."""
    taken, pauses = 0, 0
    with suppress(ConnectionError):
        while part := client.recv(2**20):
            taken += len(part)
            if taken > pauses * 2**21:
                pauses += 1
                time.sleep(0.1)
    return taken


@pytest.mark.lasting
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("takes", [True, False])
def test_only_a_client_that_reads_nothing_is_cut_off(
    stream: bool, takes: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(timeouts, "TAKE_WITHIN_S", 0.7)
    body = json.dumps({"prompt": "a star", "n": 2, "stream": stream}).encode()
    head = b"POST /v1/images/generations HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    with serve(generator=drawing_by(Large)) as site:
        connections = site.server.server_state.connections
        for attempts_left in (2, 1, 0):
            with connected(site) as client, monkeypatch.context() as patch:
                wait_until(lambda: len(connections) == 1)
                patch.setattr(timeouts, "HEAD_WITHIN_S", 0.3)
                client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                if not takes:
                    wait_until(lambda: not connections)
                    return
                # The test itself may read nothing for a moment on a busy machine, hence the retry.
                if taken_slowly(client) > 32 * 2**20:
                    return
            wait_until(lambda: not connections)
            assert attempts_left


def test_slow_body():
    head = b"POST /v1/generate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    with serve() as site, connected(site) as slow:
        slow.sendall(head + b'Content-Length: 50\r\n\r\n{"prom')
        wait_until(lambda: any(each.cycle for each in site.connections))
        site.skip(limits.BODY_WITHIN_S - 1)
        assert select.select([slow], [], [], 0)[0] == []
        site.skip(1)
        answer = slow.recv(1000)
        assert b"413" not in answer
        assert not answer or b" 400 " in answer or b" 408 " in answer


def test_only_errors_of_departed_clients_are_ignored():
    def raising(error: Exception) -> middleware.Departures:
        async def app(*_: Any) -> None:
            raise error

        return middleware.Departures(app)

    nothing: Any = None
    for gone in (BrokenResourceError(), ExceptionGroup("", [BrokenResourceError()])):
        asyncio.run(raising(gone)(nothing, nothing, nothing))
    with pytest.raises(ExceptionGroup):
        asyncio.run(raising(ExceptionGroup("", [OSError()]))(nothing, nothing, nothing))


# --- keys, addresses and origins ---


def test_keys():
    with serve(keys=["first key", "second"]) as site:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "first key"}):
            for refused in (
                post(site, BODY, headers=headers),
                post(site, BODY, "/v1/images/generations", headers=headers),
                httpx.get(f"{site.url}/v1/model", headers=headers),
                httpx.get(f"{site.url}/v1/requests/{'x' * 24}", headers=headers),
                httpx.delete(f"{site.url}/v1/requests/{'x' * 24}", headers=headers),
            ):
                assert refused.status_code == 401
                assert refused.json()["error"]["code"] == "unauthorised"
        headers = {"Authorization": "Bearer second"}
        assert post(site, BODY, headers=headers).status_code == 200
        assert httpx.get(f"{site.url}/healthz").status_code == 200


def test_rate_by_address_behind_one_trusted_proxy():
    with serve(limits=Limits(rate_per_address=2), trusted_proxies=1) as site:

        def status(forwarded: str) -> int:
            return post(site, BODY, headers={"X-Forwarded-For": forwarded}).status_code

        assert [status("1.1.1.1") for _ in range(3)] == [200, 200, 429]
        assert status("9.9.9.9, 1.1.1.1") == 429  # an entry that a visitor invents does not count
        assert status("1.1.1.1, 2.2.2.2") == 200


def test_one_network_of_ipv6_counts_as_one_address():
    with serve(limits=Limits(rate_per_address=2), trusted_proxies=1) as site:

        def ask(address: str) -> int:
            return post(site, BODY, headers={"X-Forwarded-For": address}).status_code

        networks = ["2001:db8:0:1::1", "2001:db8:0:1:a:b:c:d", "2001:db8:0:1::2"]
        assert [ask(each) for each in networks] == [200, 200, 429]
        assert ask("2001:db8:0:2::1") == 200
        assert [ask("::ffff:192.0.2.1"), ask("192.0.2.1"), ask("192.0.2.1")] == [200, 200, 429]


def test_rate_by_address_behind_two_trusted_proxies():
    with serve(limits=Limits(rate_per_address=1), trusted_proxies=2) as site:

        def status(forwarded: str) -> int:
            return post(site, BODY, headers={"X-Forwarded-For": forwarded}).status_code

        assert status("1.1.1.1, 10.0.0.1") == 200
        assert status("9.9.9.9, 1.1.1.1, 10.0.0.2") == 429
        assert status("2.2.2.2, 10.0.0.1") == 200


def test_rate_by_session():
    with serve(limits=Limits(rate_per_session=1), keys=["one", "other"]) as site:

        def status(key: str) -> int:
            return post(site, BODY, headers={"Authorization": f"Bearer {key}"}).status_code

        assert [status("one"), status("one"), status("other")] == [200, 429, 200]


def test_forwarded_address_is_not_believed_without_a_proxy():
    with serve(limits=Limits(rate_per_address=1)) as site:
        statuses = [
            post(site, BODY, headers={"X-Forwarded-For": f"1.1.1.{i}"}).status_code
            for i in range(2)
        ]
        assert statuses == [200, 429]


def test_bucket_refills_evenly():
    now = 0.0
    buckets = Buckets(6, clock=lambda: now)
    for _ in range(6):
        assert buckets.wait_s("a") == 0
        buckets.take("a")
    assert buckets.wait_s("a") == pytest.approx(10)
    assert buckets.wait_s("b") == 0
    now = 9.0
    assert buckets.wait_s("a") == pytest.approx(1)
    now = 10.0
    assert buckets.wait_s("a") == 0


def test_headers(site: Site):
    headers = httpx.get(f"{site.url}/healthz").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"].endswith("; frame-ancestors 'self'")
    assert "server" not in headers


def test_a_space_can_be_embedded_by_hugging_face_and_named_sites():
    origin = "https://example.org"
    with serve(on_space=True, cors_origins=[origin]) as site:
        policy = httpx.get(f"{site.url}/healthz").headers["content-security-policy"]
    assert policy.endswith(f"; frame-ancestors 'self' https://huggingface.co {origin}")


def test_only_named_sites_can_use_the_api_from_a_browser():
    with serve(cors_origins=["https://example.org"]) as site:
        for origin, allowed in (("https://example.org", True), ("https://evil.test", False)):
            answer = httpx.get(f"{site.url}/healthz", headers={"Origin": origin})
            assert ("access-control-allow-origin" in answer.headers) is allowed
            assert (origin in answer.headers["content-security-policy"]) is allowed
            assert answer.headers["vary"] == "Origin"
        assert httpx.get(f"{site.url}/healthz").headers["vary"] == "Origin"


def test_sites_below_a_name_can_embed_the_page_and_not_use_the_api():
    headers = {"Origin": "https://a.example.org", "Sec-Fetch-Site": "cross-site"}
    with serve(cors_origins=["https://*.example.org"]) as site:
        answer = httpx.get(f"{site.url}/healthz", headers=headers)
        refused = httpx.post(f"{site.url}/v1/generate", headers=headers)
    policy = answer.headers["content-security-policy"]
    assert policy.endswith("; frame-ancestors 'self' https://*.example.org")
    assert "access-control-allow-origin" not in answer.headers
    assert refused.status_code == 403


# --- stopping ---


def test_graceful_stop():
    with serve(held=True, stop_within_s=50) as site:
        running = Background(site)
        wait_until(lambda: metric(site, "sdxl_inflight") == 1)
        queued = Background(site)
        wait_until(lambda: metric(site, "sdxl_queue_depth") == 1)
        site.stop()
        assert queued.finished()[-1][1]["kind"] == "stopping"
        refused = post(site, BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "stopping")
        assert httpx.get(f"{site.url}/readyz").status_code == 503
        site.pipe.let_all()
        assert running.finished()[-1][0] == "done"
        site.thread.join(60)
        assert not site.thread.is_alive()


@pytest.mark.lasting
def test_stop_has_a_limit():
    with serve(held=True, stop_within_s=0.2) as site:
        running = Background(site)
        wait_until(lambda: metric(site, "sdxl_inflight") == 1)
        site.stop()
        assert running.finished()[-1][1]["kind"] == "stopping"
        site.thread.join(60)
        assert not site.thread.is_alive()


# --- metrics and descriptions ---


def test_metrics():
    with serve() as site:
        generate(site)
        generate(site, prompt="break")
        post(site, BODY | {"seed": -1})
        assert metric(site, 'sdxl_requests_total{outcome="done"}') == 1
        assert metric(site, 'sdxl_requests_total{outcome="failed"}') == 1
        assert metric(site, "sdxl_images_total") == 2
        assert metric(site, "sdxl_queue_wait_seconds_count") == 2
        assert metric(site, 'sdxl_stage_duration_seconds_count{stage="denoise"}') == 1
        assert metric(site, "sdxl_build_info") == 1
        assert metric(site, 'sdxl_compile_seconds{cache="hit"}') == 0.5
        assert metric(site, 'sdxl_compile_seconds{cache="miss"}') == 7
        assert "a red star" not in httpx.get(f"{site.url}/metrics").text


def test_log_has_no_prompts(caplog: pytest.LogCaptureFixture):
    with serve() as site, caplog.at_level("INFO", "serving"):
        generate(site, id="0123456789abcdef")
    records = (vars(record) for record in caplog.records if record.message == "request")
    fields = next(records)["fields"]
    assert fields["request_id"] == "0123456789abcdef"
    assert fields["outcome"] == "done"
    assert {"wait_ms", "denoise_ms", "finish_ms", "total_ms"} <= fields.keys()
    assert "prompt" not in fields
    assert "a red star" not in caplog.text


def test_openapi_names_the_routes(site: Site):
    paths = httpx.get(f"{site.url}/openapi.json").json()["paths"]
    assert {"/v1/generate", "/v1/images/generations", "/healthz", "/readyz"} <= paths.keys()


# --- the OpenAI Images API, with OpenAI's own client ---


@pytest.fixture(scope="module")
def client(site: Site) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0)


def test_openai_pictures(client: openai.OpenAI):
    answer = client.images.generate(
        prompt="a red star",
        n=2,
        size="8x8",  # type: ignore[arg-type]
        model="stand-in",
        response_format="b64_json",
        extra_body={"seed": 7, "num_inference_steps": 2},
    )
    assert answer.data is not None
    assert len(answer.data) == 2
    for seed, image in enumerate(answer.data, start=7):
        with Pillow.open(io.BytesIO(base64.b64decode(image.b64_json or ""))) as picture:
            assert picture.getpixel((0, 0)) == (seed, 0, 0)
    assert answer.size == "8x8"
    one = client.images.generate(prompt="a red star")
    assert one.data is not None
    assert len(one.data) == 1


def test_openai_stream(client: openai.OpenAI):
    stream = client.images.generate(prompt="a red star", stream=True, partial_images=2)
    *_, event = list(stream)
    assert event.type == "image_generation.completed"
    assert base64.b64decode(event.b64_json).startswith(b"\x89PNG")


@pytest.mark.lasting
def test_openai_stream_is_never_silent(monkeypatch: pytest.MonkeyPatch):
    """The stream sends pings while it waits, which OpenAI's client ignores."""
    monkeypatch.setattr(calls, "PAUSE_S", 0.1)
    body = {"prompt": "a star", "stream": True}
    with serve(held=True) as site, ThreadPoolExecutor() as pool:
        client = openai.OpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0)
        drawn = pool.submit(lambda: list(client.images.generate(prompt="a star", stream=True)))
        wait_until(lambda: metric(site, "sdxl_inflight") == 1)
        url = f"{site.url}/v1/images/generations"
        with httpx.stream("POST", url, json=body, timeout=30) as queued:
            lines = queued.iter_lines()
            assert [line for line, _ in zip(lines, range(4), strict=False)] == [": ping", ""] * 2
        wait_until(lambda: metric(site, 'sdxl_requests_total{outcome="abandoned"}') == 1)
        site.pipe.let_all()
        assert [event.type for event in drawn.result()] == ["image_generation.completed"]


class WithPreviews(LocalDrawer):
    """A drawer that publishes three previews and then one picture."""

    async def draw(self, record: Record) -> None:
        while not record.followers:
            await asyncio.sleep(0.01)
        for done in (1, 2, 3):
            self.requests.publish(record, Preview((b"preview %d" % done,)))
            for _ in range(100):  # enough turns of the loop for it to be sent
                await asyncio.sleep(0)
        self.requests.publish(record, Image(0, b"picture", 7, {}))
        self.requests.publish(record, Done())


@pytest.mark.parametrize("wanted", [0, 2])
def test_openai_partial_images(wanted: int):
    with serve(generator=drawing_by(WithPreviews)) as site:
        client = openai.OpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0)
        stream = client.images.generate(prompt="a star", stream=True, partial_images=wanted)
        *partial, completed = list(stream)
    assert base64.b64decode(completed.b64_json) == b"picture"
    assert [base64.b64decode(event.b64_json) for event in partial] == [
        b"preview %d" % (i + 1) for i in range(wanted)
    ]
    assert all(event.type == "image_generation.partial_image" for event in partial)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"n": 11}, "n: Input should be less than or equal to 10"),
        ({"size": "32x32"}, "width is 32; expected 64 to 2048"),
        ({"response_format": "file"}, "response_format: Input should be 'b64_json' or 'url'"),
        ({"output_format": "svg"}, "output_format: Input should be 'png', 'jpeg' or 'webp'"),
        ({"background": "transparent"}, "background: transparent is not possible here"),
        ({"prompt": ""}, "prompt is blank"),
    ],
)
def test_openai_errors(client: openai.OpenAI, wrong: dict[str, Any], said: str):
    with pytest.raises(openai.BadRequestError) as refused:
        client.images.generate(**{"prompt": "a red star"} | wrong)  # type: ignore[call-overload]
    assert said in refused.value.message
    assert refused.value.type == "invalid_request_error"


def test_openai_failures(client: openai.OpenAI):
    with pytest.raises(openai.InternalServerError) as failed:
        client.images.generate(prompt="break")
    assert failed.value.code == "failed"
    assert "secret" not in str(failed.value)
    with pytest.raises(openai.APIError, match="ran out of memory"):
        list(client.images.generate(prompt="exhaust", stream=True))
