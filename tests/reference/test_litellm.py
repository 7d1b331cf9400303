"""The image calls of LiteLLM, as a client of the OpenAI API."""

import base64
import io
import os
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from tests.web import Site, serve

# Otherwise it fetches a list of models and prices at import.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

SEED = {"extra_body": {"seed": 7}}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve() as site:
        yield site


@pytest.fixture
def options(site: Site) -> dict[str, str]:
    return {"model": "openai/any", "api_key": "none", "api_base": f"{site.url}/v1"}


def drawn(answer: Any) -> list[tuple[int, int]]:
    files = [base64.b64decode(each.b64_json) for each in answer.data]
    return [Image.open(io.BytesIO(file)).size for file in files]


def grey(side: int = 16) -> io.BytesIO:
    file = io.BytesIO()
    Image.new("RGB", (side, side), (100, 100, 100)).save(file, "PNG")
    file.seek(0)
    file.name = "grey.png"
    return file


def test_it_draws(site: Site, options: dict[str, str]):
    size = site.pipe.facts.width, site.pipe.facts.height
    answer = litellm.image_generation("a yellow moon", n=2, **options, **SEED)
    assert drawn(answer) == [size, size]
    call = site.pipe.calls[-1]
    assert (call["prompt"], call["seed"], call["images"]) == ("a yellow moon", 7, 2)


def test_it_edits(site: Site, options: dict[str, str]):
    answer = litellm.image_edit(image=grey(), prompt="a red star", n=1, **options)
    assert len(drawn(answer)) == 1
    call = site.pipe.calls[-1]
    assert call["prompt"] == "a red star"
    assert call["image"] is not None


def test_it_varies(site: Site, options: dict[str, str]):
    answer = litellm.image_variation(image=grey(), n=1, **options)
    assert len(drawn(answer)) == 1
    assert site.pipe.calls[-1]["image"] is not None
