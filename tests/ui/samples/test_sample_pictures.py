"""Small pictures of styles and of examples."""

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from PIL import Image

from ui.samples.examples import examples_for
from ui.samples.model_kind import Kind
from ui.samples.sample_pictures import EXAMPLES, STYLES, Samples
from ui.samples.styles import styles_for

ALL = [STYLES, EXAMPLES]


@pytest.mark.parametrize(
    ("samples", "names", "side", "most"),
    [
        (STYLES, list(styles_for(Kind.MINIATURE)), 96, 2000),
        (EXAMPLES, list(examples_for(Kind.MINIATURE)), 256, 6000),
    ],
)
def test_the_miniature_has_every_picture(samples: Samples, names: list[str], side: int, most: int):
    found = samples.addresses(Kind.MINIATURE)
    assert list(found) == names
    assert len(set(found.values())) == len(found)
    for name in found:
        file = samples.file_of(Kind.MINIATURE, name)
        assert file.stat().st_size < most
        with Image.open(file) as picture:
            assert picture.size == (side, side)


@pytest.mark.parametrize("samples", ALL)
def test_a_kind_without_pictures_has_no_addresses(samples: Samples):
    assert samples.addresses(Kind.OTHER) == {}


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI()
    for samples in ALL:
        samples.connect(app, Kind.MINIATURE)
    return TestClient(app)


@pytest.mark.parametrize("samples", ALL)
def test_they_are_served(client: TestClient, samples: Samples):
    for address in samples.addresses(Kind.MINIATURE).values():
        answer = client.get(f"/{address}")
        assert answer.headers["Content-Type"] == "image/webp"


@pytest.mark.parametrize("name", ["flat.png", "..%2fflat.webp", "none", "%00"])
@pytest.mark.parametrize("samples", ALL)
def test_no_other_file_is_served(client: TestClient, samples: Samples, name: str):
    assert client.get(f"/{samples.folder}/miniature/{name}").status_code == 404
