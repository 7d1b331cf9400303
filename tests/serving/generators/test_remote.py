"""A front-end and the instances behind it, each a real server, and servers that misbehave."""

import asyncio
import base64
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import httpx
import numpy as np
import pytest
from PIL import Image as Picture
from safetensors.numpy import save_file

from benchmarks.processes import Instance, free_port, front_end
from pipeline import metadata
from pipeline.facts import (
    EmbeddingFacts,
    Facts,
    LoraFacts,
    ModelFacts,
    differences,
    digest_of,
    merged,
)
from pipeline.request import GenerateRequest
from pipeline.text.prompt_syntax import A1111
from pipeline.text.wildcards import digest_of_lists
from serving import waiting
from serving.generator import Done, ErrorKind, Image, Load, Request, RequestError
from serving.generators import backends, local, remote
from serving.generators import client as generator_client
from serving.generators.local import Folders
from serving.generators.watched import LoraFolder
from serving.http.events import HOP_HEADER
from serving.messages import Code, Message
from serving.metrics import Observer
from serving.requests.lifecycle import RequestLifecycle
from serving.requests.registry import Limits
from tests.calls import Background, Event, generate, metric, post, read
from tests.fake_pipeline import FakePipeline
from tests.fleets import MODEL, front_of, pictures
from tests.generators import change_facts, drawer_of, local_generator, remote_generator
from tests.web import Site, raw_server, serve, wait_until

pytestmark = pytest.mark.lasting

ROOT = Path(__file__).parents[3]
ANSWER = json.dumps(asdict(MODEL) | {"load": asdict(Load(0, 0, 32, True))})


def image(**changes: Any) -> str:
    settings = metadata.Settings(
        "a red star",
        "",
        seed=7,
        num_inference_steps=4,
        guidance_scale=5.0,
        width=8,
        height=8,
        model="stand-in",
    )
    said: dict[str, Any] = {"index": 0, "png": "iVBORw==", "seed": 7, "settings": asdict(settings)}
    said |= {name: changes.pop(name) for name in changes.keys() & {*said, "unblurred"}}
    if changes:
        said["settings"] |= changes
    return f"event: image\ndata: {json.dumps(said)}\n\n"


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "HEALTH_S", 0.1)
    monkeypatch.setattr(waiting, "_POLL_S", 0.1)


class Looks:
    """Health checks that have ended, counted by the URL of the instance."""

    def __init__(self, patch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        self._ended = Counter[str]()
        for module in modules:
            patch.setattr(module, "fetch_model", self._fetch)

    async def _fetch(self, client: httpx.AsyncClient, url: str) -> tuple[Facts, Load]:
        try:
            return await generator_client.fetch_model(client, url)
        finally:
            self._ended[url] += 1

    def wait_for(self, url: str, times: int) -> None:
        """Wait until an instance has been looked at some more times."""
        wanted = self._ended[url] + times
        wait_until(lambda: self._ended[url] >= wanted)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch, backends, waiting)


def test_the_same_pictures_as_without_a_front_end():
    with serve() as site, front_of(site.url) as front:
        there, here = generate(site), generate(front)
        assert here[-1][0] == "done"
        assert pictures(here) == pictures(there)
        looks = [dict(generate(each, previews=True))["preview"] for each in (site, front)]
        assert looks[0]["jpegs"] == looks[1]["jpegs"]
        assert [name for name, _ in here].count("started") == 1
        assert site.pipe.calls[0]["seed"] == site.pipe.calls[1]["seed"] == 7


def test_prompts_are_measured_by_an_instance(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(generator_client, "LENGTH_WITHIN_S", 30.0)
    with serve() as site, front_of(site.url) as front:
        asked = {"prompt": "one two three"}
        answers = [httpx.post(f"{each.url}/v1/length", json=asked) for each in (site, front)]
        assert [answer.json()["tokens"] for answer in answers] == [5, 5]
        asked = {"prompt": "[one:two three:2]", "prompt_syntax": "a1111", "num_inference_steps": 2}
        answers = [httpx.post(f"{each.url}/v1/length", json=asked) for each in (site, front)]
        assert [answer.json()["tokens"] for answer in answers] == [3, 3]
        site.stop()
        wait_until(lambda: not site.thread.is_alive())
        assert httpx.post(f"{front.url}/v1/length", json=asked).status_code == 503


def test_application_errors_are_passed_on_and_not_retried():
    with serve() as site, front_of(site.url) as front:
        assert generate(front, prompt="exhaust")[-1][1]["kind"] == "out_of_memory"
        assert generate(front, prompt="break")[-1][1]["kind"] == "failed"
        assert len(site.pipe.calls) == 2
        assert metric(front, "sdxl_retries_total{") == 0
        assert post(front, {"prompt": "a", "size": "9x9"}).status_code == 400


def test_two_instances_share_the_work():
    with serve(held=True) as one, serve(held=True) as other, front_of(one.url, other.url) as front:
        requests = [Background(front) for _ in range(3)]
        wait_until(lambda: len(one.pipe.calls) == len(other.pipe.calls) == 1)
        wait_until(lambda: metric(front, "sdxl_queue_depth") == 1)
        one.pipe.let_all()
        wait_until(lambda: len(one.pipe.calls) == 2)
        other.pipe.let_all()
        assert [request.finished()[-1][0] for request in requests] == ["done"] * 3


@pytest.mark.parametrize("busy", [0, 1])
def test_the_instance_with_least_to_do_is_sent_a_request_first(
    busy: int, monkeypatch: pytest.MonkeyPatch
):
    fetch, running = generator_client.fetch_model, dict[str, list[int]]()

    async def noted(client: httpx.AsyncClient, url: str) -> tuple[Facts, Load]:
        model, load = await fetch(client, url)
        running.setdefault(url, []).append(load.running)
        return model, load

    monkeypatch.setattr(backends, "fetch_model", noted)
    with serve(held=True) as one, serve(held=True) as other, front_of(one.url, other.url) as front:
        busier, idle = (one, other) if busy == 0 else (other, one)
        not_from_here = Background(busier)
        # After a second poll, the front-end has surely stored the result of the first one.
        wait_until(lambda: running[busier.url][-2:] == [1, 1])
        request = Background(front)
        wait_until(lambda: len(one.pipe.calls) + len(other.pipe.calls) == 2)
        assert len(idle.pipe.calls) == 1
        # With the idle instance taken, the busier one is sent the next request.
        next_one = Background(front)
        wait_until(lambda: metric(busier, "sdxl_queue_depth") == 1)
        busier.pipe.let_all()
        idle.pipe.let_all()
        asked = [not_from_here, request, next_one]
        assert [each.finished()[-1][0] for each in asked] == ["done"] * 3


def test_a_request_that_waits_too_long_leaves_its_place():
    with serve(held=True) as site, front_of(site.url, waiting_s=2.0, max_waiting=1) as front:
        drawn = Background(front)
        wait_until(lambda: site.pipe.calls)
        name, fields = generate(front, seed=8)[-1]
        assert (name, fields["kind"]) == ("error", ErrorKind.DEADLINE)
        assert fields["message"] == str(Message(Code.NOT_STARTED, {"seconds": 2.0}))
        wait_until(lambda: metric(front, "sdxl_queue_depth") == 0)
        waits = Background(front, seed=9)  # takes the only place in the queue
        site.pipe.let_all()
        assert [each.finished()[-1][0] for each in (drawn, waits)] == ["done", "done"]
        assert [call["seed"] for call in site.pipe.calls] == [7, 9]


def test_a_request_that_is_drawn_too_long_leaves_its_place():
    with serve(held=True) as site, front_of(site.url, running_s=4.0) as front:
        drawn = Background(front)
        wait_until(lambda: site.pipe.calls)
        waits = Background(front, seed=8)
        name, fields = drawn.finished()[-1]
        assert (name, fields["kind"]) == ("error", ErrorKind.DEADLINE)
        assert fields["message"] == str(Message(Code.NOT_FINISHED, {"seconds": 4.0}))
        wait_until(lambda: metric(site, 'sdxl_requests_total{outcome="abandoned"}') == 1)
        site.pipe.let_all()
        assert waits.finished()[-1][0] == "done"
        assert [call["seed"] for call in site.pipe.calls] == [7, 8]
        for each in (front, site):
            wait_until(lambda each=each: metric(each, "sdxl_inflight") == 0)
        assert metric(site, 'sdxl_requests_total{outcome="abandoned"}') == 1


def test_a_lost_instance_is_replaced_in_mid_request():
    with ExitStack() as stack:
        sites = [stack.enter_context(serve(held=True, stop_within_s=0)) for _ in range(2)]
        front = stack.enter_context(front_of(*(site.url for site in sites)))
        request = Background(front)
        wait_until(lambda: any(site.pipe.calls for site in sites))
        lost, left = sorted(sites, key=lambda site: not site.pipe.calls)
        lost.pipe.let_step(2)
        wait_until(lambda: lost.pipe.steps == 2)
        lost.stop()
        wait_until(lambda: left.pipe.calls)
        left.pipe.let_all()
        events = request.finished()
        assert events[-1][0] == "done"
        assert ("started", 2) in [(name, fields.get("attempt")) for name, fields in events]
        assert [fields["index"] for name, fields in events if name == "image"] == [0, 1]
        assert left.pipe.calls[0]["seed"] == lost.pipe.calls[0]["seed"]
        assert metric(front, "sdxl_retries_total{") == 1
        # The remaining instance goes on alone.
        assert generate(front)[-1][0] == "done"


def test_a_connection_that_breaks_begins_again_and_no_picture_comes_twice():
    with serve() as site:
        whole = generate(site)
        begun = "".join(
            f"event: {name}\ndata: {json.dumps(fields)}\n\n" for name, fields in whole[:-2]
        )
        assert begun.count("event: image") == 1
        with nonsense_server(begun) as broken, front_of(broken, site.url) as front:
            events = generate(front)
            assert metric(front, 'sdxl_retries_total{reason="lost"}') == 1
    assert [fields["attempt"] for name, fields in events if name == "started"][-1] == 2
    assert [fields["index"] for name, fields in events if name == "image"] == [0, 1]
    assert pictures(events) == pictures(whole)
    assert events[-1][0] == "done"


def test_a_connection_that_breaks_after_the_ending_causes_no_retry(monkeypatch: pytest.MonkeyPatch):
    told = generator_client.stream

    async def breaking(*given: Any) -> AsyncGenerator[object]:
        async for event in told(*given):
            yield event
        raise generator_client.BackendError("was lost", "lost")

    monkeypatch.setattr(remote, "stream", breaking)
    with serve() as site, front_of(site.url) as front:
        assert generate(front)[-1][0] == "done"
        wait_until(lambda: httpx.get(f"{front.url}/readyz").status_code == 200)
        assert generate(front, seed=9)[-1][0] == "done"
        assert [call["seed"] for call in site.pipe.calls] == [7, 9]
        assert metric(front, "sdxl_retries_total{") == 0


def test_a_busy_instance_is_asked_again_after_its_retry_time(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
):
    message = Message(Code.TOO_MANY_REQUESTS, {"wait_s": 1.5})
    refusal = RequestError(message, ErrorKind.TOO_MANY, retry_after_s=1.5)
    pipe, observer = FakePipeline(), Observer()
    busy = local_generator(pipe.as_pipeline(), Limits(), observer)
    monkeypatch.setattr(busy._rates, "admit", Mock(side_effect=[None, refusal, None]))
    with serve(generator=busy, observer=observer) as site, front_of(site.url) as front:
        assert generate(front)[-1][0] == "done"
        again = Background(front)
        wait_until(lambda: metric(site, 'sdxl_requests_total{outcome="too_many"}') == 1)
        looks.wait_for(site.url, 3)  # it is free, and used no more for all that
        assert len(pipe.calls) == 1
        front.skip(2)
        events = again.finished()
        assert events[-1][0] == "done"
        assert [name for name, _ in events].count("started") == 1
        assert metric(front, "sdxl_retries_total{") == 0
        assert metric(site, 'sdxl_requests_total{outcome="too_many"}') == 1


@contextmanager
def wide_site(port: int) -> Iterator[Site]:
    pipe = FakePipeline(held=True)
    more = ((16, 8),)
    generator = local_generator(pipe.as_pipeline(), Limits(), Observer(), more_sizes=more)
    pipe.let_step()  # for the first run
    with serve(generator=generator, port=port, stop_within_s=0) as site:
        site.pipe = pipe
        wait_until(lambda: not generator.facts.coming_sizes)
        yield site
        pipe.let_all()


def test_a_size_that_is_no_longer_drawn_blocks_no_other_request(looks: Looks):
    port = free_port()

    with serve() as plain, ExitStack() as stack:
        with wide_site(port) as wide:
            front = stack.enter_context(front_of(wide.url, plain.url))
            offered = lambda: httpx.get(f"{front.url}/v1/model").json()["more_sizes"]  # noqa: E731
            wait_until(lambda: offered() == [[16, 8]])
            wanted = [Background(front, size="16x8") for _ in range(3)]
            wait_until(lambda: len(wide.pipe.calls) == 2)
            # Requests that wait for this size do not hold up the instance that draws another.
            assert generate(front)[-1][0] == "done"
            wide.stop()
            wide.thread.join(60)
        wait_until(lambda: offered() == [])
        assert generate(front)[-1][0] == "done"
        with wide_site(port) as wide:
            wait_until(lambda: len(wide.pipe.calls) == 2)
            looks.wait_for(wide.url, 3)
            assert metric(wide, "sdxl_queue_depth") == 0  # one at a time
            wide.pipe.let_all()
            assert [request.finished()[-1][0] for request in wanted] == ["done"] * 3
        assert all(call["width"] == 8 for call in plain.pipe.calls)


def test_cancelling_reaches_the_instance():
    with serve(held=True) as site, front_of(site.url) as front:
        with httpx.stream("POST", f"{front.url}/v1/generate", json={"prompt": "a"}) as sent:
            wait_until(lambda: site.pipe.calls)
            httpx.delete(front.url + sent.headers["content-location"])
            assert list(read(sent))[-1][1]["kind"] == "cancelled"
        wait_until(lambda: metric(site, "sdxl_inflight") == 0)
        assert metric(site, 'sdxl_requests_total{outcome="abandoned"}') == 1
        assert metric(front, "sdxl_retries_total{") == 0


def test_a_request_waits_for_an_instance_that_comes_back(looks: Looks):
    with ExitStack() as stack:
        port = free_port()
        with serve(held=True, port=port, stop_within_s=0) as site:
            front = stack.enter_context(front_of(site.url))
            request = Background(front)
            wait_until(lambda: site.pipe.calls)
            site.stop()
            site.thread.join(60)
        looks.wait_for(site.url, 5)  # they find no instance
        assert metric(front, "sdxl_inflight") == 1
        with serve(port=port):
            assert request.finished()[-1][0] == "done"


def test_an_instance_that_falls_silent_is_replaced(monkeypatch: pytest.MonkeyPatch):
    impatient = lambda: monkeypatch.setattr(generator_client, "ANSWER_S", 0.5)  # noqa: E731
    with silent_server(impatient) as silent, serve() as site, front_of(silent, site.url) as front:
        events = generate(front)
        assert [fields["attempt"] for name, fields in events if name == "started"][-1] == 2
        assert pictures(events) == pictures(generate(site))
        assert metric(front, 'sdxl_retries_total{reason="silent"}') == 1


def test_requests_of_stuck_devices_are_drawn_elsewhere(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local, "_STUCK", 0.01)  # noticed long before the deadline
    limits = Limits(running_s=60.0)
    with serve(held=True, limits=limits) as stuck, serve() as site:
        stuck.pipe.stuck = True
        with front_of(stuck.url, site.url) as front:
            events = generate(front)
            assert len(stuck.pipe.calls) == len(site.pipe.calls) == 1
            assert pictures(events) == pictures(generate(site))
            assert metric(front, 'sdxl_retries_total{reason="silent"}') == 1
            # No further request is sent to the stuck instance.
            assert generate(front)[-1][0] == "done"
            assert len(stuck.pipe.calls) == 1


def test_an_instance_that_does_not_know_of_stuck_devices_is_used():
    older = json.loads(ANSWER)
    del older["load"]["stuck"]

    async def fetch(url: str) -> Load:
        async with generator_client.Client() as client:
            return (await generator_client.fetch_model(client, url))[1]

    with raw_server(lambda _: http_answer("application/json", json.dumps(older))) as url:
        assert asyncio.run(fetch(url)) == Load(0, 0, 32, accepting=True)


def test_an_instance_that_comes_later_draws_until_it_is_silent_for_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(backends, "LAST_LOOKS", 3)
    caplog.set_level("INFO", "serving")
    wanted = [Request("a red star", None, 5.0, 4, 7) for _ in range(2)]

    async def life(site: Site) -> list[str]:
        generator = remote_generator(generator_client.Client(), [], MODEL, Limits(), Observer())
        await generator.open()
        with pytest.raises(RequestError, match=re.escape(str(Message(Code.UNAVAILABLE)))):
            await generator.submit(wanted[0])
        for _ in range(2):  # an instance announces itself repeatedly
            drawer_of(generator).backends.add(site.url)
        async with asyncio.timeout(60):
            while not generator.load.accepting:
                await asyncio.sleep(0.01)
            await generator.submit(wanted[1])
            drawn = [event async for event in generator.events(wanted[1].id)]
            site.stop()
            while "Removed the instance" not in caplog.text:
                await asyncio.sleep(0.01)
        await generator.close(0)
        return [base64.b64encode(event.png).decode() for event in drawn if isinstance(event, Image)]

    with serve() as site:
        assert pictures(generate(site)) == asyncio.run(life(site))
    assert caplog.text.count("Found the instance") == caplog.text.count("Removed the instance") == 1


def test_a_retry_uses_a_new_id():
    alike = ["0123456789" * 6 + end for end in ("abcd", "abce")]
    with serve(held=True) as site, front_of(site.url) as front:
        requests = [Background(front, id=one) for one in alike]
        site.pipe.let_all()
        assert [request.finished()[-1][0] for request in requests] == ["done", "done"]
        assert metric(front, "sdxl_retries_total{") == 0
    with serve() as site:
        for _ in range(2):  # the second front-end does not know the request
            with front_of(site.url) as front:
                assert generate(front, id=alike[0])[-1][0] == "done"
                assert metric(front, "sdxl_retries_total{") == 0


def test_no_instance_is_a_clear_error():
    with front_of(f"http://127.0.0.1:{free_port()}") as front:
        wait_until(lambda: httpx.get(f"{front.url}/readyz").status_code == 503)
        refused = post(front, {"prompt": "a"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")


def test_an_instance_with_another_model_is_not_used(caplog: pytest.LogCaptureFixture):
    for different in ({"name": "another"}, {"safety_checker": True}, {"screened": True}):
        another = FakePipeline()
        with serve() as site, serve(generator=_other(another, **different)) as other:
            said = f"{other.url} is not used: it draws with "
            with front_of(other.url, site.url) as front:
                wait_until(lambda said=said: said in caplog.text)
                requests = [Background(front) for _ in range(3)]
                assert [each.finished()[-1][0] for each in requests] == ["done"] * 3
        assert another.calls == []
    assert "it draws with name 'another', not 'stand-in'" in caplog.text


@pytest.mark.parametrize(
    ("different", "said"),
    [
        ({"scheduler": "ddim"}, "it draws with scheduler 'ddim', not 'euler'"),
        ({"device": "NVIDIA H200"}, "it draws with device 'NVIDIA H200', not 'cpu'"),
        ({"num_devices": 4}, "it draws with num_devices 4, not 1"),
        ({"version": "jax 0.0.1, float32"}, "it draws with version 'jax 0.0.1, float32', not"),
    ],
    ids=lambda each: "".join(each) if isinstance(each, dict) else "",
)
def test_an_instance_that_draws_differently_gets_no_requests(
    different: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
):
    port, pipe = free_port(), FakePipeline()
    pipe.facts = replace(pipe.facts, **different)
    generator = local_generator(pipe.as_pipeline(), Limits(), Observer())
    with ExitStack() as stack:
        other = stack.enter_context(serve(generator=generator))
        with serve(held=True, port=port, stop_within_s=0) as site:
            front = stack.enter_context(front_of(other.url, site.url))
            wait_until(lambda: said in caplog.text)
            request = Background(front)
            wait_until(lambda: site.pipe.calls)
            assert pipe.calls == []
            site.stop()
            site.thread.join(60)
        # No instance like the first is left, and nothing of the request has been shown yet.
        events = request.finished()
        assert ("started", 2) in [(name, fields.get("attempt")) for name, fields in events]
        assert events[-1][0] == "done"
        assert len(pipe.calls) == 1
        assert f"The instances have changed their model: {said[14:]}" in caplog.text


def test_an_instance_that_does_not_say_how_it_draws_is_not_used(caplog: pytest.LogCaptureFixture):
    older = json.loads(ANSWER)
    del older["scheduler"], older["version"]
    answer = http_answer("application/json", json.dumps(older))
    with raw_server(lambda _: answer) as url, front_of(url) as front:
        wait_until(lambda: httpx.get(f"{front.url}/readyz").status_code == 503)
    said = "does not describe its model: scheduler: Field required, version: Field required"
    assert f"{url} is not used: {said}" in caplog.text


def test_nothing_is_sent_to_an_instance_before_its_first_check():
    asked = threading.Event()

    def answer(sent: bytes) -> bytes:
        if sent.startswith(b"POST"):
            asked.set()
        load = asdict(Load(0, 0, 32, accepting=False))
        return http_answer("application/json", json.dumps(json.loads(ANSWER) | {"load": load}))

    async def submit(url: str) -> None:
        generator = remote_generator(generator_client.Client(), [url], MODEL, Limits(), Observer())
        wanted = Request("a red star", None, 5.0, 4, seed=7)
        await generator.submit(wanted)
        await generator.open()
        async with asyncio.timeout(60):
            while generator.load.accepting:
                await asyncio.sleep(0.01)
        assert generator.load.waiting == 1
        await generator.close(0)

    with raw_server(answer) as url:
        asyncio.run(submit(url))
    assert not asked.is_set()


def test_a_request_goes_to_an_instance_that_has_its_size():
    pipe = FakePipeline().as_pipeline()
    wide = local_generator(pipe, Limits(), Observer(), more_sizes=((16, 8),))

    def offered(front: Site) -> list[list[int]]:
        return httpx.get(f"{front.url}/v1/model").json()["more_sizes"]

    with serve() as plain, serve(generator=wide) as site, front_of(plain.url, site.url) as front:
        wait_until(lambda: offered(front) == [[16, 8]])
        for _ in range(2):
            assert generate(front, size="16x8")[-1][0] == "done"
        assert plain.pipe.calls == []
        site.stop()
        wait_until(lambda: offered(front) == [])
        assert post(front, {"prompt": "a", "size": "16x8"}).status_code == 400


def test_a_request_goes_to_an_instance_that_has_its_loras(tmp_path: Path):
    folder = tmp_path / "loras"
    folder.mkdir()
    for name in ("a", "b"):
        save_file({"x": np.zeros(4, np.float32)}, folder / f"{name}.safetensors")
        os.utime(folder / f"{name}.safetensors", (0, 0))  # it is not written to any more
    Picture.new("RGB", (9, 9)).save(folder / "a.png")
    pipe = FakePipeline()
    having = local_generator(
        pipe.as_pipeline(), Limits(), Observer(), folders=Folders(LoraFolder(folder))
    )

    def offered(front: Site) -> list[str]:
        return [each["name"] for each in httpx.get(f"{front.url}/v1/model").json()["loras"]]

    with serve() as plain, serve(generator=having) as site, front_of(plain.url, site.url) as front:
        wait_until(lambda: offered(front) == ["a", "b"])
        assert generate(front, loras={"a": 0.5, "b": [1, 0.25]})[-1][0] == "done"
        assert pipe.calls[-1]["loras"] == "a:0.5,b:1:0.25"
        assert plain.pipe.calls == []
        picture = httpx.get(f"{front.url}/v1/loras/a/picture")
        assert picture.headers["content-type"] == "image/webp"
        assert picture.content == httpx.get(f"{site.url}/v1/loras/a/picture").content
        for name in ("b", "c", "..%2Fa"):
            assert httpx.get(f"{front.url}/v1/loras/{name}/picture").status_code == 404
        refused = post(front, {"prompt": "a", "loras": {"c": 1}})
        assert refused.json()["error"]["message_code"] == Code.UNKNOWN_LORA
        site.stop()
        wait_until(lambda: offered(front) == [])


def test_the_embeddings_of_all_instances_are_offered() -> None:
    style, other = EmbeddingFacts("style", 3, 64), EmbeddingFacts("other", 1, 64)
    models = [replace(MODEL, embeddings=each) for each in ((other, style), (style,), (style,))]
    assert merged(MODEL, models).embeddings == (style,)
    assert merged(MODEL, models[:1]).embeddings == (other, style)


def test_a_request_goes_to_an_instance_that_has_its_model() -> None:
    described = {field: getattr(MODEL, field) for field in ("scheduler", "schedulers")}
    models = tuple(ModelFacts(name=name, digest=name, **described) for name in "ab")
    pipes = [FakePipeline(), FakePipeline()]
    for pipe in pipes:
        pipe.facts = replace(pipe.facts, models=models)
    having = [local_generator(pipe.as_pipeline(), Limits(), Observer()) for pipe in pipes]
    with (
        serve(generator=having[0]) as one,
        serve(generator=having[1]) as two,
        front_of(one.url, two.url) as front,
    ):
        wait_until(lambda: httpx.get(f"{front.url}/v1/model").json()["models"])
        for name in "abbaba":
            assert generate(front, model=name)[-1][0] == "done"
    assert sorted([call["model"] for call in pipe.calls] for pipe in pipes) == [[*"aaa"], [*"bbb"]]


def test_an_older_instance_is_sent_no_request_with_a_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does not know the setting. A request that waits ends when no instance has its model."""
    describes = json.loads(ANSWER)
    del describes["models"]
    whole = image() + image(index=1, seed=8) + "event: done\ndata: {}\n\n"
    sent: list[tuple[str, dict[str, Any]]] = []

    def older(asked: bytes) -> bytes:
        if asked.startswith(b"GET"):
            return http_answer("application/json", json.dumps(describes))
        return http_answer("text/event-stream", whole)

    def noted(client: Any, url: str, body: dict[str, Any], digest: str) -> Any:
        sent.append((url, body))
        return generator_client.stream(client, url, body, digest)

    monkeypatch.setattr(remote, "stream", noted)
    pipe = FakePipeline(held=True)
    model = ModelFacts(name="b", scheduler="euler", schedulers=("euler",))
    pipe.facts = replace(pipe.facts, models=(model,))
    newer = local_generator(pipe.as_pipeline(), Limits(), Observer())
    with (
        raw_server(older) as url,
        serve(generator=newer) as site,
        front_of(url, site.url) as front,
    ):
        wait_until(lambda: httpx.get(f"{front.url}/v1/model").json()["models"])
        begun = Background(front, model="b")
        wait_until(lambda: pipe.calls)
        waits = Background(front, model="b")
        wait_until(lambda: metric(front, "sdxl_queue_depth") == 1)
        change_facts(newer, models=())
        name, fields = waits.finished()[-1]
        assert (name, fields["kind"]) == ("error", "invalid")
        assert fields["message"] == "model is b; here it can only be stand-in"
        pipe.let_all()
        assert begun.finished()[-1][0] == "done"
        assert post(front, {"prompt": "a", "model": "b"}).status_code == 400
        assert [generate(front)[-1][0] for _ in range(4)] == ["done"] * 4
        assert {to for to, _ in sent} == {url, site.url}
    assert [to for to, body in sent if "model" in body] == [site.url]


def test_a_front_end_has_the_words_of_its_instances() -> None:
    words = ["star", "🦊"]
    with serve(generator=_other(words=tuple(words))) as site, front_of(site.url) as front:
        wait_until(lambda: httpx.get(f"{front.url}/v1/model").json()["words"] == words)


def test_a_request_is_drawn_with_the_files_that_it_was_checked_with() -> None:
    """An instance whose file has changed refuses what was checked with the old one.

    It is sent requests again after the next health check.
    """
    lora = LoraFacts("pixel", "Pixel", digest="old")
    pipe = FakePipeline()
    pipe.loras["pixel"] = Path("pixel.safetensors")
    there = local_generator(pipe.as_pipeline(), Limits(), Observer())
    change_facts(there, loras=(lora,))
    with serve(generator=there) as site, front_of(site.url) as front:
        wait_until(lambda: httpx.get(f"{front.url}/v1/model").json()["loras"])
        change_facts(there, loras=(replace(lora, digest="new"),))
        body = {"prompt": "a star", "loras": {"pixel": 0.5}}
        hop = {HOP_HEADER: digest_of(GenerateRequest("a star", loras="pixel:0.5"), MODEL)}
        refused = httpx.post(f"{site.url}/v1/generate", json=body, headers=hop)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
        assert generate(front, loras={"pixel": 0.5})[-1][0] == "done"


def test_a_digest_covers_what_a_request_names() -> None:
    embeddings = EmbeddingFacts("style", 3, 64, "a"), EmbeddingFacts("other", 1, 64, "b")
    facts = replace(MODEL, embeddings=embeddings, loras=(LoraFacts("pixel", "", digest="c"),))
    ask = GenerateRequest("a STYLE fox", loras="pixel:0.5")
    same = replace(facts, embeddings=embeddings[:1], num_inference_steps=3, words=("fox",))
    assert digest_of(ask, same) == digest_of(ask, facts)
    for other in (
        replace(facts, embeddings=()),
        replace(facts, embeddings=(replace(embeddings[0], digest="x"),)),
        replace(facts, loras=(LoraFacts("pixel", "", digest="x"),)),
        replace(facts, revision="2"),
    ):
        assert digest_of(ask, other) != digest_of(ask, facts)
    assert digest_of(replace(ask, loras=""), facts) != digest_of(ask, facts)
    with_lists = replace(facts, lists="d")
    assert digest_of(ask, with_lists) == digest_of(ask, facts)
    ask = replace(ask, prompt="a __colour__ fox", prompt_syntax=A1111)
    assert digest_of(ask, with_lists) != digest_of(ask, facts)


def test_an_instance_describes_its_lists(tmp_path: Path) -> None:
    pipe = FakePipeline()
    pipe.wildcard_dir = tmp_path
    (tmp_path / "colour.txt").write_text("red")
    with serve(generator=local_generator(pipe.as_pipeline(), Limits(), Observer())) as site:
        lists = digest_of_lists(tmp_path)
        wait_until(lambda: httpx.get(f"{site.url}/v1/model").json()["lists"] == lists)


def test_a_live_picture_of_an_instance(tmp_path: Path):
    file = tmp_path / "sdxl_lightning_4step_lora.safetensors"
    save_file({"x": np.zeros(4, np.float32)}, file)
    os.utime(file, (0, 0))  # it is not written to any more
    pipe = FakePipeline()
    drawing = local_generator(
        pipe.as_pipeline(), Limits(), Observer(), folders=Folders(LoraFolder(tmp_path)), live="on"
    )
    with serve(generator=drawing) as site, front_of(site.url) as front:
        wait_until(lambda: httpx.get(f"{front.url}/v1/model").json()["live"])
        events = generate(front, live=True)
        assert [name for name, _ in events if name != "step"] == ["started", "preview", "done"]
        [jpeg] = dict(events)["preview"]["jpegs"]
        assert base64.b64decode(jpeg).startswith(b"\xff\xd8\xff")
        assert pipe.calls[-1]["loras"] == f"{file.stem}:1"


def _other(pipe: FakePipeline | None = None, **different: Any) -> RequestLifecycle:
    pipe = pipe or FakePipeline()
    pipe.facts = replace(pipe.facts, **different)
    return local_generator(pipe.as_pipeline(), Limits(), Observer())


@pytest.mark.parametrize(
    "stream",
    [
        "event: step\ndata: {\n\n",
        "event: miracle\ndata: {}\n\n",
        'event: image\ndata: {"index": 0, "png": "AAAA", "seed": 7, "settings": {}}\n\n',
        image(unblurred="iVBORw=="),
        "event: done\ndata: {}\n\n",
        'event: error\ndata: {"kind": "failed"}\n\n',
        'event: preview\ndata: {"jpegs": ["AAAA"]}\n\n',
        'event: preview\ndata: {"jpegs": []}\n\n',
        'event: preview\ndata: {"jpegs": "/9j/"}\n\n',
        "event: step\ndata: [1]\n\n",
        'event: step\ndata: {"done": 0, "total": 0}\n\n',
        'event: step\ndata: {"done": -1, "total": 4}\n\n',
        'event: step\ndata: {"done": 1000000000, "total": 1000000000}\n\n',
        'event: step\ndata: {"done": 5, "total": 4}\n\n',
        image(png=7),
        image(seed=8),
        image(index=1),
        image(settings=[]),
        image(prompt=5),
        image(seeds="7"),
        image(guidance_scale=float("inf")),
        f"event: image\ndata: {'[' * 100_000}\n\n",
        "<html>It works!</html>",
        "",
    ],
)
def test_invalid_answers_end_in_a_clear_error(stream: str, caplog: pytest.LogCaptureFixture):
    with nonsense_server(stream) as url, front_of(url) as front:
        name, fields = generate(front, id="0123456789abcdef")[-1]
        assert (name, fields["kind"]) == ("error", "unavailable")
        assert metric(front, "sdxl_retries_total{") >= 1
    said = [vars(each).get("fields") for each in caplog.records if url in each.getMessage()]
    assert {"request_id": "0123456789abcdef"} in said


def test_a_picture_is_checked_against_its_settings():
    whole = image() + image(index=1, seed=8) + "event: done\ndata: {}\n\n"
    with nonsense_server(whole) as url, front_of(url) as front:
        assert generate(front)[-1][0] == "done"


@pytest.mark.parametrize("field", ["model", "revision"])
def test_no_picture_is_taken_that_another_model_drew(field: str):
    """Pictures of another model are rejected; an instance may be replaced after it was polled."""
    named = {field: "another"}
    whole = image(**named) + image(index=1, seed=8, **named) + "event: done\ndata: {}\n\n"
    with nonsense_server(whole) as url, serve() as site, front_of(url, site.url) as front:
        events = generate(front)
        assert metric(front, 'sdxl_retries_total{reason="other"}') == 1
    assert drawn_with(events) == ["stand-in"] * 2


@pytest.mark.parametrize("network", ["vae", "unet", "tiny_vae", "refiner"])
def test_another_network_draws_differently(network: str):
    other = replace(MODEL, **{network: "bright"})
    assert differences(other, MODEL) == f"{network} 'bright', not None"


def test_variations_share_their_seed():
    wanted = {"variation_strength": 0.5, "variation_seed": 3}
    with serve() as site, front_of(site.url) as front:
        events = generate(front, **wanted)
        assert [fields["seed"] for name, fields in events if name == "image"] == [7, 7]


def endless(head: str, what: bytes, pause_s: float = 0.0) -> Iterator[bytes]:
    yield f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode()
    while True:
        yield what
        time.sleep(pause_s)


UNUSABLE = {
    "html": lambda: http_answer("text/html", "<html>It works!</html>"),
    "redirect": lambda: b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n",
    "dribble": lambda: endless("Content-Type: application/json", b" ", 0.05),
    "endless": lambda: endless("Content-Type: application/json", b" " * 2**16),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_answers_that_no_instance_sends_are_refused(kind: str, monkeypatch: pytest.MonkeyPatch):
    # The limit matters only for the server whose answer never ends.
    within_s = 0.5 if kind == "dribble" else 30.0
    monkeypatch.setattr(generator_client, "ANSWER_S", within_s)
    monkeypatch.setattr(generator_client, "LENGTH_WITHIN_S", within_s)

    async def ask(url: str) -> str:
        async with generator_client.Client() as client, asyncio.timeout(60):
            assert await generator_client.fetch_length(client, url, {"prompt": "a"}) is None
            with pytest.raises(generator_client.BackendError) as refused:
                await generator_client.fetch_model(client, url)
            return refused.value.reason

    reasons = {"redirect": "refused", "dribble": "lost"}
    with raw_server(lambda _: UNUSABLE[kind]()) as url:
        assert asyncio.run(ask(url)) == reasons.get(kind, "nonsense")


@pytest.mark.parametrize("kind", ["endless", "redirect"])
def test_a_request_answered_without_an_end(kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(generator_client, "_MAX_LINE_BYTES", 2**20)
    answer = lambda asked: READY if asked.startswith(b"GET") else UNUSABLE[kind]()  # noqa: E731
    with raw_server(answer) as broken, serve() as site, front_of(broken, site.url) as front:
        assert generate(front)[-1][0] == "done"
        assert metric(front, 'sdxl_retries_total{reason="nonsense"}') == 1


@pytest.mark.parametrize("body", ['{"error": "Bad gateway"}', '{"error": null}', "[]", "<html>"])
def test_a_refusal_in_another_format_is_nonsense(body: str):
    answer = http_answer("application/json", body).replace(b"200 OK", b"502 No")
    serving = raw_server(lambda asked: READY if asked.startswith(b"GET") else answer)
    with serving as broken, serve() as site, front_of(broken, site.url) as front:
        assert generate(front)[-1][0] == "done"
        assert metric(front, 'sdxl_retries_total{reason="nonsense"}') == 1


def test_a_refusal_that_does_not_end(monkeypatch: pytest.MonkeyPatch):
    def answer(asked: bytes) -> bytes | Iterator[bytes]:
        if asked.startswith(b"GET"):
            return READY
        monkeypatch.setattr(generator_client, "ANSWER_S", 0.5)
        return (part.replace(b"200 OK", b"503 No") for part in endless("", b" ", 0.05))

    with raw_server(answer) as broken, serve() as site, front_of(broken, site.url) as front:
        assert generate(front)[-1][0] == "done"
        assert metric(front, 'sdxl_retries_total{reason="silent"}') == 1


def http_answer(kind: str, body: str) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n{body}".encode()


READY = http_answer("application/json", ANSWER)


def nonsense_server(stream: str) -> AbstractContextManager[str]:
    """Serve readiness, and answer every request with the same bytes."""
    nonsense = http_answer("text/event-stream", stream)
    return raw_server(lambda asked: READY if asked.startswith(b"GET") else nonsense)


def silent_server(before: Callable[[], None]) -> AbstractContextManager[str]:
    """Serve readiness until the first request, then stay silent like a stopped process."""
    silent = False

    def answer(asked: bytes) -> bytes | None:
        nonlocal silent
        if asked.startswith(b"POST"):
            before()
            silent = True
        return None if silent else READY

    return raw_server(answer)


NEWER = {"name": "newer", "max_inference_steps": 30, "images_per_request": 1}


def drawn_with(events: list[Event]) -> list[str]:
    return [fields["settings"]["model"] for name, fields in events if name == "image"]


def test_a_rolling_upgrade_is_followed(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "serving")
    ports = [free_port() for _ in range(3)]
    with ExitStack() as front, ExitStack() as older, ExitStack() as newer:
        sites = [older.enter_context(serve(port=port)) for port in ports]
        site = front.enter_context(front_of(*(each.url for each in sites)))
        told = lambda: httpx.get(f"{site.url}/v1/model").json()  # noqa: E731
        for replaced, expected in enumerate(["stand-in", "newer", "newer"]):
            sites[replaced].stop()
            sites[replaced].thread.join(60)
            before = drawn_with(generate(site))
            assert before
            assert set(before) <= {"stand-in", "newer"}
            port = ports[replaced]
            newer.enter_context(serve(generator=_other(**NEWER), port=port))
            if expected == "stand-in":
                wait_until(lambda port=port: f":{port} is not used: it draws with" in caplog.text)
            wait_until(lambda expected=expected: told()["name"] == expected)
            pictures = 1 if expected == "newer" else 2
            assert drawn_with(generate(site)) == [expected] * pictures
        # Requests are checked against the newest model, and all three instances draw.
        assert told()["max_inference_steps"] == 30
        assert post(site, {"prompt": "a", "num_inference_steps": 31}).status_code == 400
        assert post(site, {"prompt": "a", "images": 2}).status_code == 400
        wait_until(lambda: f":{ports[2]} is used again" in caplog.text)
        assert caplog.text.count("The instances have changed their model: name 'newer'") == 1


def test_the_only_instance_is_upgraded():
    port = free_port()
    with ExitStack() as stack:
        with serve(port=port) as site:
            front = stack.enter_context(front_of(site.url))
            assert drawn_with(generate(front)) == ["stand-in"] * 2
        wait_until(lambda: httpx.get(f"{front.url}/readyz").status_code == 503)
        stack.enter_context(serve(generator=_other(**NEWER), port=port))
        wait_until(lambda: httpx.get(f"{front.url}/readyz").status_code == 200)
        assert drawn_with(generate(front)) == ["newer"]


def test_the_front_end_takes_over_new_defaults():
    port = free_port()
    with ExitStack() as stack:
        with serve(port=port) as site:
            front = stack.enter_context(front_of(site.url))
        told = lambda: httpx.get(f"{front.url}/v1/model").json()["num_inference_steps"]  # noqa: E731
        assert told() == 4
        stack.enter_context(serve(generator=_other(num_inference_steps=6), port=port))
        wait_until(lambda: told() == 6)


def test_metrics_show_the_newer_model_alone():
    port = free_port()
    with ExitStack() as stack:
        with serve(port=port) as site:
            front = stack.enter_context(front_of(site.url))
        stack.enter_context(serve(generator=_other(name="newer"), port=port))
        wait_until(lambda: 'model="newer"' in httpx.get(f"{front.url}/metrics").text)
        assert metric(front, "sdxl_build_info") == 1


@contextmanager
def turncoat(begun: str, then: str) -> Iterator[str]:
    """Serve an instance that breaks off its first request and has another model afterwards."""
    newer = json.dumps(json.loads(ANSWER) | {"name": "newer"})
    asked = 0

    def answer(sent: bytes) -> bytes:
        nonlocal asked
        if sent.startswith(b"GET"):
            return http_answer("application/json", newer) if asked else READY
        asked += 1
        return http_answer("text/event-stream", begun if asked == 1 else then)

    with raw_server(answer) as url:
        yield url


WHOLE = image(model="newer") + image(index=1, seed=8, model="newer") + "event: done\ndata: {}\n\n"


def test_a_request_of_which_nothing_was_seen_is_begun_with_the_newer_model():
    step = 'event: step\ndata: {"done": 1, "total": 4}\n\n'
    with turncoat(step, WHOLE) as url, front_of(url) as front:
        events = generate(front)
        assert ("started", 2) in [(name, fields.get("attempt")) for name, fields in events]
        assert drawn_with(events) == ["newer", "newer"]
        assert events[-1][0] == "done"


def test_no_request_has_pictures_of_two_models():
    with turncoat(image(), WHOLE) as url, front_of(url) as front:
        events = generate(front)
        assert drawn_with(events) == ["stand-in"]
        name, fields = events[-1]
        assert (name, fields["kind"]) == ("error", ErrorKind.UNAVAILABLE)
        assert fields["message"] == str(Message(Code.REPLACED))
        assert metric(front, "sdxl_inflight") == 0
        assert drawn_with(generate(front)) == ["newer", "newer"]


def test_a_begun_request_goes_on_with_its_model_if_an_instance_has_it():
    upgraded = threading.Event()
    newer = json.dumps(json.loads(ANSWER) | {"name": "newer"})

    def answer(sent: bytes) -> bytes:
        if sent.startswith(b"GET"):
            return http_answer("application/json", newer) if upgraded.is_set() else READY
        return http_answer("text/event-stream", WHOLE)

    with ExitStack() as stack:
        older = [stack.enter_context(serve(held=True, stop_within_s=0)) for _ in range(2)]
        others = [stack.enter_context(raw_server(answer)) for _ in range(3)]
        front = stack.enter_context(front_of(*(site.url for site in older), *others))
        request = Background(front)
        wait_until(lambda: older[0].pipe.calls)
        upgraded.set()
        wait_until(lambda: httpx.get(f"{front.url}/v1/model").json()["name"] == "newer")
        # The running request delays no other, and new requests use the newer model.
        assert drawn_with(generate(front)) == ["newer"] * 2
        older[0].stop()
        wait_until(lambda: older[1].pipe.calls)
        assert drawn_with(generate(front)) == ["newer"] * 2
        older[1].pipe.let_all()
        events = request.finished()
        assert events[-1][0] == "done"
        assert drawn_with(events) == ["stand-in"] * 2
        assert len(older[1].pipe.calls) == 1


def test_a_waiting_request_that_cannot_be_drawn_any_more_ends():
    port = free_port()
    with ExitStack() as stack:
        with wide_site(port) as wide:
            front = stack.enter_context(front_of(wide.url))
            offered = lambda: httpx.get(f"{front.url}/v1/model").json()["more_sizes"]  # noqa: E731
            wait_until(lambda: offered() == [[16, 8]])
            begun = Background(front, size="16x8")
            wait_until(lambda: len(wide.pipe.calls) == 2)
            waits, other = Background(front, size="16x8"), Background(front, images=1)
            wait_until(lambda: metric(front, "sdxl_queue_depth") == 2)
            wide.stop()
            wide.thread.join(60)
        stack.enter_context(serve(generator=_other(**NEWER), port=port))
        for request in (begun, waits):
            name, fields = request.finished()[-1]
            assert (name, fields["kind"]) == ("error", "invalid")
            assert fields["message"] == str(Message(Code.REPLACED))
        assert drawn_with(other.finished()) == ["newer"]


def test_a_front_end_started_with_an_older_model_accepts_newer_instances():
    """A front-end started with an older model's data accepts newer instances.

    This happens under Ray, where replicas come and go and the front-end first asks any of them.
    """

    async def life(url: str) -> list[object]:
        generator = remote_generator(generator_client.Client(), [], MODEL, Limits(), Observer())
        wanted = Request("a red star", None, 5.0, 4, 7)
        await generator.open()
        drawer_of(generator).backends.add(url)
        async with asyncio.timeout(60):
            while not generator.load.accepting:
                await asyncio.sleep(0.01)
            await generator.submit(wanted)
            heard: list[object] = [event async for event in generator.events(wanted.id)]
        assert generator.facts.name == "newer"
        await generator.close(5)
        assert drawer_of(generator)._sent == {}
        return heard

    with serve(generator=_other(**NEWER)) as site:
        assert isinstance(asyncio.run(life(site.url))[-1], Done)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_connection_reset_while_it_is_made(method: str, monkeypatch: pytest.MonkeyPatch):
    handle, left = httpx.AsyncHTTPTransport.handle_async_request, [3]

    async def stumble(self: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
        if left[0] and request.method == method:
            left[0] -= 1
            raise AttributeError("'NoneType' object has no attribute 'getpeername'")
        return await handle(self, request)

    with serve() as site, front_of(site.url) as front:
        monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", stumble)
        if method == "GET":  # a poll fails, then the instance is used again
            wait_until(lambda: not left[0])
            wait_until(lambda: httpx.get(f"{front.url}/readyz").status_code == 200)
        assert generate(front)[-1][0] == "done"
        assert left[0] == 0


def test_instances_are_checked_again_after_any_error(monkeypatch: pytest.MonkeyPatch):
    fetch, failed = generator_client.fetch_model, threading.Event()

    async def fail_once(client: httpx.AsyncClient, url: str) -> tuple[Facts, Load]:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("nobody has thought of this")
        return await fetch(client, url)

    with serve() as site, front_of(site.url) as front:
        monkeypatch.setattr(backends, "fetch_model", fail_once)
        assert failed.wait(60)
        wait_until(lambda: httpx.get(f"{front.url}/readyz").status_code == 200)
        assert generate(front)[-1][0] == "done"


def test_a_request_stopped_before_it_began_leaves_its_place_to_the_next():
    async def stop_and_draw(url: str) -> list[object]:
        generator = remote_generator(generator_client.Client(), [url], MODEL, Limits(), Observer())
        stopped, drawn = (Request("a red star", None, 5.0, 4, seed=7) for _ in range(2))
        await generator.open()
        async with asyncio.timeout(60):
            while next(iter(drawer_of(generator).backends)).facts is None:
                await asyncio.sleep(0.01)
            await generator.submit(stopped)
            assert generator.load.running == 1
            generator.cancel(stopped.id)
            await generator.submit(drawn)
            heard: list[object] = [event async for event in generator.events(drawn.id)]
        await generator.close(5)
        return heard

    with serve() as site:
        assert isinstance(asyncio.run(stop_and_draw(site.url))[-1], Done)


def test_two_front_ends_pointed_at_each_other():
    with front_of(f"http://127.0.0.1:{free_port()}") as other:
        refused = httpx.get(f"{other.url}/v1/model", headers={"X-SDXL-Hop": "1"})
        assert refused.status_code == 508
        assert refused.json()["error"]["message"] == str(Message(Code.LOOP))
        with pytest.raises(generator_client.LoopError):
            asyncio.run(wait_at(free_port(), other.url))


def test_waiting_for_itself_is_noticed():
    port = free_port()
    with pytest.raises(generator_client.LoopError):
        asyncio.run(wait_at(port, f"http://127.0.0.1:{port}"))


def test_waiting_for_an_instance_that_comes_later(looks: Looks):
    port = free_port()
    found: list[Facts] = []
    url = f"http://127.0.0.1:{port}"
    waiter = threading.Thread(target=lambda: found.append(asyncio.run(wait_at(free_port(), url))))
    waiter.start()
    looks.wait_for(url, 1)
    with serve(port=port):
        waiter.join(60)
    assert found[0].name == "stand-in"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:7860"),
        ("pictures.example.org", "http://pictures.example.org:7860"),
        ("::1", "http://[::1]:7860"),
    ],
)
def test_the_url_of_a_host_and_port(host: str, url: str):
    assert generator_client.http_url(host, 7860) == url
    assert httpx.URL(url).host == host


def test_a_front_end_can_be_stopped_while_it_waits_for_a_slow_answer(tmp_path: Path):
    dribble = lambda _: endless("Content-Type: application/json", b" ", 0.05)  # noqa: E731
    with raw_server(dribble) as one, raw_server(dribble) as other:
        front = Instance(front_end([one, other]), tmp_path / "front.log")
        front.start()
        wait_until(lambda: answers(f"{front.url}/healthz"), 300)
        began = time.monotonic()
        assert front.stop() == 0
        # Polling both instances to the end would take longer.
        assert time.monotonic() - began < 2 * generator_client.ANSWER_S


def answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


async def wait_at(port: int, url: str) -> Facts:
    async with httpx.AsyncClient() as client:
        return await waiting.wait_for_model(client, [url], waiting.config("127.0.0.1", port))


def test_a_front_end_needs_no_jax():
    program = (
        "import sys, app, serving.generators.remote, serving.waiting;"
        "import serving.http.app, ui.page.page;"
        "sys.exit(any(name in sys.modules for name in ('jax', 'pipeline.pipeline', 'flax')))"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert ended.returncode == 0
