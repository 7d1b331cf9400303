"""The time from the last step to the visitor's screen: everything after the drawing.

    .venv/bin/python -m benchmarks.delivery

A stand-in for the model returns four pictures of 1024x1024 pixels at once, with grain like
photographs. A real Chromium on the same machine asks the page for them, again and again. The
measured time ends with the last byte of the last picture in the browser. Needs the packages that
`make test` installs. Writes `benchmarks/results/<date>-delivery.json`.
"""

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import app
from benchmarks import record
from benchmarks.processes import Instance, running
from benchmarks.stand_in import StandIn
from pipeline import SDXLPipeline
from pipeline.drawing.drawing import Progress
from serving.settings import Options

SIDE = 1024
# The exponent with which power falls with frequency, and the noise of each pixel: about as in
# photographs.
FALL, GRAIN = 1.6, 1.0
SERVE = "--serve"
STARTED = "drawn at "
# The resource timing of each picture in the gallery; the history fetches them again for its
# thumbnails.
SHOWN = """() => [...document.querySelectorAll("#gallery img")].map(
  (image) => performance.getEntriesByName(image.src)[0].toJSON())"""


class Finished(StandIn):
    """A stand-in that returns its pictures immediately, and prints the time when it does."""

    facts = replace(StandIn.facts, height=SIDE, width=SIDE)

    def __init__(self) -> None:
        super().__init__(step_s=0, images_per_request=4, num_inference_steps=1)
        self._ready = [_photographic(seed) for seed in range(self.facts.images_per_request)]

    def advance(self) -> list[Progress]:
        """See `StandIn.advance`."""
        progress_list = super().advance()
        if any(progress.drawing.is_over for progress in progress_list):
            print(f"{STARTED}{time.time()}", flush=True)
        return progress_list

    def picture(self, seed: int, prompt: int, height: int, width: int) -> np.ndarray:
        """Return one of the pictures."""
        return self._ready[seed % len(self._ready)]


def _photographic(seed: int) -> np.ndarray:
    """Return noise whose power falls with its frequency, as in photographs."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(SIDE), np.fft.fftfreq(SIDE)))
    frequency[0, 0] = 1
    noise = rng.normal(size=(SIDE, SIDE, 3))
    soft_noise = np.fft.ifft2(
        np.fft.fft2(noise, axes=(0, 1)) / frequency[..., None] ** FALL, axes=(0, 1)
    )
    colours = soft_noise.real / soft_noise.real.std()
    pixels = 128 + 50 * (colours[..., :1] + 0.3 * colours) + GRAIN * rng.normal(size=colours.shape)
    return np.clip(pixels, 0, 255).astype(np.uint8)


def load(_: Options) -> tuple[SDXLPipeline, bool]:
    """Return a `Finished` in the form of `serving.bootstrap.load_pipeline`'s result."""
    return Finished().as_pipeline(), False


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delivery")
    parser.add_argument("--repeats", type=int, default=15, help="requests, after two to warm up")
    repeats = parser.parse_args().repeats
    program = ["-m", "benchmarks.delivery", SERVE, "--steps", "1", "--log-format", "json"]
    with running(program) as instance:
        record.write("delivery", report(instance, 2 + repeats))


def report(instance: Instance, requests: int) -> dict[str, Any]:
    """Return median milliseconds from the last step to each stage.

    `bytes` are the sizes of the last request's files.
    """
    from playwright.sync_api import expect

    from tools.page_states import WITHIN_MS, launched

    timings: list[dict[str, float]] = []
    resources: list[dict[str, Any]] = []
    with launched() as browser:
        page = browser.new_page()
        page.set_default_timeout(WITHIN_MS)
        page.goto(instance.url)
        page.locator("html[data-sdxl]").wait_for()
        for number in range(requests):
            page.evaluate("performance.clearResourceTimings()")
            page.locator("#prompt textarea").fill(f"picture {number}")
            page.keyboard.press("Enter")
            caption = page.locator("#gallery .caption-label").last
            expect(caption).to_contain_text(f"picture {number}", timeout=WITHIN_MS)
            page.wait_for_function(
                "[...document.querySelectorAll('#gallery img')].every((image) => image.complete)"
            )
            drawn_at, finish_ms = _of_the_server(instance.log)
            resources = page.evaluate(SHOWN)
            began_ms = page.evaluate("performance.timeOrigin") - 1000 * drawn_at
            first_ms = began_ms + min(resource["requestStart"] for resource in resources)
            last_ms = began_ms + max(resource["responseEnd"] for resource in resources)
            timings.append({"encoded": finish_ms, "asked_for": first_ms, "last_byte": last_ms})
            expect(page.locator("#history li img")).to_have_count(number + 1)
        sizes = [resource["encodedBodySize"] for resource in resources]
    timings = timings[2:]
    medians = {
        name: round(statistics.median(timing[name] for timing in timings), 1) for name in timings[0]
    }
    ends = sorted(round(timing["last_byte"], 1) for timing in timings)
    return {"requests": len(timings), "median_ms": medians, "last_byte_ms": ends, "bytes": sizes}


def _of_the_server(log: Path) -> tuple[float, float]:
    """Read from the log when the newest pictures were drawn, and how long finishing them took.

    Returns:
        Seconds since 1970, and milliseconds.
    """
    lines = log.read_text().splitlines()
    drawn_at = max(float(line.removeprefix(STARTED)) for line in lines if line.startswith(STARTED))
    requests = [json.loads(line) for line in lines if line.startswith("{") and "finish_ms" in line]
    return drawn_at, requests[-1]["finish_ms"]


if __name__ == "__main__":
    if SERVE in sys.argv:
        sys.argv.remove(SERVE)
        app.main(sys.argv[1:], load)
    else:
        main()
