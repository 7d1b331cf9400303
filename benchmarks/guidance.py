"""`python -m benchmarks.guidance`: what an early end of guidance saves, and what it costs.

The bundled miniature draws the same prompts from the same seeds with guidance in all 25 steps, and
with guidance in only the first part of them. Writes `benchmarks/results/<date>-guidance.json` and
prints it.
"""

import argparse
import statistics
import time
from typing import Any

import numpy as np

from benchmarks import record
from pipeline import BUNDLED, SDXLPipeline
from tools.miniature.evaluate import SEED, draw_scenes, score
from tools.miniature.scenes import prompt

SHARES = (1.0, 0.75, 0.5, 0.25)  # the others are compared with the first


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guidance", description=__doc__)
    parser.add_argument("--prompts", type=int, default=128, help="a multiple of 4")
    options = parser.parse_args()
    pipe = SDXLPipeline.from_pretrained(BUNDLED)
    scenes = draw_scenes(options.prompts)
    prompts = [prompt(scene) for scene in scenes]
    exact, _, _ = drawn = _draw(pipe, prompts, SHARES[0])
    rows = {}
    for share in SHARES:
        pictures, wall, cpu = drawn if share == SHARES[0] else _draw(pipe, prompts, share)
        rows[share] = {
            "request_seconds_median": round(statistics.median(wall), 3),
            "request_cpu_seconds_median": round(statistics.median(cpu), 3),
            **score(scenes, pictures),
            **_distance(pictures, exact),
        }
    report: dict[str, Any] = {"model": pipe.model, "prompts": len(prompts), "guidance_until": rows}
    record.write("guidance", report)


def _draw(
    pipe: SDXLPipeline, prompts: list[str], share: float
) -> tuple[np.ndarray, list[float], list[float]]:
    """Draw all prompts with guidance in the first `share` of the steps.

    Returns:
        Pictures `[n, H, W, 3]` uint8, and each request's wall-clock and processor seconds.
    """
    pictures, wall, cpu = [], [], []
    count = pipe.images_per_request
    for start in range(0, len(prompts), count):
        began = time.perf_counter(), time.process_time()
        result = pipe.generate(
            prompts[start : start + count], seed=SEED + start, guidance_until=share
        )
        wall.append(time.perf_counter() - began[0])
        cpu.append(time.process_time() - began[1])
        pictures += [np.asarray(image) for image in result.images]
    return np.stack(pictures), wall, cpu


def _distance(pictures: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """Return percentiles of the pictures' peak signal-to-noise ratio against `exact`, in dB.

    Empty if all pictures are equal.
    """
    errors = np.square((pictures.astype(np.float32) - exact) / 255).mean(axis=(1, 2, 3))
    if not errors.any():
        return {}
    low, median, high = np.percentile(-10 * np.log10(np.maximum(errors, 1e-12)), (10, 50, 90))
    found = {"psnr_db_10th": low, "psnr_db_median": median, "psnr_db_90th": high}
    return {name: round(float(value), 1) for name, value in found.items()}


if __name__ == "__main__":
    main()
