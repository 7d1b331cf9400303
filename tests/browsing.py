"""Helpers for tests that open the page in a browser."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Locator,
    Page,
    Request,
    WebSocket,
    expect,
)
from playwright.sync_api import (
    TimeoutError as NotInTime,
)

from ui import i18n

# The limits are generous because a busy machine is slow, not wrong.
DRAWN_WITHIN_MS = 180_000
SHOWN_WITHIN_MS = 60_000
# Browsers rightly refuse to let a frame of another site take the focus.
NO_ERROR = "Blocked autofocusing"
expect.set_options(timeout=SHOWN_WITHIN_MS)


@contextmanager
def opened(
    browser: Browser,
    address: str,
    width: int = 1280,
    height: int = 800,
    *,
    unless: str = NO_ERROR,
    **options: Any,
) -> Iterator[Page]:
    """Open the page, and check that it requests nothing from other sites and logs no errors.

    Errors that begin with `unless` are ignored.
    """
    # Animations would be rendered by the CPU, which is busy enough.
    options.setdefault("reduced_motion", "reduce")
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    context.set_default_timeout(SHOWN_WITHIN_MS)
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
    # The test must not act before the page's first requests are answered.
    with page.expect_response(lambda answer: "/queue/data" in answer.url):
        page.goto(address)
    expect(page.locator("#prompt textarea")).to_be_visible()
    yield page
    context.close()
    assert strangers == []
    assert errors == [], errors


def _is_far(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1:", "http://localhost:", "data:", "blob:"))


def _is_error(said: ConsoleMessage, unless: str) -> bool:
    return said.type == "error" and not said.text.startswith(unless)


def ask(page: Page, prompt: str) -> None:
    """Enter a prompt and submit it."""
    page.locator("#prompt textarea").fill(prompt)
    page.keyboard.press("Enter")


def ask_after_a_refusal(page: Page, prompt: str) -> None:
    """Enter a prompt and press Enter until Gradio accepts it.

    Gradio ignores a press until it has received the end of the previous request.
    """
    page.locator("#prompt textarea").fill(prompt)
    for _ in range(60):
        try:
            with page.expect_request(lambda request: "/queue/join" in request.url, timeout=1000):
                page.keyboard.press("Enter")
        except NotInTime:
            continue
        return
    raise AssertionError("no press of Enter was taken")


def wait_for_pictures(page: Page) -> None:
    """Wait until all four pictures are in the gallery."""
    expect(page.locator("#status")).to_contain_text("4 pictures in", timeout=DRAWN_WITHIN_MS)
    expect(page.locator("#gallery .thumbnail-lg img")).to_have_count(4)
    expect(page.locator("#generate")).to_be_visible()


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
    assert said.evaluate("({ next }) => next") == i18n.COPIED


def width_needed(page: Page) -> int:
    """Return the width of the page in pixels, which should not exceed that of the window."""
    return page.evaluate("document.documentElement.scrollWidth")
