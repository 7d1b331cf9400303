"""Helpers for tests that open the page in a browser."""

import re
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

import pytest
from PIL import Image, ImageDraw
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    FilePayload,
    Locator,
    Page,
    Request,
    WebSocket,
    expect,
)
from playwright.sync_api import (
    TimeoutError as NotInTime,
)

from pipeline.images import metadata
from pipeline.images.metadata import Settings
from tools.page_states import THREE_FRAMES, open_advanced
from ui import i18n
from ui.form import link

STOPPED = re.compile(r"^\s*Stopped")  # with or without unfinished pictures

# The limits are generous because a busy machine is slow, not wrong.
DRAWN_WITHIN_MS = 180_000
SHOWN_WITHIN_MS = 60_000
expect.set_options(timeout=SHOWN_WITHIN_MS)


@contextmanager
def opened(
    browser: Browser,
    address: str,
    width: int = 1280,
    height: int = 800,
    *,
    unless: str | tuple[str, ...] = (),
    **options: Any,
) -> Iterator[Page]:
    """Open the page in a browser that was never used; see `_watched`."""
    with (
        _context(browser, width, height, **options) as context,
        _watched(context, address, unless) as page,
    ):
        yield page


class Visitor:
    """A visitor who comes to pages anew, in a browser that keeps only the files of pages."""

    def __init__(self, context: BrowserContext) -> None:
        self._context = context
        self._beside: dict[str, Page] = {}  # by address; keeps the address's renderer running

    @classmethod
    @contextmanager
    def of(cls, browser: Browser) -> Iterator[Self]:
        with _context(browser) as context:
            yield cls(context)

    @contextmanager
    def at(self, address: str, *, unless: str | tuple[str, ...] = ()) -> Iterator[Page]:
        """Open a page, and make the browser forget what it stored when the page is closed.

        See `_watched`.
        """
        if address not in self._beside:
            self._beside[address] = self._context.new_page()
            self._beside[address].goto(f"{address}/healthz")
        try:
            with _watched(self._context, address, unless) as page:
                yield page
        finally:
            for page in self._context.pages:
                if page not in self._beside.values():
                    page.close()
            self._context.clear_permissions()
            self._beside[address].evaluate("localStorage.clear()")


@contextmanager
def _context(
    browser: Browser, width: int = 1280, height: int = 800, **options: Any
) -> Iterator[BrowserContext]:
    # Animations would be rendered by the CPU, which is busy enough.
    options.setdefault("reduced_motion", "reduce")
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    context.set_default_timeout(SHOWN_WITHIN_MS)
    yield context
    context.close()


@contextmanager
def _watched(
    context: BrowserContext, address: str, unless: str | tuple[str, ...]
) -> Iterator[Page]:
    """Open the page, and check that it requests nothing from other sites and logs no errors.

    Errors that begin with `unless` are ignored.
    """
    page = context.new_page()
    strangers: list[str] = []
    errors: list[str] = []

    def sent(each: Request | WebSocket) -> None:
        if _is_far(each.url):
            strangers.append(each.url)

    context.on("request", sent)
    page.on("websocket", sent)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if _is_error(said, unless) else None)
    # The test must not act before the page's first requests are answered: a second one fills the
    # fields from the address.
    with opening(page):
        page.goto(address)
    expect(page.locator("#prompt textarea").first).to_be_visible()
    if any(name in link.NAMES for name, _ in parse_qsl(urlsplit(address).query)):
        expect(page.locator("#status [data-line]")).not_to_be_empty()
    yield page
    page.close()
    context.remove_listener("request", sent)
    assert strangers == []
    assert errors == [], errors


@contextmanager
def opening(page: Page) -> Iterator[None]:
    """Wait until the server has answered the page that is opened in the block."""
    # This minute begins before the page is loaded, which may take one of its own.
    within = 2 * SHOWN_WITHIN_MS
    with page.expect_response(lambda answer: "/run/predict" in answer.url, timeout=within):
        yield


def _is_far(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1:", "http://localhost:", "data:", "blob:"))


def _is_error(said: ConsoleMessage, unless: str | tuple[str, ...]) -> bool:
    return said.type == "error" and not said.text.startswith(unless)


def ask(page: Page, prompt: str) -> None:
    """Enter a prompt and submit it."""
    page.locator("#prompt textarea").fill(prompt)
    page.keyboard.press("Enter")


def await_focus_on_picture(page: Page) -> None:
    """Wait until keys reach the open picture: the gallery takes the focus a moment later."""
    page.wait_for_function("document.activeElement.closest('#gallery .preview, #picked')")


def ask_after_a_refusal(page: Page, prompt: str) -> None:
    """Enter a prompt and press Enter until Gradio accepts it.

    Gradio ignores a press until it has received the end of the previous request. Each press goes
    to the prompt, because a refusal moves the focus to the field that it names.
    """
    field = page.locator("#prompt textarea")
    field.fill(prompt)
    for _ in range(20):
        try:
            with page.expect_request(is_press, timeout=3000):
                field.press("Enter")
        except NotInTime:
            continue
        return
    raise AssertionError("no press of Enter was taken")


def is_press(request: Request) -> bool:
    """Return whether a request of the page asks for pictures: it brings the id of the press."""
    return "/run/predict" in request.url and '"press":' in (request.post_data or "")


def settle(page: Page) -> None:
    """Wait until the page shows what it has received."""
    page.evaluate(THREE_FRAMES)


def await_answer(page: Page) -> None:
    """Ask the server something, and wait for the answer: it has heard of all that was sent before.

    The prompt is another one afterwards.
    """
    page.locator("#prompt textarea").fill("red " * 58)
    expect(page.locator("#length")).to_have_text("60 of 77 tokens")
    settle(page)


def wait_until(page: Page, condition: Callable[[], object]) -> None:
    """Wait until a condition holds; the browser's events arrive meanwhile."""
    deadline = time.monotonic() + SHOWN_WITHIN_MS / 1000
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        page.wait_for_timeout(10)


def wait_for_pictures(page: Page, count: int = 4) -> None:
    """Wait until all pictures of a request are in the gallery."""
    drawn = i18n.text("pictures", count=count) + " in"
    expect(page.locator("#status")).to_contain_text(drawn, timeout=DRAWN_WITHIN_MS)
    expect(page.locator("#gallery .thumbnail-lg img")).to_have_count(count)
    expect(page.locator("#generate")).to_be_visible()


def draw_pictures(page: Page, prompt: str, count: int = 4) -> None:
    """Enter a prompt and submit it, and wait until all pictures are in the gallery."""
    ask(page, prompt)
    wait_for_pictures(page, count)


def fix_seed(page: Page, seed: str) -> None:
    """Type a seed, which is then no longer random."""
    page.locator("#chip-seed").click()
    page.locator("#seed input").fill(seed)
    page.keyboard.press("Escape")


def choose_steps(page: Page, steps: int) -> None:
    """Open the advanced settings and enter a number of steps."""
    open_advanced(page)
    page.locator("#steps input[type=number]").fill(str(steps))


def press_to_copy(button: Locator) -> None:
    """Press a copy button, and check that it confirms the copy for a moment."""
    said = button.evaluate_handle(
        """(button) => ({
          next: new Promise((tell) => {
            const changed = new MutationObserver(() => tell(button.textContent));
            changed.observe(button, { childList: true });
          }),
        })"""
    )
    button.click()
    assert said.evaluate("({ next }) => next") == i18n.ACTIONS["copied"]


def width_needed(page: Page) -> int:
    """Return the width of the page in pixels, which should not exceed that of the window."""
    return page.evaluate("document.documentElement.scrollWidth")


def keep_history(page: Page, entries: dict[str, Any]) -> None:
    """Put entries into the history that the browser keeps, by the ids of their requests."""
    page.evaluate(
        """(entries) => {
          for (const [id, entry] of Object.entries(entries)) {
            localStorage.setItem(`sdxl-history ${id}`, JSON.stringify(entry));
          }
        }""",
        entries,
    )


AXE = Path(__file__).parent / "node" / "node_modules" / "axe-core" / "axe.min.js"
VIOLATIONS = """async () => (await axe.run()).violations.map(
    (each) => `${each.id} (${each.impact}): ${each.nodes.map((node) => node.html.slice(0, 200))}`
)"""


def picture(width: int = 384, height: int = 256, made: Settings | None = None) -> FilePayload:
    """Return a file with a red disc on white, as a visitor chooses it."""
    image, file = Image.new("RGB", (width, height), "white"), BytesIO()
    ImageDraw.Draw(image).ellipse((80, 40, 250, 210), fill="red")
    if made is not None:
        metadata.attach(image, made)
    metadata.save_png(image, file)
    return {"name": "disc.png", "mimeType": "image/png", "buffer": file.getvalue()}


def choose(page: Page, file: FilePayload) -> None:
    """Choose a picture to start from, and wait until it can be edited."""
    if page.locator("#chip-picture").get_attribute("aria-expanded") == "false":
        page.locator("#chip-picture").click()
    page.locator("#restore-picture input[type=file]").set_input_files(file)
    expect(page.locator("#edit .sheet")).to_be_visible()


def drop(page: Page, where: str, name: str, content: bytes) -> None:
    """Drop a file on the element that the selector `where` finds."""
    files = page.evaluate_handle(
        """([name, text]) => {
          const files = new DataTransfer();
          files.items.add(new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], name));
          return files;
        }""",
        [name, b64encode(content).decode()],
    )
    for event in ("dragover", "drop"):
        refused = page.locator(where).evaluate(
            """(part, [event, dataTransfer]) => !part.dispatchEvent(
              new DragEvent(event, { dataTransfer, bubbles: true, cancelable: true }))""",
            [event, files],
        )
        assert refused  # the browser's own handling of the file is prevented


IS_SEEN = """() => {
    const focused = document.activeElement;
    // A list of choices has the frame around its field and its arrow.
    const framed = focused.role === "combobox" ? focused.closest(".wrap-inner") : focused;
    const { outlineStyle, boxShadow } = getComputedStyle(framed);
    return outlineStyle !== "none" || boxShadow !== "none";
}"""
IS_SEEN_OR_NOWHERE = f"() => document.activeElement === document.body || ({IS_SEEN})()"
IS_THERE = "(selector) => Boolean(document.activeElement.closest(selector))"
MOST_TABS = 60


def go(page: Page, selector: str, key: str = "Tab") -> None:
    """Press a key until the element has the focus, which must stay visible on the way."""
    for _ in range(MOST_TABS):
        if page.evaluate(IS_THERE, selector):
            return
        page.keyboard.press(key)
        page.wait_for_function(IS_SEEN_OR_NOWHERE)
    pytest.fail(f"{key} does not lead to {selector}")
