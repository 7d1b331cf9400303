"""Bodies of many values, of large values that are ignored, and of what no parser takes."""

import base64
import json
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, TypeAdapter

from serving.http import bodies
from serving.http.a1111.bodies import Img2ImgBody, Txt2ImgBody
from serving.http.bodies import MOST_FAULTS, File
from serving.http.json_tokens import MOST_TOKENS
from serving.http.openai.bodies import EditBody, ignored
from serving.messages import Code, Message
from tests.web import Site, serve

JSON = "application/json"
PATHS = [
    "/v1/generate",
    "/v1/length",
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/images/variations",
    "/sdapi/v1/txt2img",
    "/sdapi/v1/img2img",
    "/sdapi/v1/png-info",
    "/sdapi/v1/extra-single-image",
    "/sdapi/v1/options",
    "/gradio_api/mcp",
]
SAID = f"The body has more than {MOST_TOKENS} values and commas; send fewer"
LARGE = [{}] * 1000 + ["\ud800" * 10_000]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve(a1111="on") as site:
        yield site


def send(site: Site, path: str, content: bytes, media_type: str = JSON) -> httpx.Response:
    return httpx.post(site.url + path, content=content, headers={"Content-Type": media_type})


def refusal(answer: httpx.Response) -> str:
    said = answer.json()
    if answer.status_code == 422:  # of AUTOMATIC1111's API
        return said["detail"]
    assert answer.status_code == 400
    return said["error"]["message"]


def nested(depth: int) -> Any:
    return [] if depth == 0 else [nested(depth - 1)]


def few() -> bytes:
    """Return a body of as many tokens as are possible, which is wrong everywhere."""
    return json.dumps({"loras": [1] * (MOST_TOKENS - 3)}).encode()


@pytest.mark.parametrize("path", PATHS)
def test_bodies_of_many_values_are_refused_everywhere(site: Site, path: str):
    many = few().replace(b"[1,", b"[1,1,")
    assert refusal(send(site, path, many)) == SAID
    assert SAID not in send(site, path, few()).text


def test_fields_of_a_form_with_many_values_are_refused(site: Site):
    half = json.dumps([1] * (MOST_TOKENS // 2 + 1))
    files = {"prompt": (None, "a star"), "timesteps": (None, half), "loras": (None, half)}
    assert refusal(httpx.post(f"{site.url}/v1/generate", files=files)) == SAID


@pytest.mark.parametrize("depth", [100, 900, 5000])
@pytest.mark.parametrize("path", PATHS)
def test_values_inside_each_other_break_nothing(site: Site, path: str, depth: int):
    answer = send(site, path, b'{"junk": ' + b"[" * depth + b"]" * depth + b"}")
    assert str(Message(Code.BROKEN)) not in answer.text
    assert answer.json()


def test_few_faults_of_a_body_are_told(site: Site):
    wrong = {"override_settings": {"a" * 300 + str(number): 1 for number in range(50)}}
    answer = send(site, "/sdapi/v1/txt2img", json.dumps(wrong).encode())
    assert (answer.status_code, len(answer.json()["detail"])) == (422, MOST_FAULTS)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"1" * 5000, "a number in it has too many digits"),
        (b"[" * 9000, "it is nested too deeply"),
        (b'"\xff"', "it is not in UTF-8"),
    ],
)
def test_the_error_of_a_body_says_why_it_is_no_json(site: Site, value: bytes, said: str):
    for path in ("/v1/generate", "/v1/images/generations", "/v1/length"):
        content = b'{"prompt": ' + value
        assert refusal(send(site, path, content)) == f"The body is not JSON: {said}"


def test_a_large_body_is_parsed_beside_the_event_loop(site: Site, monkeypatch: pytest.MonkeyPatch):
    threads: list[threading.Thread] = []
    validated = bodies.validated

    def noted(kind: type[BaseModel], values: Any) -> BaseModel:
        threads.append(threading.current_thread())
        return validated(kind, values)

    monkeypatch.setattr(bodies, "validated", noted)
    for size in (1, 2**20):
        send(site, "/v1/generate", b'{"image": "' + b"A" * size + b'"}')
    assert [thread is site.thread for thread in threads] == [True, False]


def test_spaces_in_a_file_take_no_memory():
    file = TypeAdapter(File)
    text = "QUFB\n" * 100_000
    tracemalloc.start()
    try:
        assert file.validate_python(text) == base64.b64decode(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5 * len(text)


# --- what is ignored ---


def test_only_the_names_of_ignored_parameters_are_kept():
    many = {f"{number:->200}": LARGE for number in range(200)}
    values = {"prompt": "a star", "image": "AAAA", "user": LARGE, "quality": "auto", **many}
    body = EditBody.model_validate(values)
    assert body.model_extra == {"quality": "auto"}
    assert (len(body.ignored), {*map(len, body.ignored)}) == (100, {4, 100})
    assert ignored(body, "model")[0] == "user"


@pytest.mark.parametrize("kind", [Txt2ImgBody, Img2ImgBody])
def test_only_values_that_change_nothing_are_kept(kind: type[Txt2ImgBody]):
    options = {"eta_ddim": LARGE, "jpeg_quality": 90, "samples_format": "\ud800", "other": LARGE}
    values = {"styles": [], "tiling": None, "s_noise": LARGE, "unknown": LARGE, "nothing": None}
    body = kind.model_validate({**values, "override_settings": options})
    assert body.ignored == ["s_noise", "unknown"]
    assert body.model_extra == {"styles": [], "tiling": None}
    kept = {"eta_ddim": "", "jpeg_quality": 90, "samples_format": "", "other": ""}
    assert body.override_settings == kept


@pytest.mark.parametrize(
    "values",
    [
        {"junk": "\ud800"},
        {"junk": nested(90)},
        {"junk": float("nan")},
        {"override_settings": {"junk": nested(90)}},
        {"override_settings": {"sd_model_checkpoint": "\ud800"}},
        {"override_settings": {"eta_ddim": int("9" * 4000)}, "eta": 0},
    ],
)
def test_no_ignored_value_breaks_an_answer(site: Site, values: dict[str, Any]):
    content = json.dumps({"prompt": "a star", "steps": 2, **values}).encode()
    answer = send(site, "/sdapi/v1/txt2img", content)
    assert answer.status_code == 200, answer.text
    assert "junk" not in answer.json()["parameters"]
    assert len(answer.json()["images"]) == 1
