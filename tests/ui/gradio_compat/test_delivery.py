"""Delivery of the page's own files to browsers."""

import re
from pathlib import Path

import gradio
import pytest
from fastapi.testclient import TestClient

from serving.http import app as http_app
from serving.metrics import Observer
from serving.requests.registry import Limits
from tests.fake_pipeline import FakePipeline
from tests.generators import local_generator
from ui import scripts
from ui.mount import mount

ASSETS = Path(gradio.__file__).parent / "templates" / "frontend" / "assets"
(PLAYER,) = ASSETS.glob("hls-*.js")


@pytest.fixture(scope="module")
def client() -> TestClient:
    pipe, observer = FakePipeline().as_pipeline(), Observer()
    generator = local_generator(pipe, Limits(), observer)
    app = http_app.build(generator, observer)
    mount(app, generator, "127.0.0.1", 7860, 600)
    return TestClient(app, headers={"Accept-Encoding": "gzip, br"})


def test_scripts_are_cached_and_compressed(client: TestClient):
    (script,) = re.findall(r'src="\./(assets/index-[^"]+\.js)"', client.get("/").text)
    answer = client.get(f"/{script}")
    assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    assert answer.headers["Content-Encoding"] == "br"
    assert "Cache-Control" not in client.get("/assets/index-gone.js").headers


def test_the_page_itself_is_compressed_and_not_cached(client: TestClient):
    for target in ("/", "/config"):
        answer = client.get(target)
        assert answer.headers["Content-Encoding"] == "gzip"
        assert answer.headers.get("Cache-Control") in (None, "no-cache")


def test_the_video_player_is_replaced_by_an_empty_module_with_its_names(client: TestClient):
    shell = client.get(f"/assets/{PLAYER.name}")
    assert shell.headers["Content-Type"].startswith("text/javascript")
    assert "Content-Security-Policy" in shell.headers
    assert len(shell.content) < 500
    exported = set(re.findall(r"nothing as (\w+)", shell.text))
    wanted: set[str] = set()
    for script in ASSETS.glob("*.js"):
        text = script.read_text(encoding="utf-8")
        for names in re.findall(rf'import\{{([^}}]*)\}}from"\./{re.escape(PLAYER.name)}"', text):
            wanted |= {name.split(" as ")[0] for name in names.split(",")}
    assert wanted
    assert wanted <= exported


def test_gradios_client_has_a_fetch_of_its_own(client: TestClient):
    """The page's scripts see its calls there, and leave the `fetch` of pages around it alone."""
    (name,) = re.findall(r"assets/(index-[^\"]+\.js)", client.get("/gradio.js").text)
    served = client.get(f"/assets/{name}")
    first, rest = served.text.split("\n", 1)
    assert first.startswith("const fetch = ")
    assert rest == (ASSETS / name).read_text(encoding="utf-8")
    assert re.search(r"[^.\w]fetch\(", rest)
    assert not re.search(r"(window|globalThis|self)\.fetch", rest)


def test_scripts_of_the_page_are_asked_for_before_gradios(client: TestClient):
    head, _ = client.get("/").text.split("window.gradio_config", 1)
    assert head.endswith(f"{scripts.TAGS}<script>")
    asked_for = re.findall(r'(?:href|src)="(scripts/[^"]+)"', head)
    assert set(asked_for) == set(scripts.MODULES)
    load, _ = client.get("/gradio.js").text.split("assets/index-", 1)
    assert f'await import("./{scripts.MAIN}")' in load
    for address in asked_for:
        assert address in load
        assert client.get(f"/{address}").status_code == 200


def test_the_page_can_be_installed_with_an_icon(client: TestClient):
    manifest = client.get("/manifest.json").json()
    assert manifest["name"] == "Stable Diffusion XL on JAX"
    (icon,) = manifest["icons"]
    for target in (icon["src"], "/favicon.ico"):
        answer = client.get(target)
        assert answer.headers["Content-Type"].startswith("image/svg+xml")
        assert "<svg" in answer.text
