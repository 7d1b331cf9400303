"""Pictures to start from in this server's own API: good, hostile, and too many at a time."""

import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.facts import Facts
from serving.generator import Request
from serving.http import limits
from serving.metrics import Observer
from serving.requests import inputs, lifecycle
from serving.requests.inputs import Input
from serving.requests.lifecycle import RequestLifecycle
from serving.requests.registry import Limits
from tests.calls import BODY, metric, post
from tests.fake_pipeline import FakePipeline
from tests.generators import change_facts, local_generator
from tests.pictures import (
    GREY,
    HOSTILE,
    WHOLE,
    base64_of,
    colour_of,
    events_of,
    mask,
    saved,
    smooth,
)
from tests.web import Site, serve, wait_until

ANSWERED_WITHIN = 1.0  # seconds of this process, of which a refusal takes a small part
FUZZED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve() as site:
        yield site


def error_of(answer: httpx.Response) -> dict[str, Any]:
    assert 400 <= answer.status_code < 500, answer.text
    return answer.json()["error"]


def test_a_picture_and_a_mask(site: Site):
    body = BODY | {"image": base64_of(saved(GREY))}
    assert colour_of(events_of(post(site, body))) == (7, 100, 0)
    assert site.pipe.calls[-1]["strength"] == 0.8
    body["mask"] = f"data:image/png;base64,{base64_of(mask())}"
    assert colour_of(events_of(post(site, body | {"strength": 0.5}))) == (7, 100, 127)
    assert site.pipe.calls[-1]["strength"] == 0.5


def test_a_form(site: Site):
    files = {"image": saved(GREY, "JPEG"), "mask": mask()}
    data = {"prompt": "a red star", "seed": "7", "images": "1", "previews": "false"}
    events = events_of(httpx.post(f"{site.url}/v1/generate", files=files, data=data))
    assert colour_of(events)[0] == 7
    assert [name for name, _ in events].count("image") == 1


def test_a_picture_needs_no_prompt(site: Site):
    assert events_of(post(site, {"prompt": "", "image": base64_of(saved(GREY))}))
    assert error_of(post(site, {"prompt": ""}))["param"] == "prompt"


@pytest.mark.parametrize(
    ("given", "field", "said"),
    [
        ({"mask": ""}, "mask", "mask is given without image; send image too, or leave mask out"),
        ({"strength": 0.5}, "strength", "strength is given without image"),
        ({"padding": 8}, "padding", "padding is given without mask"),
        ({"image": "", "padding": 8}, "padding", "padding is given without mask"),
        ({"image": "", "strength": 0.1}, "strength", "strength is 0.1; expected 0.25 to 1"),
        ({"image": "", "strength": 0}, "strength", "greater than or equal to 0.01"),
    ],
)
def test_what_does_not_fit_together(site: Site, given: dict[str, Any], field: str, said: str):
    files = {"image": base64_of(saved(GREY)), "mask": base64_of(mask())}
    body = BODY | given | {name: files[name] for name, value in given.items() if value == ""}
    error = error_of(post(site, body))
    assert error["param"] == field
    assert said in error["message"]


def special(**changes: Any) -> RequestLifecycle:
    """Return a generator whose model has other facts."""
    generator = local_generator(FakePipeline().as_pipeline(), Limits(), Observer())
    change_facts(generator, **changes)
    return generator


def test_a_model_for_inpainting_needs_a_picture_and_a_mask():
    with serve(generator=special(needs_mask=True)) as site:
        assert httpx.get(f"{site.url}/v1/model").json()["needs_mask"] is True
        error = error_of(post(site, BODY))
        assert (error["param"], error["message_code"]) == ("image", "mask_needed")
        body = BODY | {"image": base64_of(saved(GREY))}
        assert error_of(post(site, body))["param"] == "mask"
        assert events_of(post(site, body | {"mask": base64_of(mask())}))[-1][0] == "done"


def test_a_refiner_alone_needs_a_picture():
    with serve(generator=special(needs_image=True)) as site:
        error = error_of(post(site, BODY))
        assert (error["param"], error["message_code"]) == ("image", "image_needed")
        body = BODY | {"image": base64_of(saved(GREY))}
        assert events_of(post(site, body))[-1][0] == "done"


def test_a_request_says_where_the_refiner_goes_on(site: Site):
    error = error_of(post(site, BODY | {"denoising_end": 0.5}))
    assert (error["param"], error["message_code"]) == ("denoising_end", "missing_refiner")
    assert events_of(post(site, BODY | {"denoising_end": 1}))[-1][0] == "done"
    with serve(generator=special(refiner="org/refiner")) as refining:
        assert httpx.get(f"{refining.url}/v1/model").json()["refiner"] == "org/refiner"
        assert events_of(post(refining, BODY | {"denoising_end": 0.5}))[-1][0] == "done"
        error = error_of(post(refining, BODY | {"denoising_end": 1.5}))
        assert error["param"] == "denoising_end"


# --- hostile files


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_with_a_reason(site: Site, name: str):
    make, _ = HOSTILE[name]
    content = make()
    small = len(content) < limits.MAX_PICTURE_BODY_BYTES
    before = time.process_time()
    answer = httpx.post(
        f"{site.url}/v1/generate",
        files={"image": (name, io.BytesIO(content))},
        data={"prompt": "a"},
    )
    assert time.process_time() - before < ANSWERED_WITHIN
    error = error_of(answer)
    if small:
        assert (answer.status_code, error["param"]) == (400, "image")
        assert error["message"].startswith("image cannot be used: ")
    else:
        assert answer.status_code == 413
        assert error["message"] == "This is too large to send: at most 32768 KiB are possible."


def sent(site: Site, content: bytes) -> int:
    answer = httpx.post(
        f"{site.url}/v1/generate", files={"image": content}, data={"prompt": "a", "images": "1"}
    )
    assert answer.status_code in (200, 400)
    if answer.status_code == 400:
        assert answer.json()["error"]["message"].startswith("image")
    return answer.status_code


@settings(FUZZED, max_examples=15)
@given(st.sampled_from(WHOLE), st.floats(0, 1), st.binary(max_size=8))
def test_damaged_files_are_drawn_from_or_refused(
    site: Site, content: bytes, place: float, new: bytes
):
    at = int(place * len(content))
    sent(site, content[:at] + new + content[at + len(new) :])


@pytest.mark.slow
@settings(FUZZED, max_examples=500)
@given(st.sampled_from(WHOLE), st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=8))))
def test_many_damaged_files_are_drawn_from_or_refused(
    site: Site, content: bytes, changes: list[tuple[float, bytes]]
):
    for place, new in changes:
        at = int(place * len(content))
        content = content[:at] + new + content[at + len(new) :]
    sent(site, content)


# --- too many, too large


def opened_call(site: Site, length: int, path: str = "/v1/generate") -> socket.socket:
    """Begin a call with a body of this length, of which nothing is sent yet."""
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    connection = socket.create_connection(("127.0.0.1", urlsplit(site.url).port), timeout=60)
    connection.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode())
    return connection


def test_many_large_bodies_are_refused_before_they_are_read(site: Site):
    each = limits.MAX_PICTURE_BODY_BYTES
    fits = limits.MOST_BYTES_EACH // each
    with ExitStack() as stack:
        held = [stack.enter_context(opened_call(site, each)) for _ in range(fits)]
        wait_until(lambda: len(site.connections) >= fits)
        refused = stack.enter_context(opened_call(site, each))
        answer = ""
        while not answer.endswith("}"):
            answer += refused.recv(4000).decode()
        assert answer.startswith("HTTP/1.1 429 ")
        assert "retry-after: " in answer.lower()
        assert "Too many files are being uploaded" in answer
        assert events_of(post(site, BODY))  # small calls are answered
        del held
    wait_until(lambda: not site.connections)
    large = io.BytesIO()
    smooth(900, 900).save(large, "PNG", compress_level=0)
    assert events_of(post(site, BODY | {"image": base64_of(large.getvalue())}))


def test_a_body_counts_until_its_picture_is_open(monkeypatch: pytest.MonkeyPatch):
    """A call that waits for its pictures keeps nobody from sending."""
    monkeypatch.setattr(limits, "MOST_BYTES_EACH", 2**21)
    file = io.BytesIO()
    smooth(700, 700).save(file, "PNG", compress_level=0)
    body = json.dumps(BODY | {"image": base64_of(file.getvalue())}).encode()
    assert 1.5 * 2**20 < len(body) < 2 * 2**20
    with serve(held=True) as site, ExitStack() as stack:
        for i in range(5):
            connection = stack.enter_context(opened_call(site, len(body)))
            connection.sendall(body)
            assert connection.recv(100).startswith(b"HTTP/1.1 200 "), i


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/generate", {"image": ""}),
        ("/v1/images/edits", {"images": [{"image_url": ""}]}),
        ("/sdapi/v1/img2img", {"init_images": [""]}),
        ("/sdapi/v1/img2img", {"init_images": ["", ""]}),
    ],
)
def test_no_file_is_opened_for_a_client_that_has_left(
    monkeypatch: pytest.MonkeyPatch, path: str, field: dict[str, Any]
):
    gate, opened, waiting = threading.Event(), [], []

    def checked(request: Request, facts: Facts) -> None:
        waiting.append(request.prompt)

    def gated(request: Request, given: Input, sizes: Any) -> Request:
        opened.append(request.prompt)
        gate.wait(60)
        return request

    monkeypatch.setattr(inputs, "check_fields", checked)  # the last step before a file waits
    monkeypatch.setattr(inputs, "_opened", gated)
    picture = f"data:image/png;base64,{base64_of(saved(GREY))}"
    text = json.dumps({"prompt": "a moon", **field}).replace('""', json.dumps(picture))
    bodies = [json.dumps(BODY | {"image": picture}).encode(), text.encode()]
    with serve(a1111="keys") as site, opened_call(site, len(bodies[0])) as first:
        first.sendall(bodies[0])
        wait_until(lambda: opened)
        with opened_call(site, len(bodies[1]), path) as second:
            second.sendall(bodies[1])
            wait_until(lambda: waiting == ["a red star", "a moon"])
        wait_until(lambda: len(site.connections) == 1)
        gate.set()
        assert first.recv(100).startswith(b"HTTP/1.1 200 ")
    assert opened == ["a red star"]


def test_the_queue_holds_few_bytes_of_pictures(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lifecycle, "MOST_INPUT_BYTES_EACH", 150)
    body = BODY | {"image": base64_of(saved(GREY))}
    with serve(held=True) as site:
        with httpx.stream("POST", f"{site.url}/v1/generate", json=body) as first:
            assert first.status_code == 200
            refused = post(site, body)
            assert refused.status_code == 429
            assert refused.json()["error"]["message_code"] == "no_room_for_uploads"
        wait_until(lambda: metric(site, 'sdxl_requests_total{outcome="abandoned"}') == 1)
        site.pipe.let_all()
        assert events_of(post(site, body))
