"""The page when the connection is lost and restored, and on a slow network."""

import asyncio
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from benchmarks.processes import Instance
from benchmarks.proxy import Proxy
from tests.browsing import (
    DRAWN_WITHIN_MS,
    STOPPED,
    Visitor,
    ask,
    draw_pictures,
    is_press,
    settle,
    wait_for_pictures,
)
from tests.browsing import wait_until as wait_until_seen
from tests.gated import Gate
from tests.web import start, wait_until
from tools.page_states import PROMPT, open_advanced
from ui import i18n

MEANWHILE = "a yellow moon"
# Beginning of Chromium's own console messages about a lost connection.
BROKEN = "Failed to load resource"
SLOW = {"offline": False, "latency": 400, "downloadThroughput": 50_000, "uploadThroughput": 50_000}


class Line:
    """A network connection between the browser and a server's port, which a test can cut."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._proxy = Proxy(port)
        self.url = self._proxy.url
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.mend()

    def cut(self) -> None:
        asyncio.run_coroutine_threadsafe(self._proxy.close(), self._loop).result(10)

    def mend(self) -> None:
        asyncio.run_coroutine_threadsafe(self._proxy.open(), self._loop).result(10)

    def close(self) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)


@contextmanager
def line_to(port: int) -> Iterator[Line]:
    line = Line(port)
    yield line
    line.close()


@pytest.fixture(scope="module")
def slow_line(slow_address: str) -> Iterator[Line]:
    """Yield a connection to the program whose long drawings wait at the gate."""
    with line_to(port_of(slow_address)) as line:
        yield line


@pytest.fixture(scope="module")
def line(address: str) -> Iterator[Line]:
    """Yield a connection to the real program with a real model."""
    with line_to(port_of(address)) as line:
        yield line


@pytest.fixture
def instance(gate: Gate, tmp_path: Path) -> Iterator[Instance]:
    """Yield a program behind the gate that the test may stop, suspend and kill."""
    instance = Instance([*gate.program, "--grace", "0"], tmp_path / "log")
    try:
        start(instance)
        yield instance
    finally:
        instance.kill()


@pytest.fixture
def page(visitor: Visitor, line: Line) -> Iterator[Page]:
    with visitor.at(line.url, unless=BROKEN) as found:
        yield found


@pytest.fixture
def slow_page(visitor: Visitor, slow_line: Line) -> Iterator[Page]:
    with drawing_for_long(visitor, slow_line) as found:
        yield found


@contextmanager
def drawing_for_long(visitor: Visitor, line: Line) -> Iterator[Page]:
    """Open a page that is to draw so many steps that the drawing waits at the gate."""
    with visitor.at(line.url, unless=BROKEN) as page:
        open_advanced(page)
        set_steps(page, 50)
        yield page


def set_steps(page: Page, steps: int) -> None:
    page.locator("#steps input[type=number]").fill(str(steps))


def drawn(line: Line) -> float:
    """Return how many requests were drawn to their end."""
    found = re.search(r'^sdxl_requests_total\{outcome="done"\} (.*)$', metrics(line), re.M)
    return float(found[1]) if found else 0


def metrics(line: Line) -> str:
    return httpx.get(f"http://127.0.0.1:{line.port}/metrics").text


def port_of(address: str) -> int:
    return urlsplit(address).port or 0


@contextmanager
def kept_away(page: Page) -> Iterator[None]:
    """Keep the page offline inside this context, so that tests see the lost connection."""
    page.route("**/app_id", lambda route: route.fulfill(status=502))
    yield
    page.unroute("**/app_id")


def on_press(page: Page, handle: Callable[[Route], None]) -> None:
    """Handle the next request for pictures."""
    pending = [handle]

    def choose(route: Route) -> None:
        if pending and is_press(route.request):
            pending.pop()(route)
        else:
            route.continue_()

    page.route("**/run/predict*", choose)


def draw(page: Page) -> None:
    """Submit a prompt, wait until its first step is done, and type another prompt."""
    ask(page, PROMPT)
    page.wait_for_function("document.querySelector('#status progress')?.value > 0")
    page.locator("#prompt textarea").fill(MEANWHILE)


AWAY = i18n.LANGUAGES["en"]["STATUS"]["away"]


def expect_away(page: Page) -> None:
    """Expect the message about the lost connection as the status line, and nowhere else."""
    expect(page.locator("#status [data-line]")).to_have_text(AWAY)
    expect(page.get_by_test_id("toast-body")).to_have_count(0)


def expect_ready(page: Page, strip: str | re.Pattern[str]) -> None:
    """Expect the request's result in the status, and the page ready for the next request."""
    expect(page.locator("#status [data-line]")).to_have_text(strip, timeout=DRAWN_WITHIN_MS)
    expect(page.locator("#previews img")).to_have_count(0)
    expect(page.locator("#generate")).to_be_visible()
    expect(page.locator("#stop")).to_be_hidden()
    expect(page.locator("#prompt textarea")).to_have_value(MEANWHILE)
    expect(page.get_by_test_id("toast-body")).to_have_count(0)


@pytest.mark.slow
def test_back_while_it_is_still_drawn(slow_page: Page, slow_line: Line, gate: Gate):
    draw(slow_page)
    slow_line.cut()
    expect_away(slow_page)
    expect(slow_page.locator("#stop")).to_be_visible()
    slow_line.mend()
    expect(slow_page.locator("#status")).to_contain_text("Step 5 of 50")
    with gate.open(10):  # the time left is estimated from steps that are seen
        expect(slow_page.locator("#status")).to_contain_text(re.compile(r"Step \d+ of 50, about"))
    with gate.open():
        expect_ready(slow_page, "4 pictures")
    expect(slow_page.locator("#gallery .caption-label").first).to_contain_text(PROMPT)
    set_steps(slow_page, 2)
    draw_pictures(slow_page, MEANWHILE)
    expect(slow_page.locator("#gallery .caption-label").first).to_contain_text(MEANWHILE)


@pytest.mark.slow
def test_back_after_it_was_drawn(slow_page: Page, slow_line: Line, gate: Gate):
    page, before = slow_page, drawn(slow_line)
    draw(page)
    slow_line.cut()
    expect_away(page)
    with gate.open():
        wait_until(lambda: drawn(slow_line) == before + 1)
    slow_line.mend()
    expect_ready(page, "4 pictures")
    pictures = page.locator("#gallery .thumbnail-lg img")
    expect(pictures).to_have_count(4)
    assert pictures.last.evaluate("image => image.decode().then(() => image.width)") > 0


@pytest.mark.slow
def test_the_connection_may_be_lost_several_times(slow_page: Page, slow_line: Line, gate: Gate):
    draw(slow_page)
    for _ in range(2):
        slow_line.cut()
        expect_away(slow_page)
        slow_line.mend()
        expect(slow_page.locator("#status")).to_contain_text("Step")
    with gate.open():
        expect_ready(slow_page, "4 pictures")


@pytest.mark.slow
def test_a_press_during_an_outage_takes_effect_afterwards(slow_page: Page, slow_line: Line):
    draw(slow_page)
    slow_line.cut()
    expect_away(slow_page)
    slow_page.locator("#stop").click()
    slow_line.mend()
    expect_ready(slow_page, STOPPED)
    set_steps(slow_page, 2)
    slow_line.cut()
    slow_page.locator("#generate").click()
    expect_away(slow_page)
    slow_line.mend()
    wait_for_pictures(slow_page)


@pytest.mark.slow
def test_a_press_whose_events_break_off_at_once_is_followed(slow_page: Page):
    """The page knows an older request, and has not heard of that of the press."""
    draw(slow_page)
    slow_page.locator("#stop").click()
    expect_ready(slow_page, STOPPED)
    set_steps(slow_page, 2)
    slow_page.route(
        "**/following/*",
        lambda route: route.fulfill(body="", content_type="text/event-stream"),
        times=1,
    )
    slow_page.locator("#generate").click()
    expect_away(slow_page)
    expect_ready(slow_page, "4 pictures")
    expect(slow_page.locator("#gallery .caption-label").first).to_contain_text(MEANWHILE)


@pytest.mark.slow
def test_silence_counts_as_a_lost_connection(visitor: Visitor, instance: Instance, gate: Gate):
    with line_to(instance.port) as line, drawing_for_long(visitor, line) as page:
        draw(page)
        instance.signal(signal.SIGSTOP)
        expect(page.locator("#status")).to_have_text(AWAY)
        instance.signal(signal.SIGCONT)
        with gate.open():
            expect_ready(page, "4 pictures")


@pytest.mark.slow
def test_a_gateway_without_a_server_counts_as_a_lost_connection(slow_page: Page):
    on_press(slow_page, lambda route: route.fulfill(status=502))
    with kept_away(slow_page):
        ask(slow_page, PROMPT)
        expect_away(slow_page)
    slow_page.locator("#stop").click()
    expect(slow_page.locator("#status")).to_have_text(STOPPED)


def test_a_request_whose_answer_was_lost_is_not_drawn_twice(page: Page, line: Line):
    def cut(route: Route) -> None:
        route.fetch()
        route.abort("connectionreset")

    before = drawn(line)
    on_press(page, cut)
    with kept_away(page):
        ask(page, PROMPT)
        expect_away(page)
    wait_for_pictures(page)
    wait_until(lambda: idle(line))
    assert drawn(line) == before + 1
    expect(page.locator("#history li")).to_have_count(1)


def idle(line: Line) -> bool:
    """Return whether the server has nothing to draw."""
    load = httpx.get(f"http://127.0.0.1:{line.port}/readyz").json()
    return load["waiting"] == load["running"] == 0


def cut_once(page: Page, address: str | re.Pattern[str]) -> None:
    """Cut the first request to an address.

    The route stays: Chromium may never answer requests that are under way when the last route goes.
    """
    asked: list[Route] = []

    def handle(route: Route) -> None:
        asked.append(route)
        if len(asked) == 1:
            route.abort("connectionreset")
        else:
            route.continue_()

    page.route(address, handle)


@pytest.mark.slow
def test_a_picture_that_did_not_arrive_is_fetched_again(page: Page):
    cut_once(page, "**/gradio_api/file=**")
    draw_pictures(page, PROMPT)
    page.wait_for_function(
        """[...document.querySelectorAll("#gallery .thumbnail-lg img")].filter(
            (image) => image.complete && image.naturalWidth).length === 4""",
        timeout=DRAWN_WITHIN_MS,
    )


@pytest.mark.slow
def test_it_is_fetched_again_wherever_it_is_shown(page: Page):
    """Two images of one address are loaded again, the second added while the first one waits."""
    asked: list[Route] = []

    def hold_the_second(route: Route) -> None:
        asked.append(route)
        if len(asked) == 1:
            route.abort("connectionreset")
        elif len(asked) > 2:
            route.continue_()

    draw_pictures(page, PROMPT)
    page.route(re.compile(r"\?again$"), hold_the_second)
    with page.expect_response(lambda answer: "app_id" in answer.url):
        page.evaluate(SHOW_TWICE)
    settle(page)
    wait_until_seen(page, lambda: len(asked) == 2)
    # By now the first image waits for the answer to the second one's request.
    asked[1].abort("connectionreset")
    page.wait_for_function(
        """() => {
            const shown = [...document.querySelectorAll(".again")]
            return shown.length === 2 && shown.every((image) => image.naturalWidth)
        }""",
        timeout=DRAWN_WITHIN_MS,
    )


SHOW_TWICE = """() => {
            const gallery = document.querySelector("#gallery")
            const src = `${gallery.querySelector(".thumbnail-lg img").src}?again`
            const show = () => {
                const image = Object.assign(new Image(), { src, className: "again" })
                gallery.append(image)
                return image
            }
            show().addEventListener("error", show, { once: true })
        }"""


@pytest.mark.slow
def test_it_is_fetched_again_if_nobody_heard_of_its_failure(page: Page):
    draw_pictures(page, PROMPT)
    cut_once(page, re.compile(r"\?again$"))
    page.evaluate(FAIL_UNHEARD)
    page.wait_for_function("image.naturalWidth", timeout=DRAWN_WITHIN_MS)


FAIL_UNHEARD = """() => new Promise((failed) => {
            const silence = (event) => { event.stopImmediatePropagation(); failed() }
            addEventListener("error", silence, { capture: true, once: true })
            window.image = document.querySelector("#gallery .thumbnail-lg img")
            image.src += "?again"
        })"""


@pytest.mark.slow
def test_a_missing_picture_does_not_count_as_a_lost_connection(page: Page):
    page.evaluate(
        """new MutationObserver(() => {
            if (/lost/.test(document.querySelector("#status").textContent)) document.title = "away";
        }).observe(document.querySelector("#status"), { subtree: true, childList: true })"""
    )
    page.route("**/gradio_api/file=**", lambda route: route.fulfill(status=404))
    ask(page, PROMPT)
    is_anybody_there = page.expect_response(
        lambda answer: "app_id" in answer.url, timeout=DRAWN_WITHIN_MS
    )
    with is_anybody_there:
        wait_for_pictures(page)
    settle(page)
    assert page.title() != "away"


@pytest.mark.slow
def test_a_server_that_was_restarted_is_noticed(visitor: Visitor, instance: Instance):
    with line_to(instance.port) as line, drawing_for_long(visitor, line) as page:
        draw(page)
        instance.kill()
        expect_away(page)
        instance.start()
        expect_ready(page, i18n.LOST)
        set_steps(page, 2)
        draw_pictures(page, MEANWHILE)


@pytest.mark.slow
def test_a_request_abandoned_during_an_outage_is_drawn_afterwards(
    visitor: Visitor, instance: Instance, gate: Gate
):
    """A request abandoned while a phone was locked is drawn once its visitor is back."""
    with line_to(instance.port) as line, drawing_for_long(visitor, line) as page:
        draw(page)
        line.cut()
        expect_away(page)
        wait_until(lambda: 'outcome="abandoned"} 1' in metrics(line))
        with gate.open():
            line.mend()
            expect_ready(page, "4 pictures")


@contextmanager
def on_a_slow_network(browser: Browser, line: Line) -> Iterator[Page]:
    """Open the page over a network that is slow from the first byte."""
    context = browser.new_context()
    context.set_default_timeout(DRAWN_WITHIN_MS)
    page = context.new_page()
    chromium = context.new_cdp_session(page)
    chromium.send("Network.enable")
    chromium.send("Network.emulateNetworkConditions", SLOW)
    with page.expect_response(lambda answer: "/run/predict" in answer.url):
        # The page can be used before the last picture has arrived, for which "load" waits.
        page.goto(line.url, wait_until="commit")
    expect(page.locator("html[data-sdxl]")).to_be_attached(timeout=DRAWN_WITHIN_MS)
    yield page
    context.close()


@pytest.mark.slow
def test_a_slow_network(browser: Browser, slow_line: Line, gate: Gate):
    with on_a_slow_network(browser, slow_line) as page:
        ask(page, PROMPT)  # more steps than are drawn before the gate
        page.wait_for_function("document.querySelector('#status progress')?.value > 0")
        began = time.monotonic()
        expect(page.locator("#previews img")).to_have_count(4)
        with gate.open():
            wait_for_pictures(page)
        said = re.search(r"in ([\d.]+) s", page.locator("#status").inner_text())
        assert said is not None
        assert time.monotonic() - began < float(said[1]) + 60  # not minutes
        pictures = page.locator("#gallery .thumbnail-lg img")
        assert pictures.last.evaluate("image => image.decode().then(() => image.width)") > 0


@pytest.mark.slow
def test_stop_on_a_slow_network(browser: Browser, slow_line: Line):
    with on_a_slow_network(browser, slow_line) as page:
        draw(page)
        page.locator("#stop").click()
        expect_ready(page, STOPPED)
