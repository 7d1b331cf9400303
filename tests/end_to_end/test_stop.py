"""Sites that may embed the page, and how the program stops.

A program that is told to stop first finishes the pictures that visitors wait for.
"""

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from signal import SIGTERM
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, expect

from benchmarks.processes import Instance
from pipeline import SDXLPipeline
from serving.generator import Done, Image
from serving.generators.local import LocalDrawer
from serving.http import server
from serving.metrics import Observer
from serving.requests.lifecycle import RequestLifecycle
from serving.requests.record import Record
from serving.requests.registry import Limits
from tests.browsing import SHOWN_WITHIN_MS, ask, opened, wait_for_pictures
from tests.browsing import wait_until as wait_until_seen
from tests.fake_pipeline import FakePipeline
from tests.gated import Gate
from tests.web import Site, folder_served, serve, start, wait_until

pytestmark = pytest.mark.slow  # starts the program again and again

# Larger than the system's buffers for a client that does not read.
LARGE = b"\x89PNG" + bytes(24 * 2**20)
ALL_ARE_SHOWN = """() => {
  const shown = [...document.querySelectorAll("#gallery .thumbnail-lg img")]
  return shown.length === 4 && shown.every((each) => each.complete && each.naturalWidth > 0)
}"""


# --- in a browser


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Yield another site's two addresses; only the first one may embed the page."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "empty.html").write_text("<!doctype html><title>Elsewhere</title>")
    with folder_served(folder) as port:
        yield f"http://localhost:{port}", f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def instance(
    others: tuple[str, str], gate: Gate, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Instance]:
    """Run the program; the last test that uses it may stop it."""
    log = tmp_path_factory.mktemp("app") / "log"
    instance = Instance([*gate.program, "--cors-origins", others[0]], log)
    try:
        start(instance)
        yield instance
    finally:
        instance.kill()
    assert "Traceback" not in log.read_text()


EMBED = """async (url) => {
  const frame = document.createElement("iframe")
  frame.src = `${url}/?embed=1`
  const element = document.createElement("gradio-app")
  element.setAttribute("src", url)
  document.body.append(frame, element)
  try {
    await import(`${url}/gradio.js`)
  } catch (error) {
    return String(error)
  }
}"""


@pytest.mark.parametrize("allowed", [True, False])
def test_only_named_sites_can_embed_the_page(
    browser: Browser, instance: Instance, others: tuple[str, str], allowed: bool
):
    """Another site can embed the page, as an element or a frame, only if it is allowed."""
    page = browser.new_page()
    page.set_default_timeout(SHOWN_WITHIN_MS)
    refused: list[str] = []
    page.on("console", lambda said: refused.append(said.text) if said.type == "error" else None)
    page.goto(f"{others[0] if allowed else others[1]}/empty.html")
    failed = page.evaluate(EMBED, instance.url)
    prompts = [
        page.locator("gradio-app #prompt textarea"),
        page.frame_locator("iframe").locator("#prompt textarea"),
    ]
    if allowed:
        assert failed is None
        for prompt in prompts:
            expect(prompt).to_be_visible()
    else:
        assert "Failed to fetch" in failed
        for why in ("frame-ancestors", "CORS policy"):
            wait_until_seen(page, lambda why=why: any(why in text for text in refused))
        for prompt in prompts:
            expect(prompt).to_have_count(0)
    page.close()


def test_only_named_sites_can_read_the_component(instance: Instance, others: tuple[str, str]):
    allowed, evil = (
        httpx.get(f"{instance.url}/gradio.js", headers={"Origin": origin}).headers
        for origin in others
    )
    assert allowed["Access-Control-Allow-Origin"] == others[0]
    assert "Access-Control-Allow-Origin" not in evil
    for headers in (allowed, evil):
        assert headers["Vary"] == "Origin"
        assert headers["Cache-Control"] == "no-cache"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Content-Type"].partition(";")[0].endswith("/javascript")
        assert headers["Content-Security-Policy"].endswith(f"frame-ancestors 'self' {others[0]}")


def test_the_page_shows_the_pictures_that_were_being_drawn(
    browser: Browser, instance: Instance, gate: Gate
):
    """The program shows the pictures it was drawing, and then ends."""
    # A page that closes late finds that the program has ended.
    with opened(
        browser, instance.url, unless="Failed to load resource: net::ERR_CONNECTION_REFUSED"
    ) as page:
        ask(page, "a large red star")
        expect(page.locator("#status")).to_contain_text(re.compile(r"Step \d"))
        instance.signal(SIGTERM)
        wait_until(lambda: httpx.get(f"{instance.url}/readyz").status_code == 503)
        with gate.open():
            wait_for_pictures(page)
        page.wait_for_function(ALL_ARE_SHOWN)
    assert instance.process.wait(120) == 0


# --- over the API


class Painting(LocalDrawer):
    """A drawer of one large picture, once `may_end` is set."""

    def __init__(self, pipe: SDXLPipeline, limits: Limits, observer: Observer) -> None:
        super().__init__(pipe, limits, observer)
        self.may_end = threading.Event()

    async def draw(self, record: Record) -> None:
        while not self.may_end.is_set():
            await asyncio.sleep(0.01)
        self.requests.publish(record, Image(0, LARGE, 7, {}))
        self.requests.publish(record, Done())


@contextmanager
def asked(site: Site, **more: object) -> Iterator[socket.socket]:
    """Request a picture from the OpenAI route, on a connection with a small receive buffer."""
    body = json.dumps({"prompt": "a star", **more}).encode()
    head = "POST /v1/images/generations HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        client.settimeout(60)
        client.connect(("127.0.0.1", urlsplit(site.url).port))
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: readiness(site).json()["running"] == 1)
        yield client


def readiness(site: Site) -> httpx.Response:
    return httpx.get(f"{site.url}/readyz")


def rest(client: socket.socket) -> bytes:
    """Return everything the server sends until it hangs up."""
    parts = iter(lambda: client.recv(2**20), b"")
    return b"".join(parts)


def test_a_slow_reader_is_sent_everything():
    painting = Painting(FakePipeline().as_pipeline(), Limits(), Observer())
    with (
        serve(generator=RequestLifecycle(painting, Limits(), Observer())) as site,
        asked(site) as client,
    ):
        site.stop()
        painting.may_end.set()
        wait_until(lambda: site.has_unsent)
        site.skip(server.GOODBYE_S - 1)
        answer = rest(client)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head
    assert json.loads(body)["data"][0]["b64_json"]


def test_calls_are_answered_for_a_while_after_the_last_drawing():
    """Requests are answered for a while, even if the last drawing ended just before the signal."""
    painting = Painting(FakePipeline().as_pipeline(), Limits(), Observer())
    with serve(generator=RequestLifecycle(painting, Limits(), Observer()), answers_on_s=8) as site:
        with asked(site) as client:
            wait_until(lambda: site.server._drew_at > 0)  # the server has seen it draw
            painting.may_end.set()
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        site.stop()
        wait_until(lambda: readiness(site).status_code == 503)
        assert httpx.get(f"{site.url}/healthz").status_code == 200
        site.skip(8)
        site.thread.join(60)
        assert not site.thread.is_alive()


def test_the_server_stops_at_once_if_nothing_was_drawn():
    with serve(answers_on_s=300) as site:
        site.stop()
        site.thread.join(60)
        assert not site.thread.is_alive()
