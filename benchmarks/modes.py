"""`python -m benchmarks.modes`: what modes that are not exact save, and what they cost.

The bundled miniature draws the same prompts from the same seeds in 25 steps: with guidance in all
of them or in only the first part, with the whole UNet in every evaluation or in one of several, and
with a UNet that multiplies 8-bit whole numbers. The modes draw each request in turn. Writes
`benchmarks/results/<date>-modes.json` and prints it.
"""

import argparse
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import record
from pipeline import BUNDLED, SDXLPipeline
from pipeline.runtime.mesh import cores_as_devices
from tools.miniature.evaluate import SEED, draw_scenes, score
from tools.miniature.scenes import prompt

IMAGES = 4  # per request


class Mode(NamedTuple):
    """The settings of a mode; the defaults are exact."""

    guidance_until: float = 1.0
    cache_interval: int = 1
    quantization: str | None = None

    @property
    def of_requests(self) -> dict[str, Any]:
        """The settings of its requests; the other one is the pipeline's."""
        return {"guidance_until": self.guidance_until, "cache_interval": self.cache_interval}

    @property
    def name(self) -> str:
        """Its settings, in a record."""
        text = ", ".join(f"{name} {value}" for name, value in self.of_requests.items())
        return text if self.quantization is None else f"{text}, {self.quantization}"


EXACT = Mode()
MODES = (
    *(Mode(), Mode(0.5), *(Mode(1.0, interval) for interval in (2, 3, 5)), Mode(0.5, 3)),
    *(Mode(share, interval, "int8") for share, interval in ((1.0, 1), (1.0, 3), (0.5, 3))),
)


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.modes", description=__doc__)
    parser.add_argument("--prompts", type=int, default=128, help="a multiple of 4")
    parser.add_argument("--cache-dir", type=Path, help="private folder of compiled executables")
    options = parser.parse_args()
    cores_as_devices(IMAGES)
    pipes = {
        quantization: SDXLPipeline.from_pretrained(
            BUNDLED,
            images_per_request=IMAGES,
            step_cache=True,
            quantization=quantization,
            cache_dir=options.cache_dir,
        )
        for quantization in dict.fromkeys(mode.quantization for mode in MODES)
    }
    scenes = draw_scenes(options.prompts)
    pictures, seconds = _draw(pipes, [prompt(scene) for scene in scenes])
    rows = {
        mode.name: {
            **mode._asdict(),
            "request_seconds": round(min(seconds[mode]), 3),
            "request_seconds_median": round(statistics.median(seconds[mode]), 3),
            **score(scenes, pictures[mode]),
            **_distance(pictures[mode], pictures[EXACT]),
        }
        for mode in MODES
    }
    model = pipes[None].facts.name
    report: dict[str, Any] = {"model": model, "prompts": len(scenes), "modes": rows}
    record.write("modes", report)


def _draw(
    pipes: Mapping[str | None, SDXLPipeline], prompts: list[str]
) -> tuple[dict[Mode, np.ndarray], dict[Mode, list[float]]]:
    """Draw all prompts in every mode, with the pipeline of its quantisation.

    Returns:
        By mode, pictures `[n, H, W, 3]` uint8, and the seconds of each request.
    """
    pictures: dict[Mode, list[np.ndarray]] = {mode: [] for mode in MODES}
    seconds: dict[Mode, list[float]] = {mode: [] for mode in MODES}
    for start in range(0, len(prompts), IMAGES):
        for mode in MODES:
            began = time.perf_counter()
            result = pipes[mode.quantization].generate(
                prompts[start : start + IMAGES], seed=SEED + start, **mode.of_requests
            )
            seconds[mode].append(time.perf_counter() - began)
            pictures[mode] += [np.asarray(image) for image in result.images]
    return {mode: np.stack(mode_pictures) for mode, mode_pictures in pictures.items()}, seconds


def _distance(pictures: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """Return percentiles of the pictures' peak signal-to-noise ratio against `exact`, in dB.

    Empty if all pictures are equal.
    """
    errors = np.square((pictures.astype(np.float32) - exact) / 255).mean(axis=(1, 2, 3))
    if not errors.any():
        return {}
    low, median, high = np.percentile(-10 * np.log10(np.maximum(errors, 1e-12)), (10, 50, 90))
    percentiles = {"psnr_db_10th": low, "psnr_db_median": median, "psnr_db_90th": high}
    return {name: round(float(value), 1) for name, value in percentiles.items()}


if __name__ == "__main__":
    main()
