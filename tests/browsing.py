"""The program as a process of its own, and a browser that meets its page."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

ROOT = Path(__file__).parent.parent
CHROMIUM = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
FLAGS = ("--disable-gpu", "--disable-background-networking", "--disable-component-update")
READY_WITHIN_S = 180
DRAWN_WITHIN_MS = 60_000
expect.set_options(timeout=20_000)  # a busy machine is slow, not wrong


@contextmanager
def served(arguments: Sequence[str], folder: Path) -> Iterator[str]:
    """Runs the program; ended politely, and not without having been well."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    log = folder / "log"
    with log.open("w") as output:
        command = [sys.executable, *arguments, "--port", str(port)]
        program = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for(url, program, log)
            yield url
        finally:
            program.send_signal(signal.SIGTERM)
            status = program.wait(timeout=60)
    assert "Traceback" not in log.read_text()
    assert status == 0


def _wait_for(url: str, program: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline and program.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the page did not come up:\n{log.read_text()}")


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window."""
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    # Chromium's own sandbox does not work for root, as whom containers often run tests.
    flags = [*FLAGS, "--no-sandbox"] if os.getuid() == 0 else list(FLAGS)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=flags)
        yield started
        started.close()


@contextmanager
def opened(
    browser: Browser, address: str, width: int = 1280, height: int = 800, **options: Any
) -> Iterator[Page]:
    """The page must neither call anywhere else nor write errors to the console."""
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    page = context.new_page()
    strangers: list[str] = []
    errors: list[str] = []
    page.on("request", lambda sent: strangers.append(sent.url) if _is_far(sent.url) else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    # Nobody acts before what the page asks for when it is opened is answered.
    with page.expect_response(lambda answer: "/queue/data" in answer.url):
        page.goto(address)
    expect(page.locator("#prompt textarea")).to_be_visible()
    yield page
    context.close()
    assert strangers == []
    assert errors == []


def _is_far(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:"))


def ask(page: Page, prompt: str) -> None:
    """Has the page draw."""
    page.locator("#prompt textarea").fill(prompt)
    page.keyboard.press("Enter")


def wait_for_pictures(page: Page) -> None:
    """Until all four are there."""
    expect(page.locator("#status")).to_contain_text("4 pictures in", timeout=DRAWN_WITHIN_MS)
    expect(page.locator("#gallery .thumbnail-lg img")).to_have_count(4)


def width_needed(page: Page) -> int:
    """How wide the page is, which should be no wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth")
