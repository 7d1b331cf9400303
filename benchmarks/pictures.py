"""Drawing from a picture with the bundled miniature, on this machine.

    .venv/bin/python -m benchmarks.pictures

Draws one picture in turns from noise, from a picture at several strengths, and with a mask, and
takes the shortest of several runs. Prints seconds, and writes results/<date>-pictures.json.
"""

import argparse
import time
from collections.abc import Callable

import jax
import numpy as np

from benchmarks import record
from pipeline import BUNDLED, SDXLPipeline

PROMPT = "a red star on a blue background"
STRENGTHS = (0.25, 0.5, 0.8)


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pictures", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    pipe = SDXLPipeline.from_pretrained(BUNDLED, images_per_request=1)
    found = shortest(cases(pipe), options.repeats)
    print(found)
    record.write("pictures", {"steps": pipe.facts.num_inference_steps, "seconds": found})


def cases(pipe: SDXLPipeline) -> dict[str, Callable[[], object]]:
    """Return what to measure, by name."""
    run, every = pipe._compiled, np.ones(1, bool)
    rng = np.random.default_rng(0)
    image = rng.uniform(size=(pipe.facts.height, pipe.facts.width, 3)).astype(np.float32)
    mask = np.zeros(image.shape[:2], np.float32)
    mask[:, pipe.facts.width // 2 :] = 1
    noise = run.initial_latents(np.zeros(1, np.uint32), 1.0)

    def draw(**options: object) -> Callable[[], object]:
        return lambda: pipe.generate(PROMPT, **options)  # type: ignore[arg-type]

    def encode() -> object:
        return jax.block_until_ready(run.encode_image(image[None], noise, (1.0, 0.0), every))

    return {
        "encode": encode,
        "decode": lambda: jax.block_until_ready(run.decode(noise, every)),
        "from noise": draw(),
        **{f"strength {share:g}": draw(image=image, strength=share) for share in STRENGTHS},
        "with a mask, strength 1": draw(image=image, mask=mask, strength=1.0),
    }


def shortest(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the shortest of several runs of each function, in seconds; they run in turns."""
    seconds = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            seconds[name] = min(seconds[name], time.perf_counter() - began)
    return {name: round(value, 3) for name, value in seconds.items()}


if __name__ == "__main__":
    main()
