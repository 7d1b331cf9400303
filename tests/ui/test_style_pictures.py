"""Small pictures of styles."""

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from PIL import Image

from ui import style_pictures
from ui.model_kind import Kind
from ui.styles import styles_for


def test_every_style_of_the_miniature_has_a_picture():
    found = style_pictures.addresses(Kind.MINIATURE)
    assert list(found) == list(styles_for(Kind.MINIATURE))
    assert len(set(found.values())) == len(found)
    for style in found:
        file = style_pictures.file_of(Kind.MINIATURE, style)
        assert file.stat().st_size < 2000
        with Image.open(file) as picture:
            assert picture.size == (96, 96)


def test_a_kind_without_pictures_has_no_addresses():
    assert style_pictures.addresses(Kind.OTHER) == {}


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI()
    style_pictures.connect(app, Kind.MINIATURE)
    return TestClient(app)


def test_style_pictures_are_served(client: TestClient):
    for address in style_pictures.addresses(Kind.MINIATURE).values():
        answer = client.get(f"/{address}")
        assert answer.headers["Content-Type"] == "image/webp"


@pytest.mark.parametrize("name", ["flat.png", "..%2fflat.webp", "none", "%00"])
def test_no_other_file_is_served(client: TestClient, name: str):
    assert client.get(f"/style-pictures/miniature/{name}").status_code == 404
