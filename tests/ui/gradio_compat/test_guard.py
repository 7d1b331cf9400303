"""The allowlist of Gradio's routes, and the limits of bodies that are sent to them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import gradio
import pytest
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.testclient import TestClient

from serving.http import app as http_app
from serving.http.json_tokens import MOST_TOKENS
from serving.http.limits import MAX_PAGE_BODY_BYTES
from serving.metrics import Observer
from serving.requests.registry import Limits
from tests.fake_pipeline import FakePipeline
from tests.generators import local_generator
from tests.ui.gradio_compat.mounted import mounted_in
from ui.gradio_compat.guard import ROUTES
from ui.mount import mount

ASSETS = Path(gradio.__file__).parent / "templates" / "frontend" / "assets"
# Routes that the page, `<gradio-app>` or a program's client fetch before or between calls.
NEEDED = (
    "/",
    "/config",
    "/config/",
    f"/assets/{next(ASSETS.glob('*.js')).name}",
    "/static/js/iframeResizer.contentWindow.min.js",
    "/favicon.ico",
    "/manifest.json",
    "/pwa_icon",
    "/robots.txt",
    "/theme.css",
    "/gradio.js",
    "/gradio_api/info",
    "/gradio_api/info?all_endpoints=True",
    "/gradio_api/openapi.json",
    "/gradio_api/app_id",
    "/gradio_api/upload_progress?upload_id=x",
)
# Routes that calls are sent to, and that lead to their answers.
CALLS = (
    "/gradio_api/queue/join",
    "/gradio_api/queue/data",
    "/gradio_api/heartbeat/{session_hash}",
    "/gradio_api/api/{api_name}",
    "/gradio_api/run/{api_name}",
    "/gradio_api/call/{api_name}",
    "/gradio_api/call/v2/{api_name}",
    "/gradio_api/call/{api_name}/{event_id}",
    "/gradio_api/call/v2/{api_name}/{event_id}",
    "/gradio_api/file={path_or_url:path}",
)


# Routes of Gradio's that others in front of the page take the place of.
IN_FRONT = ("/openapi.json", "/gradio_api/upload", "/gradio_api/upload_progress")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Yield a client of the whole application, with its page."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("guard")))
        generator = local_generator(FakePipeline().as_pipeline(), Limits(), Observer())
        app = http_app.build(generator, Observer(), a1111="on")
        mount(app, generator, "127.0.0.1", 7860, 600)
        with TestClient(app, base_url="http://127.0.0.1") as client:
            yield client


@pytest.mark.parametrize("path", NEEDED)
def test_what_is_needed_is_answered(client: TestClient, path: str):
    assert client.get(path).status_code == 200


def test_all_other_routes_of_gradio_are_closed(client: TestClient):
    """Whatever Gradio declares, now or later, only the routes in the list are answered."""
    page = mounted_in(client.app)  # type: ignore[arg-type]
    for later in ("/later", "/gradio_api/later"):
        page.add_api_route(later, lambda: "here", methods=["GET", "POST"])
    open_paths = set()
    for route in iter_route_contexts(page.routes):
        path = re.sub(r"{[^}]*}", "x", str(route.path)).replace("file=x", "file=/x")
        if ROUTES.fullmatch(path):
            open_paths.add(str(route.path).rstrip("/") or "/")
        elif path not in IN_FRONT:
            for method in ("GET", "POST"):
                answer = client.request(method, path, json={})
                assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"}), path
    named = {re.sub(r"[?].*", "", path).rstrip("/") or "/" for path in NEEDED}
    own = {"/gradio.js", *IN_FRONT}
    assets = {path for path in named if path.startswith(("/assets/", "/static/"))}
    declared = {"/assets/{path:path}", "/static/{path:path}", "/gradio_api/theme.css"}
    assert open_paths == {*(named - own - assets), *CALLS, *declared}


@pytest.mark.parametrize("path", [path for path in CALLS if "{event" not in path])
def test_where_calls_are_sent_to(client: TestClient, path: str):
    """These are answered by the checks of calls, which say what is wrong."""
    given = re.sub(r"{[^}]*}", "a b", path).replace("file=", "file=/")
    method = "GET" if re.search("data|heartbeat|file", path) else "POST"
    answer = client.request(method, given, json={})
    assert answer.status_code in (400, 403, 404, 422)
    assert answer.json() != {"detail": "Not Found"}


@pytest.mark.parametrize("path", ["/gradio_api/queue/join", "/gradio_api/run/predict", "/live"])
def test_bodies_are_bounded_before_they_are_parsed(client: TestClient, path: str):
    def send(content: bytes, kind: str = "application/json") -> tuple[int, str]:
        answer = client.post(path, content=content, headers={"Content-Type": kind})
        return answer.status_code, answer.text

    values = json.dumps([1] * (MOST_TOKENS + 1)).encode()
    for kind in ("application/json", "multipart/form-data; boundary=x", "text/plain", ""):
        if path != "/live" or kind == "application/json":
            status, text = send(values, kind)
            assert status == 400
            assert f"more than {MOST_TOKENS} values and commas" in text
    status, text = send(b'"' + b"x" * MAX_PAGE_BODY_BYTES)
    assert status == 413
    assert f"at most {MAX_PAGE_BODY_BYTES // 1024} KiB are possible" in text


def test_every_route_reads_its_body_where_it_is_bounded(client: TestClient):
    """FastAPI would read a body that a function takes as an argument, however long it is."""
    routes = [route.original_route for route in iter_route_contexts(client.app.routes)]  # type: ignore[attr-defined]
    api_routes = [route for route in routes if isinstance(route, APIRoute)]
    assert len(api_routes) > 40
    assert [route.path for route in api_routes if route.body_field] == []
