"""Edits and variations of the OpenAI API, with OpenAI's client."""

import base64
import inspect
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import httpx
import openai
import pytest
from openai.resources.images import Images
from openai.types.image_create_variation_params import ImageCreateVariationParams
from openai.types.image_edit_params import ImageEditParamsBase
from PIL import Image as Pillow

from serving.http.openai import bodies
from serving.http.openai.routes import MASKED_STRENGTH, VARIATION_STRENGTH
from tests.openai_calls import (
    LOGGER,
    REFUSED,
    client_of,
    file_of,
    literals,
    opened,
)
from tests.web import Site, serve

GREY = (100, 100, 100)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve() as site:
        yield site


@pytest.fixture(scope="module")
def client(site: Site) -> openai.OpenAI:
    return client_of(site)


def saved(image: Pillow.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def grey(side: int = 16) -> bytes:
    return saved(Pillow.new("RGB", (side, side), GREY))


def half(side: int = 16) -> bytes:
    """Return a grey picture whose lower half is transparent."""
    picture = Pillow.new("RGBA", (side, side), (*GREY, 255))
    picture.paste((0, 0, 0, 0), (0, side // 2, side, side))
    return saved(picture)


def data_url(file: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"


def colours(image: Any) -> tuple[int, ...]:
    """Return the seed, the mean of the picture, and that of the mask, as the stand-in shows."""
    pixel = opened(file_of(image)).convert("RGB").getpixel((0, 0))
    assert isinstance(pixel, tuple)
    return pixel


def edit(client: openai.OpenAI, **arguments: Any) -> Any:
    call: Any = client.images.edit
    return call(**{"image": grey(), "prompt": "a red star"} | arguments)


@pytest.mark.parametrize("method", [Images.edit, Images.create_variation])
def test_every_parameter_is_known_here(method: Any):
    about_the_call = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
    body = bodies.EditBody if method is Images.edit else bodies.VariationBody
    unknown = set(inspect.signature(method).parameters) - about_the_call
    unknown -= {*body.model_fields, *bodies.NEUTRAL}
    assert unknown == ({"markup"} if method is Images.edit else set())


@pytest.mark.parametrize("given", ["bytes", "file", "path", "named", "list"])
def test_a_picture_in_every_form_that_the_client_takes(
    client: openai.OpenAI, given: str, tmp_path: Path
):
    path = tmp_path / "picture.png"
    path.write_bytes(grey())
    with path.open("rb") as file:
        forms = {"bytes": grey(), "file": file, "path": path, "list": [path]}
        forms["named"] = ("a.webp", saved(Pillow.new("RGB", (9, 9), GREY), "WEBP"), "image/webp")
        answer = edit(client, image=forms[given], extra_body={"seed": 7})
    assert [colours(image) for image in answer.data] == [(7, 100, 0)]


def test_the_whole_picture_is_redrawn_without_transparency(site: Site, client: openai.OpenAI):
    edit(client, n=2, extra_body={"loras": {}, "num_inference_steps": 10})
    call = site.pipe.calls[-1]
    assert (call["mask"], call["strength"], call["num_inference_steps"]) == (None, 0.8, 10)
    edit(client, mask=grey())
    call = site.pipe.calls[-1]
    assert (call["mask"], call["strength"]) == (None, 0.8)


def test_transparent_pixels_are_redrawn(site: Site, client: openai.OpenAI):
    (image,) = edit(client, image=half(), extra_body={"seed": 7}).data
    assert colours(image) == (7, 100, 127)
    assert site.pipe.calls[-1]["strength"] == MASKED_STRENGTH
    (image,) = edit(client, mask=half(), extra_body={"seed": 7, "strength": 0.5}).data
    assert colours(image) == (7, 100, 127)
    assert site.pipe.calls[-1]["strength"] == 0.5


def test_only_the_masked_part(site: Site, client: openai.OpenAI):
    edit(client, image=half(40), extra_body={"padding": 8})
    call = site.pipe.calls[-1]
    assert (call["padding"], call["image"].size) == (8, (40, 40))


def test_more_pictures_than_are_drawn_at_once(client: openai.OpenAI):
    answer = edit(client, n=5, extra_body={"seed": 7})
    assert [colours(image) for image in answer.data] == [(7 + i, 100, 0) for i in range(5)]


def test_variations(site: Site, client: openai.OpenAI):
    answer = client.images.create_variation(image=grey(), n=2, response_format="b64_json")
    assert [colours(image)[1:] for image in answer.data or ()] == [(100, 0)] * 2
    call = site.pipe.calls[-1]
    assert (call["prompt"], call["strength"]) == ("", VARIATION_STRENGTH)
    # Transparency has no meaning there.
    client.images.create_variation(image=half())
    assert site.pipe.calls[-1]["mask"] is None


def documented(kind: Any) -> list[tuple[str, Any]]:
    hints = get_type_hints(kind)
    return [(name, value) for name, hint in hints.items() for value in literals(hint)]


def test_every_documented_value_is_honoured_refused_or_ignored(
    client: openai.OpenAI, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", LOGGER)
    values = documented(ImageEditParamsBase)
    assert {"input_fidelity", "quality", "background", "size", "output_format"} <= {*dict(values)}
    for name, value in values:
        if refused := REFUSED.get((name, value)):
            with pytest.raises(openai.BadRequestError) as raised:
                edit(client, **{name: value})
            assert (raised.value.param, refused in raised.value.message) == (name, True)
        else:
            (image,) = edit(client, **{name: value}).data
            kind = value if name == "output_format" else "png"
            by_address = value in ("url", *bodies.URL_MODELS)
            content = httpx.get(image.url).content if by_address else file_of(image)
            assert (opened(content).format or "").lower() == kind
    said = "\n".join(record.getMessage() for record in caplog.records if record.name == LOGGER)
    assert all(f"request: {name}" in said for name in ("quality", "input_fidelity", "model"))
    for name, value in documented(ImageCreateVariationParams):
        create: Any = client.images.create_variation
        if (name, value) in REFUSED:
            with pytest.raises(openai.BadRequestError):
                create(image=grey(), **{name: value})
        else:
            assert create(image=grey(), **{name: value}).data


def test_markup_is_ignored_and_named(client: openai.OpenAI, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", LOGGER)
    assert edit(client, markup=half()).data
    assert "Ignored in an OpenAI request: markup" in caplog.text


def test_stream(client: openai.OpenAI):
    events = list(edit(client, stream=True, partial_images=2, n=2))
    kinds = [event.type for event in events]
    assert kinds[-2:] == ["image_edit.completed"] * 2
    assert set(kinds[:-2]) <= {"image_edit.partial_image"}
    assert colours(events[-1])[1] == 100


@pytest.mark.parametrize(
    ("arguments", "param", "said"),
    [
        ({"image": [grey(), grey()]}, "image", "2 pictures are sent; exactly one can be used"),
        ({"image": b""}, "image", "it is not a PNG, JPEG or WebP file"),
        ({"image": ("a.svg", b"<svg/>")}, "image", "it is not a PNG, JPEG or WebP file"),
        ({"mask": half(8)}, "mask", "mask is 8x8 pixels; expected 16x16"),
        ({"prompt": "x" * 2001}, "prompt", "prompt"),
        ({"n": 11}, "n", "less than or equal to 10"),
        ({"size": "large"}, "size", "size"),
        ({"extra_body": {"strength": 2}}, "strength", "less than or equal to 1"),
        ({"extra_body": {"strength": "much"}}, "strength", "valid number"),
        ({"extra_body": {"padding": 4}}, "padding", "padding is given without mask"),
        ({"extra_body": {"strength": 0.01}}, "strength", "strength is 0.01; expected 0.25 to 1"),
    ],
)
def test_wrong_calls(client: openai.OpenAI, arguments: dict[str, Any], param: str, said: str):
    with pytest.raises(openai.BadRequestError) as refused:
        edit(client, **arguments)
    assert refused.value.param == param
    assert said in refused.value.message


def test_json_bodies(site: Site):
    url = f"{site.url}/v1/images/edits"
    body: dict[str, Any] = {"prompt": "a red star", "seed": 7}
    files: list[dict[str, Any]] = [
        {"images": [{"image_url": data_url(half())}]},
        {"image": data_url(half())},
        {"image": base64.encodebytes(half()).decode()},
        {"image": data_url(grey()), "mask": {"image_url": data_url(half())}},
    ]
    for each in files:
        answer = httpx.post(url, json=body | each)
        assert answer.status_code == 200, answer.text
        png = base64.b64decode(answer.json()["data"][0]["b64_json"])
        assert opened(png).convert("RGB").getpixel((0, 0)) == (7, 100, 127)
    variation = httpx.post(f"{site.url}/v1/images/variations", json={"image": data_url(grey())})
    assert variation.status_code == 200


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ("http://127.0.0.1:1/a.png", "URLs are not fetched"),
        ("FILE:///etc/passwd", "URLs are not fetched"),
        ("data:image/png,abc", "expected a data URL such as"),
        ("data:image/png;base64,§", "expected a file in base64"),
        ("no base64!", "expected a file in base64"),
        (7, "expected a file in base64"),
        (None, "expected a file in base64"),
        ([], "0 pictures are sent"),
        ({"file_id": "file-1"}, "expected a file in base64"),
    ],
)
def test_wrong_files_in_json(site: Site, image: Any, said: str):
    body = {"prompt": "a red star", "image": image}
    refused = httpx.post(f"{site.url}/v1/images/edits", json=body)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == "image"
    assert said in error["message"]


def test_odd_forms(site: Site):
    url = f"{site.url}/v1/images/edits"
    files = {"image": ("a.png", grey())}
    data = {"prompt": "a red star"}
    assert httpx.post(url, files=files, data=data | {"n": "", "size": ""}).status_code == 200
    odd = {"seed[": "1", "loras[a][b]": "1", "timesteps[]": "999", "[x]": "", "prompt[a]": "b"}
    for name, value in odd.items():
        answer = httpx.post(url, files=files, data=data | {name: value})
        assert answer.status_code in (200, 400)
        assert answer.status_code == 200 or answer.json()["error"]["message"]
    many = [("image", ("a.png", grey()))] * 30
    assert httpx.post(url, files=many, data=data).status_code == 400
    assert httpx.post(url, files=files, data={"prompt": "a", "image": "b"}).status_code == 400
    head = {"Content-Type": "multipart/form-data; boundary=x"}
    for content in (b"", b"--x", b"--x\r\n\r\n", b"--x\r\nContent-Disposition: form-data\r\n\r\na"):
        refused = httpx.post(url, content=content, headers=head)
        assert refused.status_code == 400
        assert refused.json()["error"]["message"]
    plain = httpx.post(url, content=b"a", headers={"Content-Type": "text/plain"})
    assert "expected application/json or multipart" in plain.json()["error"]["message"]


def test_keys_are_asked_for_before_a_picture_is_read():
    with serve(keys=["a key"]) as site:
        refused = httpx.post(f"{site.url}/v1/images/edits", files={"image": grey()})
        assert refused.status_code == 401
        client = openai.OpenAI(base_url=f"{site.url}/v1", api_key="a key", max_retries=0)
        assert edit(client).data


def test_nothing_of_a_picture_is_in_the_answer_or_the_log(
    client: openai.OpenAI, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("DEBUG")
    answer = edit(client, image=half())
    info = opened(file_of(answer.data[0])).info["parameters"]
    assert "Denoising strength: 1" in info
    text = caplog.text + json.dumps(answer.model_dump()) + info
    assert base64.b64encode(half()).decode()[:60] not in text
