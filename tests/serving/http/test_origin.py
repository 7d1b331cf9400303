"""Checks of a request's host, its origin and the framing of its body."""

from functools import partial

import pytest
from starlette.testclient import TestClient

from serving.http.app import build
from serving.http.auth import Access, ApiKeys, digests_of
from serving.http.middleware import Checks
from serving.http.origin import AllowedHosts, check_origin
from serving.metrics import Observer
from serving.requests.registry import Limits
from tests.fake_pipeline import FakePipeline
from tests.generators import local_generator
from tests.web import raw_request, serve

OWN = "draw.example.org"


@pytest.mark.parametrize(
    ("host", "names", "allowed"),
    [
        ("127.0.0.1:7860", (), True),
        ("[::1]:7860", (), True),
        ("localhost:7860", (), True),
        ("replica-1:7860", (), True),
        ("sdxl.default.svc.cluster.local", (), True),
        ("evil.test", (), False),
        ("evil.test:7860", (OWN,), False),
        (OWN, (OWN,), True),
        (f"{OWN.upper()}.:443", (OWN,), True),
        ("a.b.example.org", ("*.example.org",), True),
        ("example.org", ("*.example.org",), False),
        ("evil.test", ("*",), True),
        ("127.0.0.1.evil.test", (), False),
        ("evil.test/127.0.0.1", (), False),
        ("", (), False),
    ],
)
def test_only_known_hosts_are_answered(host: str, names: tuple[str, ...], allowed: bool):
    assert AllowedHosts(names).allows(host) == allowed


def test_a_visitor_under_another_name_reads_why_and_the_operator_once(
    caplog: pytest.LogCaptureFixture,
):
    with serve(allowed_hosts=(OWN,)) as site:
        for _ in range(2):
            head = "GET / HTTP/1.1\r\nHost: other.test\r\nAccept: text/html\r\n\r\n"
            answer = raw_request(site.url, head)
            assert b"content-type: text/plain" in answer
            assert answer.endswith(b"Its operator can add the host to ALLOWED_HOSTS.")
    refused = [message for message in caplog.messages if "other.test" in message]
    assert refused == ["Refused a request to 'other.test'; ALLOWED_HOSTS names this server's hosts"]


def test_a_made_up_host_is_not_answered():
    with serve(allowed_hosts=(OWN,)) as site:
        for target in ("/v1/model", "/gradio_api/mcp", "/healthz"):
            for header in ("Host: evil.test", "Host: 127.0.0.1\r\nX-Forwarded-Host: evil.test"):
                answer = raw_request(site.url, f"GET {target} HTTP/1.1\r\n{header}\r\n\r\n")
                assert answer.startswith(b"HTTP/1.1 421"), answer
                assert b"ALLOWED_HOSTS" in answer
                assert b"evil.test" not in answer
        answer = raw_request(
            site.url, f"GET /v1/model HTTP/1.1\r\nHost: {OWN}\r\nConnection: close\r\n\r\n"
        )
        assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "path", ["/healthz%0A", "/gradio_api/queue/join%0A", "/v1/model%00", "/assets/" + 300 * "a"]
)
def test_a_path_has_no_control_characters_and_no_long_parts(path: str):
    with serve() as site:
        answer = raw_request(site.url, f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 404")


def test_a_body_framed_twice_is_refused():
    """Ambiguous framing is refused; two servers could disagree on where the next request begins."""
    with serve() as site:
        head = "POST /v1/length HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        for framing in (
            "Content-Length: 15\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        ):
            smuggled = 'f\r\n{"prompt": "a"}\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: a\r\n\r\n'
            answer = raw_request(site.url, f"{head}{framing}\r\n{smuggled}")
            assert answer.startswith(b"HTTP/1.1 400")
            assert answer.count(b"HTTP/1.1") == 1  # the connection is closed


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({}, True),
        ({"Origin": "http://testserver"}, True),
        ({"Origin": "https://friend.test"}, True),
        ({"Origin": "https://friend.test", "Sec-Fetch-Site": "cross-site"}, True),
        ({"Origin": "https://public.test", "Sec-Fetch-Site": "same-origin"}, True),
        ({"Origin": "https://public.test", "X-Forwarded-Host": "public.test"}, True),
        ({"Origin": "https://evil.test"}, False),
        ({"Origin": "http://testserver", "Sec-Fetch-Site": "same-site"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://["}, False),
        ({"Origin": "http://[::1"}, False),
    ],
)
def test_pages_of_other_origins_change_nothing(headers: dict[str, str], passes: bool):
    async def answer(scope, receive, send):
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    client = TestClient(Checks(answer, [partial(check_origin, ["https://friend.test"])]))
    for method in ("POST", "DELETE"):
        assert client.request(method, "/", headers=headers).status_code == (204 if passes else 403)
    assert client.get("/", headers=headers).status_code == 204


@pytest.mark.parametrize(
    "name",
    [
        "Accept-Language",
        "Authorization",
        "Content-Length",
        "Content-Type",
        "Cookie",
        "Host",
        "Origin",
        "Range",
        "Referer",
        "X-Forwarded-For",
        "X-Forwarded-Host",
        "X-Forwarded-Proto",
    ],
)
def test_no_header_causes_an_error(name: str):
    pipe = FakePipeline().as_pipeline()
    generator = local_generator(pipe, Limits(), Observer())
    keys = ApiKeys(lambda: digests_of(["secret"]))
    app = build(generator, Observer(), Access(keys), trusted_proxies=1, a1111="keys")
    client = TestClient(app, base_url="http://127.0.0.1")  # an exception is raised
    texts = (
        "",
        "²",
        "[",
        "http://[",
        "[::1]:x",
        ";",
        "=,",
        "Basic ²",
        "bytes=²-1",
        "de;q=x",
        "9" * 400,
    )
    for value in [*(text.encode() for text in texts), b"\xff", b"multipart/form-data", b"\x00"]:
        headers = [(name.encode(), value)]
        if name != "Authorization":
            headers.append((b"Authorization", b"Bearer secret"))
        for path in ("/v1/length", "/v1/images/edits", "/gradio_api/upload"):
            answer = client.post(path, content=b'{"prompt": 1}', headers=headers)
            assert 400 <= answer.status_code < 500, (path, value)
        assert client.get("/v1/model", headers=headers).status_code < 500
