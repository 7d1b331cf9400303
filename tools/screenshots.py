"""`make screenshots`: the page in each of its states, light and dark, in windows of every kind.

The bundled miniature draws. Writes `<state>-<light|dark>-<window>.png` files to a folder, each with
what the window shows.
"""

import argparse
from itertools import product
from pathlib import Path

from playwright.sync_api import expect

from benchmarks.processes import ROOT, running
from pipeline import BUNDLED
from tools import page_states

# Width and height in CSS pixels; the last is a window of 1280x800 at a zoom of 200 %.
SIZES = {
    "360": (360, 740),
    "820": (820, 1180),
    "1280": (1280, 800),
    "1920": (1920, 1080),
    "zoomed": (640, 400),
}
SCHEMES = ("light", "dark")
_STEPS = 25


def main() -> None:
    """Take all screenshots."""
    parser = argparse.ArgumentParser(prog="python -m tools.screenshots", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "screenshots")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    expect.set_options(timeout=page_states.WITHIN_MS)
    with running(["app.py", "--model", str(BUNDLED)]) as instance:
        for scheme, size in product(SCHEMES, SIZES):
            _take(instance.url, scheme, size, out)
    print(out)


def _take(url: str, scheme: str, size: str, out: Path) -> None:
    width, height = SIZES[size]
    with page_states.launched() as browser:
        page = browser.new_page(
            color_scheme="dark" if scheme == "dark" else "light",
            viewport={"width": width, "height": height},
            device_scale_factor=2 if width < 1000 else 1,
            has_touch=width < 1000,
        )
        page.set_default_timeout(page_states.WITHIN_MS)
        page.goto(url)
        for state in page_states.walk(page, _STEPS):
            page_states.wait_for_images(page)
            page.screenshot(path=out / f"{state}-{scheme}-{size}.png")


if __name__ == "__main__":
    main()
