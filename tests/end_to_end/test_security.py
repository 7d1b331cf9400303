"""Past advisories of Gradio, replayed over HTTP against the whole program; see docs/security.md.

The model is a stand-in. The rest is as an operator runs it: a process of its own, with its page.
"""

import ast
import http.client
import io
import json
import re
import select
import socket
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest
from fastapi.routing import iter_route_contexts
from starlette.routing import BaseRoute, Mount
from starlette.testclient import TestClient

from benchmarks.processes import ROOT, stand_in
from serving.http import app as http_app
from serving.http import sign_in
from serving.http.auth import Access, Users
from serving.http.limits import (
    MAX_BODY_BYTES,
    MAX_PAGE_BODY_BYTES,
    MAX_PICTURE_BODY_BYTES,
    MAX_UPLOAD_BYTES,
)
from serving.metrics import Observer
from serving.requests.registry import Limits
from tests.fake_pipeline import FakePipeline
from tests.generators import local_generator
from tests.web import raw_server, served
from ui.gradio_compat.guard import ROUTES
from ui.mount import mount

SECRET = "a secret that nobody may read"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("security")


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[str]:
    with served(stand_in(1, "--rate-per-address", "1000"), folder / "log", attacked=True) as url:
        yield url


@pytest.fixture(scope="module")
def secret(folder: Path) -> Path:
    file = folder / "secret.txt"
    file.write_text(SECRET)
    return file


def ask(site: str, target: str, method: str = "GET", **headers: str) -> tuple[int, Any, bytes]:
    """Send one request with its target unchanged, which other clients would normalise."""
    connection = http.client.HTTPConnection(urlsplit(site).netloc, timeout=60)
    connection.putrequest(method, target, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    content = answer.read(100_000)
    connection.close()
    return answer.status, answer.headers, content


def draw(site: str, prompt: Any) -> tuple[str, Any]:
    """Draw with the page's own API; return its last event, "complete" or "error", and its data."""
    values = {"prompt": prompt, "steps": 2, "seed": 7}
    call = httpx.post(f"{site}/gradio_api/call/v2/generate", json=values)
    assert call.status_code == 200, call.text
    event_id = call.json()["event_id"]
    text = httpx.get(f"{site}/gradio_api/call/generate/{event_id}", timeout=60).text
    name, data = re.findall(r"event: (\w+)\ndata: (.*)", text)[-1]
    return name, json.loads(data)


# --- files by path ---

TRAVERSALS = [
    "/gradio_api/file={}",
    "/gradio_api/file=/{}",
    "/gradio_api/file=file://{}",
    "/gradio_api/file/{}",
    "/gradio_api/file=/proc/self/root{}",
    "/gradio_api/file=" + "../" * 12 + "{}",
    "/gradio_api/file=" + "..%2f" * 12 + "{}",
    "/gradio_api/file=" + "..%252f" * 12 + "{}",
    "/gradio_api/file=" + "..\\" * 12 + "{}",
    "/file={}",
    "/static/" + "../" * 12 + "{}",
    "/static/" + "..%2f" * 12 + "{}",
    "/static/{}",
    "/svelte/" + "..%2f" * 12 + "{}",
    "/assets/" + "..%2f" * 12 + "{}",
    "/assets/{}",
    "/gradio_api/custom_component/0/client/component/" + "..%2f" * 12 + "{}",
    "/gradio_api/run-history/records/generate/x/assets/" + "..%2f" * 12 + "{}",
    "/" + "..%2f" * 12 + "{}",
]


@pytest.mark.parametrize("target", TRAVERSALS)
def test_no_file_by_its_path(site: str, secret: Path, target: str):
    for file in (secret, ROOT / "app.py", Path("/etc/passwd")):
        for text in (str(file), quote(str(file), safe="")):
            status, _, content = ask(site, target.format(text))
            assert status in (400, 403, 404), (target, file)
            for part in (SECRET, "def main", "root:x:"):
                assert part.encode() not in content


def test_own_files_are_read_by_their_address_and_others_not(site: str):
    """Only the file at the exact address is readable, not its neighbours or its folders."""
    name, (pictures, *_) = draw(site, "a red star")
    assert name == "complete"
    path = Path(pictures[0]["path"])
    status, headers, content = ask(site, f"/gradio_api/file={path}")
    assert status == 200
    assert content.startswith(b"\x89PNG")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert len(path.parent.name) >= 20  # 16 random bytes
    for wrong in (path.parent, path.parent.parent, path.parent.parent.parent, path.parent / "x"):
        assert ask(site, f"/gradio_api/file={wrong}")[0] == 403


FILE_DATA = {"meta": {"_type": "gradio.FileData"}, "orig_name": "x.png"}


def test_no_file_named_in_a_form(site: str, secret: Path):
    """A file path in place of a text is neither copied nor shown."""
    for path in (str(secret), "/etc/passwd", "../" * 12 + "etc/passwd"):
        values = {"prompt": FILE_DATA | {"path": path}}
        refused = httpx.post(f"{site}/gradio_api/call/v2/generate", json=values)
        assert refused.status_code == 403
        assert SECRET not in refused.text
        name, _ = draw(site, [path])
        assert name == "error"


def test_a_file_named_in_a_call_of_the_page_is_not_read(site: str, secret: Path):
    """No function of the page reads a path sent as input; a device would block the server."""
    functions = httpx.get(f"{site}/config").json()["dependencies"]
    for path in (str(secret), "/etc/passwd", "/dev/zero", "http://127.0.0.1:9/a.png"):
        for function in functions:
            count = len(function["inputs"])
            for place in range(count):
                file = FILE_DATA | {"path": path}
                body = {
                    "fn_index": function["id"],
                    "session_hash": "session",
                    "data": [file if i == place else None for i in range(count)],
                }
                answer = httpx.post(f"{site}/gradio_api/queue/join", json=body)
                status = 403 if function["backend_fn"] else 404
                assert answer.status_code == status, (function["api_name"], place)
    assert httpx.get(f"{site}/healthz").status_code == 200


# --- requests to elsewhere ---


@contextmanager
def bystander() -> Iterator[tuple[str, list[bytes]]]:
    """Yield the address of a server that must not be called, and a list of calls it received."""
    heard: list[bytes] = []

    def answer(asked: bytes) -> bytes:
        heard.append(asked)
        return b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"

    with raw_server(answer) as url:
        yield url, heard


def test_no_request_to_elsewhere(site: str):
    with bystander() as (url, heard):
        for target in (
            f"/gradio_api/file={url}/a.png",
            f"/gradio_api/file={quote(url, safe='')}/a.png",
            f"/gradio_api/file={url.upper()}/a.png",
            f"/gradio_api/file/{url}/a.png",
            "/gradio_api/file=https://example.org/a.png",
            f"/gradio_api/proxy={url}/",
            f"/gradio_api/proxy={quote(url, safe='')}/",
            "/gradio_api/proxy=https://example.hf.space/",
            f"/proxy={url}/",
            f"/?__theme={url}",
            f"/?view={url}",
        ):
            status, _, content = ask(site, target, **{"X-Direct-Url": url})
            assert status == 404 or (status == 200 and target.startswith("/?"))
            assert content != b"hi"
        file = FILE_DATA | {"path": f"{url}/a.png", "url": f"{url}/a.png"}
        values = {"prompt": file}
        refused = httpx.post(f"{site}/gradio_api/call/v2/generate", json=values)
        assert refused.status_code == 403
        assert heard == []
        assert httpx.get(url).text == "hi"  # calls do reach it
        assert len(heard) == 1


@pytest.mark.parametrize(
    "target",
    [
        "//evil.test",
        "//evil.test/..",
        "/\\evil.test",
        "/%2f%2fevil.test",
        "/%5cevil.test/",
        "/logout?_target_url=https://evil.test",
        "/login/huggingface?_target_url=https://evil.test",
        "/gradio_api/login/huggingface?_target_url=https://evil.test",
        "/login/callback?_target_url=https://evil.test",
        "/gradio_api/file=https://evil.test/",
        "/v1/model/?next=https://evil.test",
        "/v1/model//evil.test",
        "/healthz/",
    ],
)
def test_no_redirect_to_elsewhere(site: str, target: str):
    status, headers, _ = ask(site, target)
    location = urlsplit(headers.get("Location", ""))
    assert location.netloc in ("", urlsplit(site).netloc)
    assert status < 500


def test_a_host_name_from_one_visitor_is_not_shown_to_another(site: str):
    """A forged host header must not appear in another visitor's page, as it once did."""
    info = "/gradio_api/info"
    for name in ("X-Forwarded-Host", "X-Gradio-Server", "Host"):
        for target in ("/", "/config", info, f"{info}/", f"{info}?page=other", "/?view=api"):
            for host in ("evil.test", "192.0.2.66"):  # IP addresses are allowed as hosts
                ask(site, target, **{name: host})
                assert host.encode() not in ask(site, target)[2], (name, target)


def test_the_name_of_another_page_causes_no_error(site: str):
    for target in ("/?page=other", "/config?page=other", "/gradio_api/info?page=other&page=more"):
        assert ask(site, target)[0] == 200


# --- other pages ---


@pytest.mark.parametrize("origin", ["https://evil.test", "null", "http://localhost.evil.test"])
@pytest.mark.parametrize("host", [None, "sdxl.example.org", "localhost"])
def test_no_other_page_may_read_this_one(site: str, origin: str, host: str | None):
    headers = {"Origin": origin} | ({"Host": host} if host else {})
    for target in ("/", "/config", "/gradio_api/info", "/v1/model", "/healthz", "/metrics"):
        _, answer, _ = ask(site, target, **headers)
        assert "Access-Control-Allow-Origin" not in answer
        preflight = headers | {"Access-Control-Request-Method": "POST"}
        _, answer, _ = ask(site, target, "OPTIONS", **preflight)
        assert "Access-Control-Allow-Origin" not in answer


@pytest.mark.parametrize("origin", ["https://evil.test", "null"])
def test_no_other_page_may_send_anything(site: str, origin: str):
    """Cross-origin requests are refused, even forms and texts that need no preflight."""
    headers = {"Origin": origin}
    file = {"files": ("a.png", b"x")}
    assert httpx.post(f"{site}/gradio_api/upload", files=file, headers=headers).status_code == 403
    for path in ("/gradio_api/queue/join", "/v1/generate", "/v1/images/generations"):
        headers["Content-Type"] = "text/plain"
        assert httpx.post(site + path, content=b"{}", headers=headers).status_code == 403


def test_nothing_is_kept_in_cookies(site: str):
    """Without cookies, a form sent from another site carries no visitor's rights."""
    for target in ("/", "/config", "/v1/model", "/logout"):
        cookies = ask(site, target)[1].get_all("Set-Cookie") or []
        assert all('=""' in cookie or "Max-Age=0" in cookie for cookie in cookies)


# --- too large, too many, too slow ---


def test_uploads_are_small(site: str):
    url = f"{site}/gradio_api/upload"
    limit = MAX_UPLOAD_BYTES
    small = {"files": ("a.png", b"x" * (limit - 100_000))}
    assert httpx.post(url, files=small, timeout=60).status_code == 200
    for size in (limit + 100_000, 2 * limit):
        refused = httpx.post(url, files={"files": ("a.png", b"x" * size)}, timeout=60)
        assert refused.status_code == 413
    many = [("files", (f"{i}.png", b"x" * (limit // 10))) for i in range(20)]
    assert httpx.post(url, files=many, timeout=60).status_code == 413


FORM = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
JSON = "application/json"


@pytest.mark.parametrize(
    ("path", "kind", "start", "limit"),
    [
        ("/v1/generate", JSON, b'{"prompt": "', MAX_PICTURE_BODY_BYTES),
        ("/v1/images/generations", JSON, b'{"prompt": "', MAX_BODY_BYTES),
        ("/gradio_api/mcp", JSON, b'{"jsonrpc": "', MAX_PICTURE_BODY_BYTES),
        ("/gradio_api/call/generate", JSON, b'{"data": ["', MAX_PAGE_BODY_BYTES),
        ("/gradio_api/upload", "multipart/form-data; boundary=x", FORM, MAX_UPLOAD_BYTES),
    ],
)
def test_a_body_without_a_stated_length_is_bounded(
    site: str, path: str, kind: str, start: bytes, limit: int
):
    """A body that has no end is refused once it is longer than its limit, and not before."""
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\n"
    with socket.create_connection(("127.0.0.1", urlsplit(site).port), timeout=60) as client:
        client.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        for part in (start, b"x" * (limit - len(start))):
            client.sendall(b"%x\r\n%s\r\n" % (len(part), part))
        assert httpx.get(f"{site}/healthz").status_code == 200  # by now all of it has been read
        assert select.select([client], [], [], 0)[0] == []
        client.sendall(b"1\r\nx\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")


def test_compressed_bodies_are_not_unpacked(site: str):
    bomb = zlib.compress(b" " * 50_000_000, 9)
    assert len(bomb) < 100_000
    headers = {"Content-Type": "application/json", "Content-Encoding": "deflate"}
    for path in ("/v1/generate", "/gradio_api/call/generate"):
        refused = httpx.post(site + path, content=bomb, headers=headers, timeout=60)
        assert 400 <= refused.status_code < 500


def test_odd_multipart_bodies_take_no_time(site: str):
    """Odd multipart bodies are quick; a long boundary line once took a server minutes."""
    began = time.monotonic()
    for boundary, body in (
        (b"x", b"--x" + b"-" * 900_000),
        (b"x" * 5000, b"--" + b"x" * 5000 + b"\r\n" * 100_000),
        (b"x", b"--x\r\nContent-Disposition: form-data; " + b'name="a"; ' * 50_000),
        (b"x", b"--x\r\n" + b"A: b\r\n" * 100_000 + b"\r\n"),
    ):
        kind = b"multipart/form-data; boundary=" + boundary
        answer = httpx.post(
            f"{site}/gradio_api/upload", content=body, headers={b"Content-Type": kind}, timeout=60
        )
        assert "Traceback" not in answer.text
    assert time.monotonic() - began < 60
    assert httpx.get(f"{site}/healthz").status_code == 200


# --- HTML where only text belongs ---

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def test_markup_in_a_prompt_stays_text(site: str):
    name, (pictures, *_) = draw(site, MARKUP)
    assert name == "complete"
    assert re.fullmatch(r"[a-z0-9-]+\.png", Path(pictures[0]["path"]).name)
    refused = httpx.post(f"{site}/v1/generate", json={"prompt": "a", MARKUP: 1})
    assert refused.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    "name", [f"{MARKUP}.html", "a.svg", "a.html", "../../a.html", "a.png\0.html"]
)
def test_an_uploaded_page_is_not_shown_as_one(site: str, name: str):
    content = f"<svg xmlns='http://www.w3.org/2000/svg'>{MARKUP}</svg>".encode()
    answer = httpx.post(f"{site}/gradio_api/upload", files={"files": (name, io.BytesIO(content))})
    if answer.status_code != 200:
        assert 400 <= answer.status_code < 500
        return
    (path,) = answer.json()
    assert "<" not in path
    assert ".." not in path
    status, headers, _ = ask(site, f"/gradio_api/file={quote(path)}")
    assert status == 200
    assert headers["Content-Disposition"].startswith("attachment")
    assert headers["Content-Type"] == "application/octet-stream"
    assert headers["X-Content-Type-Options"] == "nosniff"


# --- routes that are disabled ---


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/gradio_api/component_server"),
        ("POST", "/gradio_api/component_server/"),
        ("GET", "/gradio_api/dev/reload"),
        ("GET", "/gradio_api/deep_link?session_hash=x"),
        ("GET", "/gradio_api/mcp/sse"),
        ("GET", "/gradio_api/runs"),
        ("GET", "/gradio_api/user"),
        ("GET", "/gradio_api/token"),
        ("GET", "/gradio_api/startup-events"),
        ("POST", "/gradio_api/undo-vibe-edit"),
        ("POST", "/gradio_api/run-history/connect"),
        ("POST", "/gradio_api/process_recording"),
        ("POST", "/gradio_api/cancel"),
        ("POST", "/gradio_api/reset"),
        ("GET", "/pwa_icon/100000"),
        ("GET", "/monitoring"),
        ("GET", "/monitoring/summary"),
        ("GET", "/login/huggingface"),
        ("GET", "/logout"),
        ("POST", "/login"),
        ("GET", "/gradio_api/queue/status"),
        ("GET", "/gradio_api/file//tmp/a.png"),
        ("GET", "/docs"),
        ("GET", "/redoc"),
    ],
)
def test_no_such_route(site: str, method: str, target: str):
    assert ask(site, target, method)[0] == 404


# --- routes that anybody can read ---

OPEN_TO_ALL = {
    "/": b"<!doctype html>",
    "/config": b'"version"',
    "/openapi.json": b'"openapi"',
    "/gradio_api/info": b'"/generate"',
    "/v1/model": b'"stand-in"',
    "/healthz": b'{"status":"alive"}',
    "/readyz": b'"ready":true',
    "/metrics": b"sdxl_build_info",
    "/robots.txt": b"User-agent",
}


def test_only_public_routes_are_readable_without_a_session(site: str, folder: Path):
    """Routes readable without a session reveal neither prompts nor paths of files."""
    draw(site, "my private prompt")
    for target, known in OPEN_TO_ALL.items():
        status, _, content = ask(site, target)
        assert status == 200
        assert known in content
        for private in (b"my private prompt", str(ROOT).encode(), str(folder).encode()):
            assert private not in content
        assert b"/tmp/" not in content


def addresses(routes: Sequence[BaseRoute]) -> Iterator[str]:
    """Yield the declared paths of all routes, including those of mounted applications."""
    for route in iter_route_contexts(routes):
        inner = route.original_route
        if isinstance(inner, Mount):
            assert inner.path == ""
            filled = {path: path.replace("={", "=/{") for path in addresses(inner.routes)}
            yield from (path for path in filled if ROUTES.fullmatch(filled[path]))
        else:
            assert route.path is not None
            yield re.sub(r":path}", "}", route.path).rstrip("/") or "/"


def test_the_table_names_every_open_route():
    """Every open route is in the table, so a route that a new Gradio version adds is noticed."""
    pipe, observer = FakePipeline().as_pipeline(), Observer()
    generator = local_generator(pipe, Limits(), observer)
    app = http_app.build(generator, observer, a1111="keys")
    mount(app, generator, "127.0.0.1", 7860, 600)
    there = set(addresses(app.routes))
    table = (ROOT / "docs" / "security.md").read_text().partition("## Readable without")[2]
    named = set(re.findall(r"`(/[^`]*)`", table))
    assert there == named


def test_a_page_with_users_is_closed():
    """A route that is added to the page, here or by Gradio, is closed unless it is listed."""
    observer = Observer()
    generator = local_generator(FakePipeline().as_pipeline(), Limits(), observer)
    access = Access(users=Users.with_passphrase("a passphrase"))
    app = http_app.build(generator, observer, access, a1111="keys")
    mount(app, generator, "127.0.0.1", 7860, 600, guarded=True)
    client = TestClient(app, "http://127.0.0.1")
    for path in addresses(app.routes):
        is_open = sign_in.OPEN.fullmatch(path) or path in sign_in.ENTRANCE
        for method in ("GET", "POST"):
            assert is_open or client.request(method, path).status_code == 401


def test_a_request_is_found_by_its_id_alone(site: str):
    """A request is found by its id only, and 24 characters of 64 cannot be guessed."""
    answer = httpx.post(f"{site}/v1/generate", json={"prompt": "a", "keep": True})
    request_id = answer.headers["Content-Location"].removeprefix("/v1/requests/")
    assert len(request_id) == 24
    assert httpx.get(f"{site}/v1/requests/{request_id}").status_code == 200
    for guess in ("%2e%2e", "*", request_id[:-1] + ("a" if request_id[-1] != "a" else "b")):
        assert httpx.get(f"{site}/v1/requests/{guess}").status_code in (400, 404)
    for path in ("/v1/requests", "/v1/requests/"):
        assert httpx.get(site + path).status_code == 404


# --- the table ---


def test_the_table_names_all_tests_here():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "security.md").read_text()))
    tree = ast.parse(Path(__file__).read_text())
    here = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    own = test_the_table_names_all_tests_here.__name__
    assert named == {name for name in here if name.startswith("test_")} - {own}
