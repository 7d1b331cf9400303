"""The OpenAI API, tested with OpenAI's client, all its parameters and all documented values."""

import inspect
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_type_hints
from unittest.mock import Mock
from urllib.parse import urlsplit

import httpx
import numpy as np
import openai
import pytest
from openai.resources.images import Images
from openai.types.image_generate_params import ImageGenerateParamsBase

from pipeline import metadata
from pipeline.errors import MetadataError
from pipeline.facts import ModelFacts
from serving.generator import ErrorKind, Request, RequestError
from serving.generators.local import LocalDrawer
from serving.http import calls
from serving.http.openai import bodies
from serving.http.openai import files as openai_files
from serving.http.openai.files import Files
from serving.messages import untranslated
from serving.metrics import Observer
from serving.requests.lifecycle import RequestLifecycle
from serving.requests.registry import Limits
from tests.fake_pipeline import FakePipeline
from tests.generators import change_facts, local_generator
from tests.openai_calls import LOGGER, REFUSED, client_of, file_of, literals, opened
from tests.pictures import GREY, base64_of, saved
from tests.web import Site, serve, wait_until

PATH = "/v1/images/generations"

# Values to send for each parameter, in addition to the literals in openai's annotations.
VALUES: dict[str, list[Any]] = {
    "prompt": ["a red star", "un perro \N{DOG FACE}"],
    "background": [None],
    "complexity": [None],
    "frame_count": [None, 2, 16],
    "frame_duration_ms": [None, 200],
    "model": [None, "stand-in", "something/else"],
    "moderation": [None],
    "n": [None, 1, 2, 3, 10],
    "output_compression": [None, 0, 50, 100],
    "output_format": [None],
    "partial_images": [None, 0, 1, 3],
    "quality": [None],
    "response_format": [None],
    "safety_identifier": [None, "", "a hash"],
    "size": [None, "8x8"],
    "stream": [None, False, True],
    "style": [None],
    "svg": [None, {"model": "gpt-5"}, {"model": "gpt-5", "reasoning": {"effort": "low"}}],
    "user": ["", "somebody"],
}
# Parameters that have no effect with any value, and are logged.
HINTS = {"complexity", "frame_count", "frame_duration_ms", "moderation", "quality"} | {
    "safety_identifier",
    "style",
    "svg",
    "user",
}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve() as site:
        yield site


@pytest.fixture(scope="module")
def client(site: Site) -> openai.OpenAI:
    return client_of(site)


def parameters() -> set[str]:
    about_the_call = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
    return set(inspect.signature(Images.generate).parameters) - about_the_call


def documented() -> list[tuple[str, Any]]:
    hints = get_type_hints(ImageGenerateParamsBase)
    found = [(name, value) for name, hint in hints.items() for value in literals(hint)]
    return found + [(name, value) for name, values in VALUES.items() for value in values]


def generate(client: openai.OpenAI, **arguments: Any) -> Any:
    """Call `images.generate` with a default prompt, also with parameters unknown to the client."""
    create: Any = client.images.generate
    return create(**{"prompt": "a red star"} | arguments)


def red_of(content: bytes) -> int:
    """Return the red value of a picture, which is the seed in the stand-in's pictures."""
    pixel = opened(content).convert("RGB").getpixel((0, 0))
    assert isinstance(pixel, tuple)
    return int(pixel[0])


# --- every parameter ---


def test_every_parameter_is_known_here():
    """Every parameter of the client is in `VALUES` and `ImagesBody`; add new ones there."""
    assert parameters() == set(VALUES)
    assert parameters() <= bodies.ImagesBody.model_fields.keys() | bodies.NEUTRAL.keys()
    assert set(get_type_hints(ImageGenerateParamsBase)) <= set(VALUES)


def test_the_literals_are_found():
    found = documented()
    for each in [
        *(("quality", quality) for quality in ("auto", "low", "medium", "high", "standard", "hd")),
        *(("style", style) for style in ("vivid", "natural")),
        *(("response_format", kind) for kind in ("url", "b64_json")),
        *(("model", "dall-e-3"), ("model", "gpt-image-1"), ("size", "1792x1024")),
        *REFUSED,
    ]:
        assert each in found


@pytest.mark.parametrize(("name", "value"), documented())
def test_every_value_is_honoured_refused_or_ignored_with_a_line_of_log(
    client: openai.OpenAI, caplog: pytest.LogCaptureFixture, name: str, value: Any
):
    caplog.set_level("INFO", LOGGER)
    if said := REFUSED.get((name, str(value))):
        with pytest.raises(openai.BadRequestError) as refused:
            generate(client, **{name: value})
        assert said in refused.value.message
        assert refused.value.param == name
        return
    answer = generate(client, **{name: value})
    if name == "stream" and value:
        assert [event.type for event in answer] == ["image_generation.completed"]
        return
    n = value if name == "n" and value else 1
    kind = value if name == "output_format" and value else "png"
    assert len(answer.data) == n
    size = value if name == "size" and value not in (None, "auto") else "8x8"
    assert (answer.output_format, answer.background, answer.size) == (kind, "opaque", size)
    for image in answer.data:
        by_address = value in ("url", *bodies.URL_MODELS)
        assert (image.url is not None, image.b64_json is not None) == (by_address, not by_address)
        content = httpx.get(image.url).content if by_address else file_of(image)
        assert (opened(content).format or "").lower() == kind
        assert "{}x{}".format(*opened(content).size) == size

    ignored = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    is_hint = name in HINTS and value not in (None, "auto")
    is_other_model = name == "model" and value not in (None, "stand-in")
    is_moot = name in ("output_compression", "partial_images") and value not in (None, 0)
    if is_hint or is_other_model or is_moot or (name, value) == ("output_compression", 0):
        assert ignored == [f"Ignored in an OpenAI request: {name}"]
    else:
        assert ignored == []


def test_the_log_names_what_is_ignored_in_one_line_and_no_value(
    client: openai.OpenAI, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", LOGGER)
    unknown = {"colour": "a secret", "a\nline and a secret": 1, "input_fidelity": "high"}
    generate(client, user="a secret", quality="hd", prompt="a secret", extra_body=unknown)
    (record,) = (record for record in caplog.records if record.name == LOGGER)
    said = "Ignored in an OpenAI request: quality, user, colour, ?, input_fidelity"
    assert record.getMessage() == said
    assert "request_id" in vars(record)["fields"]
    assert "secret" not in caplog.text


def test_wrong_values_are_still_refused(client: openai.OpenAI):
    for wrong, param in (
        ({"n": 0}, "n"),
        ({"n": 11}, "n"),
        ({"output_compression": 101}, "output_compression"),
        ({"partial_images": 4}, "partial_images"),
        ({"response_format": "file"}, "response_format"),
        ({"size": "large"}, "size"),
        ({"size": "4096x512"}, "width"),
        ({"extra_body": {"seed": "7"}}, "seed"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            generate(client, **wrong)
        assert refused.value.param == param


# --- formats ---


def noise(_seed: int, _prompt: int, height: int, width: int) -> np.ndarray:
    """Return a picture of noise, which compresses badly."""
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.parametrize("kind", ["jpeg", "webp"])
def test_compression_is_the_quality(
    site: Site, client: openai.OpenAI, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
):
    monkeypatch.setattr(site.pipe, "picture", noise)
    monkeypatch.setattr(site.pipe, "facts", replace(site.pipe.facts, height=64, width=64))

    def size(**more: Any) -> int:
        answer = generate(client, output_format=kind, extra_body={"seed": 7}, **more)
        content = file_of(answer.data[0])
        (tmp_path / "picture").write_bytes(content)
        assert (settings := metadata.read(tmp_path / "picture")) is not None
        assert (settings.prompt, settings.seed) == ("a red star", 7)
        return len(content)

    sizes = [size(output_compression=each) for each in (0, 10, 50, 90, 100)]
    assert sizes == sorted(set(sizes))
    assert sizes[-2] < size() < sizes[-1]


@pytest.mark.parametrize("stream", [False, True])
def test_settings_that_have_no_room_in_a_jpeg(
    client: openai.OpenAI, stream: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(metadata, "converted", Mock(side_effect=MetadataError("too long")))
    with pytest.raises(openai.APIError, match="without room for prompts this long; use png"):
        list(generate(client, output_format="jpeg", stream=stream))


# --- more than the model draws at once ---


@pytest.mark.parametrize("stream", [False, True])
def test_ten_pictures_are_the_same_as_ten_alone(site: Site, client: openai.OpenAI, stream: bool):
    before = len(site.pipe.calls)
    answer = generate(client, n=9, stream=stream, extra_body={"seed": 250})
    contents = [file_of(each) for each in (answer if stream else answer.data)]
    assert [red_of(content) for content in contents] == [(250 + i) % 256 for i in range(9)]
    assert [call["seed"] for call in site.pipe.calls[before:]] == [250, 252, 254, 256, 258]
    (alone,) = generate(client, extra_body={"seed": 256}).data
    assert file_of(alone) == contents[6]


def test_seeds_begin_anew_after_the_last(site: Site, client: openai.OpenAI):
    before = len(site.pipe.calls)
    generate(client, n=4, extra_body={"seed": 2**32 - 2})
    assert [call["seed"] for call in site.pipe.calls[before:]] == [2**32 - 2, 0]


def test_seeds_of_variations(site: Site, client: openai.OpenAI):
    before = len(site.pipe.calls)
    body = {"seed": 7, "variation_seed": 20, "variation_strength": 0.5}
    generate(client, n=4, extra_body=body)
    seeds = [(call["seed"], call["variation_seed"]) for call in site.pipe.calls[before:]]
    assert seeds == [(7, 20), (7, 22)]


def test_a_prompt_for_each_picture(site: Site, client: openai.OpenAI):
    answer = generate(client, n=3, extra_body={"prompt": ["one", "two", "three"]})
    prompts = [opened(file_of(image)).info["parameters"].split("\n")[0] for image in answer.data]
    assert prompts == ["one", "two", "three"]
    with pytest.raises(openai.BadRequestError, match="expected one, or one for each of the 3"):
        generate(client, n=3, extra_body={"prompt": ["one", "two"]})


@pytest.mark.parametrize("stream", [False, True])
def test_when_one_fails_no_more_are_drawn(site: Site, client: openai.OpenAI, stream: bool):
    before = len(site.pipe.calls)
    prompts = {"prompt": ["one", "two", "", "four", "five", "six"]}
    with pytest.raises(openai.APIError, match="prompt is blank") as failed:
        list(generate(client, n=6, stream=stream, extra_body=prompts))
    assert isinstance(failed.value, openai.BadRequestError) is not stream
    assert len(site.pipe.calls) == before + 1


def test_parts_of_prompts_without_effect_are_named(client: openai.OpenAI):
    syntax = {"extra_body": {"prompt_syntax": "a1111"}}
    (event,) = generate(client, stream=True, prompt="a <hypernet:b:1> star", **syntax)
    for answer in (generate(client, n=3, prompt="a <hypernet:b:1> star", **syntax), event):
        assert answer.to_dict()["ignored"] == ["<hypernet:b:1>", "the end"]


def test_partial_images_of_many(client: openai.OpenAI):
    events = list(generate(client, n=5, stream=True, partial_images=2))
    kinds = [event.type.removeprefix("image_generation.") for event in events]
    assert kinds.count("completed") == 5
    partial = kinds.count("partial_image")
    assert kinds == ["partial_image"] * partial + ["completed"] * 5
    assert 1 <= partial <= 2  # outdated ones are skipped for slow readers
    for event in events[:partial]:
        assert opened(file_of(event)).format == "JPEG"
        assert event.output_format == "jpeg"


def test_stream_in_another_format(client: openai.OpenAI):
    (event,) = generate(client, stream=True, output_format="webp", response_format="url")
    assert event.output_format == "webp"
    assert opened(file_of(event)).format == "WEBP"
    assert httpx.get(event.url).content == file_of(event)  # type: ignore[attr-defined]


class Counted(RequestLifecycle):
    """A generator that records how many requests are under way at each submission."""

    def __init__(self, refusals: int = 0) -> None:
        self.pipe = FakePipeline()
        drawer = LocalDrawer(self.pipe.as_pipeline(), Limits(), Observer())
        super().__init__(drawer, Limits(), Observer())
        self.under_way: list[int] = []
        self.refusals = refusals

    async def submit(self, request: Request) -> None:
        if self.under_way and self.refusals:
            self.refusals -= 1
            kind = (ErrorKind.FULL, ErrorKind.TOO_MANY, ErrorKind.UNAVAILABLE)[self.refusals % 3]
            raise RequestError(untranslated("no room"), kind, retry_after_s=0.01)
        self.under_way.append(self.load.running + self.load.waiting)
        await super().submit(request)


def test_a_call_has_one_place_in_the_queue():
    generator = Counted()
    with serve(generator=generator) as site:
        assert len(generate(client_of(site), n=10).data) == 10
    assert generator.under_way == [0] * 5


@pytest.mark.lasting
def test_a_call_that_has_begun_waits_for_room():
    generator = Counted(refusals=3)
    with serve(generator=generator) as site:
        answer = generate(client_of(site), n=4, extra_body={"seed": 7})
    assert [red_of(file_of(image)) for image in answer.data] == [7, 8, 9, 10]
    assert (generator.refusals, len(generator.under_way)) == (0, 2)


def test_a_call_does_not_wait_for_room_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(calls, "PATIENCE_S", 0.5)
    with serve(generator=Counted(refusals=100)) as site:
        with pytest.raises(openai.RateLimitError) as refused:
            generate(client_of(site), n=4)
        assert int(refused.value.response.headers["retry-after"]) >= 1


@pytest.mark.parametrize("stream", [False, True])
def test_no_call_has_pictures_of_two_models(stream: bool):
    class Upgraded(Counted):
        async def submit(self, request: Request) -> None:
            await super().submit(request)
            change_facts(self, name="newer")

    with (
        serve(generator=Upgraded()) as site,
        pytest.raises(openai.APIError, match="has been replaced"),
    ):
        list(generate(client_of(site), n=4, stream=stream))


def test_the_rate_limit_counts_what_is_drawn():
    with serve(limits=Limits(rate_per_address=3)) as site:
        client = client_of(site)
        assert len(generate(client, n=5).data) == 5
        with pytest.raises(openai.RateLimitError):
            generate(client)


@pytest.mark.parametrize("stream", [False, True])
def test_hanging_up_ends_a_call_for_many(stream: bool):
    body = json.dumps({"prompt": "a star", "n": 10, "stream": stream}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    with serve(held=True) as site:
        with socket.create_connection(("127.0.0.1", urlsplit(site.url).port)) as asking:
            asking.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            wait_until(lambda: site.pipe.calls)
        wait_until(lambda: 'outcome="abandoned"} 1.0' in httpx.get(f"{site.url}/metrics").text)
        site.pipe.let_all()
        assert generate(client_of(site), n=1).data
        assert len(site.pipe.calls) == 2  # no other picture of the call for many


# --- addresses ---


@pytest.mark.parametrize(("kind", "suffix"), [("png", ".png"), ("jpeg", ".jpg"), ("webp", ".webp")])
def test_addresses(site: Site, client: openai.OpenAI, kind: Any, suffix: str):
    answer = client.images.generate(prompt="a", n=3, response_format="url", output_format=kind)
    addresses = [image.url or "" for image in answer.data or ()]
    assert len(set(addresses)) == 3
    for url in addresses:
        assert url.startswith(f"{site.url}/v1/images/files/")
        assert url.endswith(suffix)
        name = url.rpartition("/")[2].removesuffix(suffix)
        assert len(name) == 32  # of 64 characters each
        for method in ("GET", "HEAD"):
            found = httpx.request(method, url)
            assert (found.status_code, found.headers["content-type"]) == (200, f"image/{kind}")
            assert found.headers["content-disposition"] == "inline"
            assert found.headers["x-content-type-options"] == "nosniff"
        assert (opened(httpx.get(url).content).format or "").lower() == kind
        for wrong in (name, f"{name}.svg", f"{name[:-1]}{suffix}", "..%2f..%2fapp.py", ""):
            refused = httpx.get(url.replace(name + suffix, wrong))
            assert refused.status_code == 404
            assert refused.json()["error"]["message"]


def test_addresses_are_under_the_name_that_the_visitor_used(site: Site):
    body = {"prompt": "a star", "response_format": "url"}
    for host in ("localhost:1234", "pictures.internal"):
        answer = httpx.post(site.url + PATH, json=body, headers={"Host": host}).json()
        assert answer["data"][0]["url"].startswith(f"http://{host}/v1/images/files/")


def test_addresses_are_under_the_name_that_the_proxy_was_asked_for():
    body = {"prompt": "a star", "model": "dall-e-3"}
    headers = {"X-Forwarded-Host": "pictures.internal, b", "X-Forwarded-Proto": "https"}
    with serve(trusted_proxies=1) as site:
        answer = httpx.post(site.url + PATH, json=body, headers=headers).json()
    assert answer["data"][0]["url"].startswith("https://pictures.internal/v1/images/files/")


@pytest.mark.parametrize(
    ("model", "response_format", "expected"),
    [
        ("dall-e-2", None, "url"),
        ("dall-e-3", None, "url"),
        ("dall-e-3", "b64_json", "b64_json"),
        ("gpt-image-1", None, "b64_json"),
        ("gpt-image-1", "url", "url"),
        (None, None, "b64_json"),
    ],
)
@pytest.mark.parametrize("path", [PATH, "/v1/images/variations"])
def test_the_model_decides_whether_there_are_urls(
    site: Site, path: str, model: str | None, response_format: str | None, expected: str
):
    body: dict[str, Any] = {"model": model, "response_format": response_format}
    body |= {"prompt": "a star"} if path == PATH else {"image": base64_of(saved(GREY))}
    assert [*httpx.post(site.url + path, json=body).json()["data"][0]] == [expected]


def test_addresses_need_no_key():
    with serve(keys=["a key"]) as site:
        client = openai.OpenAI(base_url=f"{site.url}/v1", api_key="a key", max_retries=0)
        (image,) = generate(client, response_format="url").data
        assert httpx.get(image.url).status_code == 200
        assert httpx.get(f"{site.url}/v1/models").status_code == 401
        assert [model.id for model in client.models.list()] == ["stand-in"]


def test_too_large_for_addresses(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(openai_files, "MAX_BYTES", 10)
    with pytest.raises(openai.BadRequestError, match="use 'b64_json'") as refused:
        generate(client, response_format="url")
    assert refused.value.param == "response_format"


def test_files_expire():
    now = 0.0
    files = Files(lambda: now)
    (name,) = files.add([b"one"], "a", "png")
    now = openai_files.LIFETIME_S - 1
    assert (file := files.find(name)) is not None
    assert (file.content, file.media_type) == (b"one", "image/png")
    now += 1
    assert files.find(name) is None
    assert files._bytes == 0


def test_the_oldest_files_make_room(monkeypatch: pytest.MonkeyPatch):
    files = Files()
    monkeypatch.setattr(openai_files, "MAX_BYTES", 10)
    names = [files.add([b"four"], "a", "webp")[0] for _ in range(3)]
    assert [files.find(name) is None for name in names] == [True, False, False]
    names += files.add([b"12345", b"12345"], "a", "jpeg")
    assert [files.find(name) is None for name in names] == [True] * 3 + [False] * 2
    assert files._bytes == 10
    monkeypatch.setattr(openai_files, "MAX_FILES", 1)
    assert [files.find(name) is None for name in names] == [True] * 4 + [False]


# --- models ---


def test_models(client: openai.OpenAI):
    (listed,) = client.models.list()
    assert (listed.id, listed.object, listed.owned_by) == ("stand-in", "model", "local")
    assert abs(listed.created - time.time()) < 600
    assert client.models.retrieve("stand-in") == listed
    with pytest.raises(openai.NotFoundError, match="it can only be stand-in") as refused:
        client.models.retrieve("dall-e-3")
    assert refused.value.param == "model"


def test_clients_choose_a_model():
    pipe = FakePipeline()
    odd = ModelFacts(name="odd", fault="its unet is another one")
    pony = ModelFacts(name="pony", title="Pony", schedulers=("euler",), scheduler="euler")
    pipe.facts = replace(pipe.facts, models=(odd, pony))
    generator = local_generator(pipe.as_pipeline(), Limits(), Observer())
    with serve(generator=generator) as site:
        client = client_of(site)
        assert [model.id for model in client.models.list()] == ["stand-in", "pony"]
        assert client.models.retrieve("pony").to_dict()["title"] == "Pony"
        for name in ("pony", "stand-in", "gpt-image-1", "odd"):
            client.images.generate(prompt="a star", n=1, model=name)
        assert [call["model"] for call in pipe.calls] == ["pony", "", "", ""]
        body = {"prompt": "a star", "model": "odd"}
        answer = httpx.post(f"{site.url}/v1/generate", json=body)
        assert (answer.status_code, "its unet is another one" in answer.text) == (400, True)


def test_a_model_of_the_hub():
    pipe = FakePipeline()
    pipe.facts = replace(pipe.facts, name="stabilityai/stable-diffusion-xl-base-1.0")
    generator = local_generator(pipe.as_pipeline(), Limits(), Observer())
    with serve(generator=generator) as site:
        client = client_of(site)
        (listed,) = client.models.list()
        assert listed.owned_by == "stabilityai"
        assert client.models.retrieve(listed.id) == listed
        assert json.loads(httpx.get(f"{site.url}/v1/models/{listed.id}").content)["id"] == listed.id
