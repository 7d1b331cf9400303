"""One address cannot keep others out, by calls, by connections or by slow request heads."""

import socket
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from benchmarks import attack, attacks
from benchmarks.processes import Instance, stand_in
from serving.http import app, server
from tests.web import serve, start

pytestmark = pytest.mark.slow  # attacks a server

OTHER = "127.0.0.2"


def client_at(address: str) -> httpx.Client:
    return httpx.Client(transport=httpx.HTTPTransport(local_address=address))


def test_calls_of_one_address_are_limited(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(app, "MAX_CALLS_EACH", 2)
    with serve(held=True) as site, ExitStack() as held:
        crowd = held.enter_context(client_at(OTHER))
        for _ in range(2):
            call = crowd.stream("POST", f"{site.url}/v1/generate", json={"prompt": "a"})
            assert held.enter_context(call).status_code == 200
        refused = crowd.post(f"{site.url}/v1/length", json={"prompt": "a"})
        assert refused.status_code == 429
        assert "Retry-After" in refused.headers
        assert crowd.get(f"{site.url}/healthz").status_code == 200
        assert httpx.post(f"{site.url}/v1/length", json={"prompt": "a"}).status_code == 200


@pytest.mark.parametrize("behind_proxy", [False, True])
def test_connections_of_one_address_are_limited(
    monkeypatch: pytest.MonkeyPatch, behind_proxy: bool
):
    """Connections of one address are limited, but not those of a proxy, which serves everybody."""
    monkeypatch.setattr(server, "MAX_CONNECTIONS_EACH", 3)
    with serve(behind_proxy=behind_proxy) as site, ExitStack() as opened:
        port = int(site.url.rpartition(":")[2])
        closed = []
        for _ in range(5):
            made = socket.create_connection(("127.0.0.1", port), 60, source_address=(OTHER, 0))
            opened.enter_context(made)
            try:
                made.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
                closed.append(not made.recv(1))
            except ConnectionError:
                closed.append(True)
        assert closed == ([False] * 5 if behind_proxy else [False] * 3 + [True] * 2)
        assert httpx.get(f"{site.url}/healthz").status_code == 200


def test_connections_that_end_make_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "MAX_CONNECTIONS_EACH", 1)
    with serve() as site:
        for _ in range(10):
            with client_at(OTHER) as client:
                assert client.get(f"{site.url}/healthz").status_code == 200


@pytest.mark.parametrize("body", [b"{", b'{"prompt": 7}', b"x" * 2_000_000])
def test_a_missing_key_is_reported_before_a_wrong_body(body: bytes):
    with serve(keys=["secret"]) as site:
        for path in ("generate", "images/generations", "length", "no-such-route"):
            answer = httpx.post(f"{site.url}/v1/{path}", content=body)
            assert answer.status_code == 401, path
        assert httpx.post(f"{site.url}/gradio_api/mcp", content=body).status_code == 401
        key = {"Authorization": "Bearer secret"}
        answer = httpx.post(f"{site.url}/v1/generate", content=body, headers=key)
        assert answer.status_code in (400, 413)


# The benchmark has further kinds, which take longer.
KINDS = (
    *(attacks.large_bodies, attacks.bracketed_texts, attacks.large_sessions),
    *(attacks.made_up_sessions, attacks.unread_answers, attacks.followers, attacks.uploads),
    *(attacks.held_heartbeats, attacks.idle_connections),
)


def test_a_visitor_draws_while_another_address_attacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(attack, "ATTACKS", KINDS)
    _, *flags = attack.program(tmp_path)
    instance = Instance(stand_in(20, "--steps", "10", *flags), tmp_path / "log")
    start(instance)
    try:
        report = attack.run(instance, 1.0 * len(attack.ATTACKS))
    finally:
        instance.stop(60)
    # Other tests use the processors, too: the benchmark's limit is for a machine of its own.
    assert attack.found_wrong(report, patience=6) == []
    assert "-1" not in report["made_up_sessions"]["answers"]


def test_streams_of_one_session_that_close_together_are_no_error(tmp_path: Path):
    """Gradio deletes the messages of the session with the first one, and again with the others."""
    instance = Instance(stand_in(20, "--steps", "10"), tmp_path / "log")
    start(instance)
    try:
        address = "127.0.0.1", int(instance.url.rpartition(":")[2])
        functions = attack.functions_of(instance.url)
        for number in range(5):
            body = {"fn_index": functions["again"], "data": [None]}
            body |= {"session_hash": f"s{number}"}
            assert httpx.post(f"{instance.url}/gradio_api/queue/join", json=body).is_success
            streams = [socket.create_connection(address) for _ in range(10)]
            path = f"/gradio_api/queue/data?session_hash=s{number}"
            for stream in streams:
                stream.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            assert streams[0].recv(12) == b"HTTP/1.1 200"
            for stream in streams:
                stream.close()
        assert httpx.get(f"{instance.url}/healthz").status_code == 200
    finally:
        instance.stop(60)
    assert "Traceback" not in instance.log.read_text()
