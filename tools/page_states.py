"""The page in a browser, brought into each of its states."""

import json
import os
import shutil
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO

from PIL import Image, ImageDraw
from playwright.sync_api import Browser, Page, Playwright, expect, sync_playwright

from ui import i18n

CHROMIUM = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
FLAGS = ("--disable-gpu", "--disable-background-networking", "--disable-component-update")
PROMPT = "a large red star on a blue background"
_MANY_STEPS = 50  # so that a state lasts long enough to look at it
WITHIN_MS = 300_000.0  # the limit of a wait, which only a machine that stands still exceeds
THREE_FRAMES = """async () => {
  for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame);
}"""


def chromium(playwright: Playwright) -> str:
    """Return the path of Chromium: in PATH, or else Playwright's own."""
    path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    return path or playwright.chromium.executable_path


def flags() -> list[str]:
    """Return Chromium's command-line flags."""
    # Chromium's sandbox does not work for root, and containers often run tests as root.
    return [*FLAGS, "--no-sandbox"] if os.getuid() == 0 else list(FLAGS)


@contextmanager
def launched() -> Iterator[Browser]:
    """Run Chromium without a window."""
    with sync_playwright() as playwright:
        executable = chromium(playwright)
        browser = playwright.chromium.launch(
            executable_path=executable, args=flags(), timeout=WITHIN_MS
        )
        yield browser
        browser.close()


def walk(page: Page, steps: int) -> Iterator[str]:
    """Yield the name of each state while the page is in it.

    The last pictures are drawn in `steps` steps.
    """
    prompt, status = page.locator("#prompt textarea"), page.locator("#status")
    expect(prompt).to_be_visible()
    expect(page.locator("html[data-sdxl]")).to_be_attached()
    expect(page.get_by_text("Loading...")).to_have_count(0)
    yield "empty"
    prompt.fill("(red:1.3) star, [dim]")
    expect(page.locator("#length .read")).to_be_visible()
    expect(page.locator("#length .unknown")).to_be_visible()
    yield "read"
    prompt.fill("")
    expect(page.locator("#length .read")).to_have_count(0)
    for name in ("style", "count", "picture", "seed"):
        page.locator(f"#chip-{name}").click()
        expect(page.locator(f"#panel-{name}")).to_be_visible()
        yield name
        if name == "style":
            yield from _looks(page)
        if name == "picture":
            yield from _start(page)
        page.locator(f"#chip-{name}").click()
    if page.locator("#live").count():  # offered only where the model draws quickly
        yield from _live(page)
    for name, button in (("advanced", i18n.ADVANCED), ("expert", i18n.EXPERT)):
        page.get_by_role("button", name=button).click()
        expect(page.locator(f"#{name} .form").first).to_be_visible()
        yield name
    page.get_by_role("button", name=i18n.ADVANCED).click()
    page.locator("#generate").click()
    expect(page.get_by_role("alert")).to_be_visible()
    yield "error"
    _set_steps(page, _MANY_STEPS)
    prompt.fill(PROMPT)
    with _somebody_else_drawing(page.url):
        prompt.press("Enter")
        expect(status).to_contain_text("in the queue")
        yield "waiting"
    expect(page.locator("#previews img")).to_have_count(4, timeout=WITHIN_MS)
    yield "running"
    page.keyboard.press("Escape")
    expect(page.locator("#generate")).to_be_visible()
    _wait_for_pictures(page)
    yield "stopped"
    _set_steps(page, steps)
    prompt.press("Enter")
    expect(status).not_to_contain_text("4 pictures")  # the run that was stopped may have finished
    expect(status).to_contain_text("4 pictures", timeout=WITHIN_MS)
    _wait_for_pictures(page)
    yield "finished"
    page.locator("#history-open").click()
    page.locator("#history li button").first.click()
    yield "history"
    page.locator("#history-open").click()
    open_picture(page)
    yield "opened"
    act(page, "edit")
    page.locator("#start-strength input").fill("100")
    prompt.press("Enter")
    expect(page.locator("#gallery .preview")).to_have_count(0)
    expect(page.locator("#generate")).to_be_visible(timeout=WITHIN_MS)
    _wait_for_pictures(page)
    open_picture(page)
    expect(page.locator("#before input")).to_be_visible()
    yield "compared"


def _looks(page: Page) -> Iterator[str]:
    """Choose the bundled model's first look while the style's panel is open, then leave it."""
    look, weight = page.locator("#loras [data-look]").first, page.locator("#loras [data-weight]")
    look.click()
    expect(weight).to_be_visible()
    weight.evaluate("(element) => element.scrollIntoView({ block: 'center' })")
    yield "looks"
    look.click()
    expect(weight).to_have_count(0)
    page.locator("#prompt").scroll_into_view_if_needed()


def _start(page: Page) -> Iterator[str]:
    """Start from a picture and mark a part of it, then remove it."""
    picture, file = Image.new("RGB", (384, 256), "white"), BytesIO()
    ImageDraw.Draw(picture).ellipse((80, 40, 250, 210), fill="red")
    picture.save(file, "PNG")
    page.locator("#restore-picture input[type=file]").set_input_files(
        {"name": "disc.png", "mimeType": "image/png", "buffer": file.getvalue()}
    )
    expect(page.locator("#edit .sheet")).to_be_visible()
    page.locator("#edit .sides summary").click()
    yield "start"
    page.locator("#edit .box summary").click()
    page.locator("#edit [data-do=add]").click()
    yield "marked"
    page.locator("#edit [data-do=remove]").click()
    expect(page.locator("#edit")).to_be_hidden()
    page.locator("#chip-picture").click()


def _live(page: Page) -> Iterator[str]:
    """Draw a picture while the prompt is typed, then switch that off and empty the prompt."""
    prompt, switch, picture = map(page.locator, ("#prompt textarea", "#live", "#live-picture img"))
    switch.click()
    prompt.fill(PROMPT)
    expect(picture).to_be_visible(timeout=WITHIN_MS)
    yield "live"
    switch.click()
    prompt.fill("")
    expect(picture).to_have_count(0)


def _wait_for_pictures(page: Page) -> None:
    """Wait until all four pictures are in the gallery and have been fetched."""
    expect(page.locator("#gallery .thumbnail-lg img")).to_have_count(4)
    wait_for_images(page)


def wait_for_images(page: Page) -> None:
    """Wait until every image in the window has been fetched; images below it are lazy."""
    page.wait_for_function(
        """() => [...document.images].every((image) => {
            const { top, bottom } = image.getBoundingClientRect();
            return image.complete || !image.checkVisibility() || bottom < 0 || top > innerHeight;
        })"""
    )


def open_picture(page: Page, index: int = 0) -> None:
    """Open a picture, and unfold its settings."""
    page.locator("#gallery .thumbnail-lg").nth(index).click()
    summary = page.locator("#picked details:not([open]) summary")
    expect(page.locator("#picked summary")).to_be_visible()
    if summary.count():
        summary.click()
    expect(page.locator("#picked-settings dd").first).to_be_visible()


def act(page: Page, *names: str) -> None:
    """Press an action in the bar of the opened picture; the name of its menu comes first."""
    for name in names:
        page.locator(f"#bar [data-act={name}]").click()


def open_advanced(page: Page) -> None:
    """Open the advanced settings and those for experts, and wait until they have initial values.

    The page would overwrite text that is typed earlier.
    """
    page.get_by_role("button", name=i18n.ADVANCED).click()
    page.get_by_role("button", name=i18n.EXPERT).click()
    expect(page.locator("#steps input[type=number]")).to_be_visible()
    page.evaluate(THREE_FRAMES)


def _set_steps(page: Page, steps: int) -> None:
    page.get_by_role("button", name=i18n.ADVANCED).click()
    expect(page.locator("#steps input[type=number]")).to_be_visible()
    page.evaluate(THREE_FRAMES)
    page.locator("#steps input[type=number]").fill(str(steps))
    page.get_by_role("button", name=i18n.ADVANCED).click()


@contextmanager
def _somebody_else_drawing(url: str) -> Iterator[None]:
    """Occupy the server with another visitor's request until the block ends."""
    # Heun evaluates the network twice in a step.
    body = {"prompt": "a yellow moon", "num_inference_steps": _MANY_STEPS, "scheduler": "heun"}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}v1/generate", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=WITHIN_MS / 1000) as events:
        while b"event: started" not in events.readline():
            time.sleep(0)
        yield
