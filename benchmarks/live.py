"""The time from a key to its live picture, in a real Chromium on the same machine.

    .venv/bin/python -m benchmarks.live

A visitor types prompts to the bundled miniature, a key every `KEY_MS`, and waits at the end of each
word until its picture is in view. The measured time begins with the word's last key, so it contains
the pause that the page waits for. Needs the packages that `make test` installs. Writes
`benchmarks/results/<date>-live-<images>.json`.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import record
from benchmarks.processes import Instance
from pipeline import BUNDLED

if TYPE_CHECKING:
    from playwright.sync_api import Page

KEY_MS = 60
WARM_UP = 2  # words that are not counted
PROMPTS = (
    "a large red star on a blue background",
    "a small white circle inside a large red heart",
    "a yellow moon above a green triangle",
    "an outlined orange hexagon on a cyan background",
    "a glossy pink heart on a black background",
)
# Notes when the last key came, when its request went out, and when its picture was first painted.
WATCH = """() => {
  window.marks = {};
  const field = document.querySelector("#prompt textarea");
  field.addEventListener("input", () => {
    window.marks = { key: performance.now(), text: field.value.trim() };
  });
  const seen = (image) => requestAnimationFrame(() => setTimeout(() => {
    if (image.alt.endsWith(`: ${window.marks.text}`)) window.marks.shown ??= performance.now();
  }));
  new MutationObserver((changes) => {
    for (const { addedNodes } of changes) {
      for (const node of addedNodes) {
        for (const image of [node, ...(node.querySelectorAll?.("img") ?? [])]) {
          if (image.tagName === "IMG") seen(image);
        }
      }
    }
  }).observe(document.querySelector("#stage"), { subtree: true, childList: true });
}"""
MARKS = """() => {
  const { key, shown } = window.marks;
  const { requestStart, responseEnd } = performance.getEntriesByType("resource")
    .filter(({ name, requestStart }) => name.endsWith("/live") && requestStart > key).at(-1);
  return {
    asked_for: requestStart - key, answered: responseEnd - key, shown: shown - key,
  };
}"""


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live")
    parser.add_argument("--images-per-request", default="4", help="pictures drawn at once")
    images = parser.parse_args().images_per_request
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--model", str(BUNDLED), "--live", "on", "--images-per-request", images]
        instance = Instance(["app.py", *flags], Path(folder, "log"))
        instance.start()
        try:
            instance.wait_until_ready()
            measured = {"images_per_request": int(images)} | report(instance.url)
            record.write(f"live-{images}", measured)
        finally:
            instance.stop()


def report(url: str) -> dict[str, Any]:
    """Return milliseconds from a word's last key to each stage, the median of all words."""
    from tools.page_states import launched

    with launched() as browser:
        page = browser.new_page()
        page.goto(url)
        page.locator("#live").click()
        page.evaluate(WATCH)
        seen = [_typed(page, word) for prompt in PROMPTS for word in _words(page, prompt)][WARM_UP:]
    middle = {name: round(statistics.median(each[name] for each in seen)) for name in seen[0]}
    shown = sorted(round(each["shown"]) for each in seen)
    return {"words": len(seen), "median_ms": middle, "shown_ms": shown}


def _words(page: "Page", prompt: str) -> list[str]:
    """Empty the field, and return the words of a prompt with the space before each."""
    page.locator("#prompt textarea").fill("")
    first, *others = prompt.split()
    return [first, *(f" {word}" for word in others)]


def _typed(page: "Page", word: str) -> dict[str, float]:
    """Type a word, and return the milliseconds until its picture is asked for, sent and shown."""
    page.evaluate("performance.clearResourceTimings()")
    page.locator("#prompt textarea").press_sequentially(word, delay=KEY_MS)
    page.wait_for_function("() => window.marks.shown", timeout=60_000)
    return page.evaluate(MARKS)


if __name__ == "__main__":
    main()
