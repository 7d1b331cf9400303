"""Signing in and out, and the paths that are closed to visitors who have not signed in."""

from collections.abc import Iterator
from typing import Any

import bcrypt
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from serving.http import app, sign_in
from serving.http.auth import Access, ApiKeys, Users, digests_of
from serving.metrics import Observer
from serving.requests.registry import Limits
from tests.fake_pipeline import FakePipeline
from tests.generators import local_generator

HASH = bcrypt.hashpw(b"a password", bcrypt.gensalt(4))
ANNA = {"name": "anna", "password": "a password"}
METHODS = ["GET", "HEAD", "POST", "DELETE"]
HTML = {"Accept": "text/html,*/*;q=0.8"}


def build(users: Users | None = None, **options: Any) -> FastAPI:
    """Return an application with one key and one user, whose page has every other address."""
    generator = local_generator(FakePipeline().as_pipeline(), Limits(), Observer())
    access = Access(ApiKeys(lambda: digests_of(["a key"])), users or Users(lambda: {"anna": HASH}))
    application = app.build(generator, Observer(), access, **options)

    @application.api_route("/{path:path}", methods=METHODS, include_in_schema=False)
    async def page(path: str) -> str:
        return "the page"

    return application


def client_of(application: FastAPI, origin: str = "http://127.0.0.1") -> TestClient:
    return TestClient(application, origin, follow_redirects=False)


@pytest.fixture
def client() -> Iterator[TestClient]:
    with client_of(build()) as client:
        yield client


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "path",
    [
        *("/", "//", "/config", "/live", "/gradio_api/queue/join", "/gradio_api/file=/x.png"),
        *("/pictures/a/b.png", "/following/x", "/gradio_api/mcp/x", "/v1", "/sign-in/"),
        *("/sign-in%2Fx", "/%2e/", "/healthz/", "/healthz/../config", "/HEALTHZ", "/Scripts/x"),
        *("/scripts", "/x/scripts/y", "//v1/model", "/;/v1/model", "/openapi.json"),
    ],
)
def test_everything_else_is_closed(client: TestClient, method: str, path: str):
    for headers in ({}, {"Cookie": "sdxl-session=a.b.c"}, {"Authorization": "Bearer no key"}):
        answer = client.request(method, f"http://127.0.0.1{path}", headers=headers)
        assert answer.status_code == 401
    signed_in = {"Cookie": f"sdxl-session={Users(lambda: {'anna': HASH}).token('anna')}"}
    for headers in (signed_in, {"Authorization": "Bearer a key"}):
        answer = client.request(method, f"http://127.0.0.1{path}", headers=headers)
        assert answer.status_code != 401


def test_a_web_socket_is_closed(client: TestClient):
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    assert client.get("/live", headers=headers).status_code == 401


def test_apis_keep_their_keys(client: TestClient):
    for path in ("/healthz", "/readyz", "/metrics", "/gradio.js", "/assets/x", "/scripts/x/y"):
        assert client.get(path).status_code == 200
    assert client.get("/v1/model").json()["error"]["code"] == "unauthorised"
    assert client.get("/v1/model", headers={"Authorization": "Bearer a key"}).status_code == 200


def test_the_way_in_and_out(client: TestClient):
    sent = client.get("/?prompt=a%20star&seed=7", headers=HTML)
    assert (sent.status_code, sent.headers["Location"]) == (303, "sign-in?prompt=a%20star&seed=7")
    form = client.get("/sign-in?prompt=a%20star")
    assert form.status_code == 200
    assert form.headers["Cache-Control"] == "no-store, private"
    assert '<meta name="robots" content="noindex">' in form.text

    entered = client.post("/sign-in?prompt=a%20star", data=ANNA)
    assert (entered.status_code, entered.headers["Location"]) == (303, "./?prompt=a%20star")
    cookie = entered.headers["Set-Cookie"]
    assert cookie.endswith("; Path=/; Max-Age=2592000; HttpOnly; SameSite=Lax")
    page = client.get("/", headers=HTML)
    assert (page.text, page.headers["Cache-Control"]) == ('"the page"', "private")

    left = client.post("/sign-out")
    assert (left.status_code, left.headers["Location"]) == (303, "sign-in")
    assert "Max-Age=0" in left.headers["Set-Cookie"]
    assert client.get("/", headers=HTML).status_code == 303


def test_nothing_redirects_to_elsewhere(client: TestClient):
    for query in ("next=//evil.test", "next=https://evil.test", "//evil.test", "@evil.test/"):
        for headers in (HTML, {}):
            answer = client.post(f"/sign-in?{query}", data=ANNA, headers=headers)
            assert answer.headers["Location"].startswith("./?")
        client.cookies.clear()
        assert client.get(f"/?{query}", headers=HTML).headers["Location"].startswith("sign-in?")
    assert client.get("http://127.0.0.1//evil.test/", headers=HTML).status_code == 401


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"name": "anna"},
        {"name": "anna", "password": "another"},
        {"name": "<b>", "password": "a password"},
        {"name": "n" * 100_000, "password": "p" * 100_000},
    ],
)
def test_wrong_ones_get_the_form_again(client: TestClient, fields: dict[str, str]):
    answer = client.post("/sign-in", data=fields)
    assert answer.status_code == 401
    assert "The username or the password is wrong." in answer.text
    assert "Set-Cookie" not in answer.headers
    assert "<b>" not in answer.text
    assert "another" not in answer.text


def test_bodies_are_bounded(client: TestClient):
    assert client.post("/sign-in", data={"password": "p" * 2**18}).status_code == 413
    for content in (b"--x", b'{"name": "anna"}', b"%ff=%zz&" * 10):
        for kind in ("multipart/form-data; boundary=x", "application/x-www-form-urlencoded"):
            answer = client.post("/sign-in", content=content, headers={"Content-Type": kind})
            assert answer.status_code in (400, 401)
    assert client.post("/sign-in", files={"password": b"x"}).status_code == 400


def test_attempts_are_bounded_before_any_is_checked(monkeypatch: pytest.MonkeyPatch):
    with client_of(build(trusted_proxies=1)) as client:

        def attempt(address: str) -> int:
            headers = {"X-Forwarded-For": address}
            return client.post("/sign-in", data={"name": "a"}, headers=headers).status_code

        statuses = [attempt("1.1.1.1") for _ in range(sign_in.ATTEMPTS_EACH + 1)]
        assert statuses == [401] * sign_in.ATTEMPTS_EACH + [429]
        monkeypatch.setattr(Users, "check", None)
        refused = client.post("/sign-in", data=ANNA, headers={"X-Forwarded-For": "1.1.1.1"})
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) <= 3
        assert "You have sent too many requests." in refused.text
        monkeypatch.undo()
        assert attempt("2.2.2.2") == 401
        others = [attempt(f"3.3.3.{number}") for number in range(sign_in.ATTEMPTS)]
        assert others.count(401) >= sign_in.ATTEMPTS - sign_in.ATTEMPTS_EACH - 1
        assert others[-1] == 429


@pytest.mark.parametrize("path", ["/sign-in", "/sign-out", "/live", "/gradio_api/run/predict"])
def test_other_sites_cannot_use_or_change_the_cookie(path: str):
    """Not even those that may embed the page."""
    with client_of(build(cors_origins=["https://a.example"])) as client:
        client.post("/sign-in", data=ANNA)
        for headers in (
            {"Origin": "https://a.example"},
            {"Origin": "null"},
            {"Origin": "https://127.0.0.1.evil.test"},
            {"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "cross-site"},
            {"Origin": "http://127.0.0.1:81", "Sec-Fetch-Site": "same-site"},
        ):
            answer = client.post(path, headers=headers)
            assert answer.status_code == 403
            assert "Set-Cookie" not in answer.headers
        assert client.post(path, headers={"Origin": "http://127.0.0.1"}).status_code != 403


@pytest.mark.parametrize(
    ("origin", "options", "kind"),
    [
        ("https://127.0.0.1", {}, "Secure; SameSite=Lax"),
        ("https://127.0.0.1", {"on_space": True}, "Secure; SameSite=None; Partitioned"),
        ("http://127.0.0.1", {"on_space": True}, "SameSite=Lax"),
    ],
)
def test_the_cookie_suits_the_page(origin: str, options: dict[str, Any], kind: str):
    with client_of(build(**options), origin) as client:
        cookies = [
            client.post(path, data=ANNA).headers["Set-Cookie"] for path in ("/sign-in", "/sign-out")
        ]
    assert [cookie.partition("; HttpOnly; ")[2] for cookie in cookies] == [kind, kind]
    with client_of(build(**options)) as client:  # behind a proxy that does not tell of HTTPS
        answer = client.post("/sign-in", data=ANNA, headers={"Origin": "https://127.0.0.1"})
    assert "Secure; " in answer.headers["Set-Cookie"]


def test_a_frame_gets_a_link_to_the_page_alone():
    with client_of(build(on_space=True)) as client:
        frame, alone = (
            client.get("/sign-in?seed=7", headers={"Sec-Fetch-Dest": kind}).text
            for kind in ("iframe", "document")
        )
    assert '<a href="./?seed=7" target="_blank">' in frame
    assert "_blank" not in alone


def test_a_passphrase_has_no_name():
    with client_of(build(Users.with_passphrase("a passphrase"))) as client:
        assert 'name="name"' not in client.get("/sign-in").text
        wrong = client.post("/sign-in", data={"password": "another one"})
        assert "The passphrase is wrong." in wrong.text
        assert (
            "name"
            not in client.post("/sign-in", data={"name": "x", "password": "a passphrase"}).cookies
        )
        assert client.post("/sign-in", data={"password": "a passphrase"}).status_code == 303
