"""Calls of OpenAI's API."""

import base64
import io
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import openai
from PIL import Image as Pillow

from tests.web import Site

LOGGER = "serving.http.openai.routes"
# Unsupported values, and a part of the error message for each.
REFUSED: dict[tuple[str, str], str] = {
    ("background", "transparent"): "transparent is not possible here",
    ("output_format", "gif"): "Input should be 'png', 'jpeg' or 'webp'",
    ("output_format", "svg"): "Input should be 'png', 'jpeg' or 'webp'",
}


def client_of(site: Site) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0)


def literals(annotation: Any) -> Iterator[str]:
    """Yield the values of every Literal in an annotation, however deep."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for each in get_args(annotation):  # of a Union, or Required[...]
            yield from literals(each)


def file_of(image: Any) -> bytes:
    return base64.b64decode(image.b64_json)


def opened(content: bytes) -> Pillow.Image:
    with Pillow.open(io.BytesIO(content)) as picture:
        picture.load()
        return picture
