"""The real server over a stand-in for the model, whose every step takes the same time.

    python -m benchmarks.stand_in --step-ms 20 [the flags of app.py]

Measurements of such an instance show the serving path alone. Its pictures depend on the model, the
prompt and the seed only, like real ones: the same request must give the same picture.
"""

import argparse
import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np

import app
from benchmarks.stand_in_pipeline import Computation, StandInPipeline
from pipeline import SDXLPipeline
from pipeline.facts import ModelFacts
from pipeline.request import NUM_INFERENCE_STEPS
from serving.settings import Options


class StandIn(StandInPipeline):
    """A stand-in for `SDXLPipeline` that draws noise instead of what the prompt asks for.

    A step takes `step_s` seconds, whatever the number of its pictures, as if each slot had devices
    of its own. The devices compute one step after the other; further steps wait in a queue. There
    are two models, and a change of the model takes as long as five steps.
    """

    facts = replace(
        StandInPipeline.facts,
        models=(ModelFacts(name="other", scheduler="euler", schedulers=("euler",)),),
    )

    def __init__(self, step_s: float, images_per_request: int, num_inference_steps: int) -> None:
        super().__init__(images_per_request, num_inference_steps, change_s=5 * step_s)
        self._step_s = step_s
        self._free_at = 0.0  # `time.monotonic()` at which the devices have computed all steps

    def begin_step(self, prompts: np.ndarray) -> Computation:
        """Queue a step on the devices."""
        self._free_at = ready_at = max(self._free_at, time.monotonic()) + self._step_s
        return Computation(lambda: time.sleep(max(0.0, ready_at - time.monotonic())))

    def picture(self, seed: int, prompt: int, height: int, width: int) -> np.ndarray:
        """Return noise of a prompt and a seed."""
        noise = np.random.default_rng([seed, prompt])
        return noise.integers(0, 256, (height, width, 3), np.uint8)


def load(step_ms: float, options: Options) -> tuple[SDXLPipeline, bool]:
    """Return a `StandIn` in the form of `serving.bootstrap.load_pipeline`'s result."""
    steps = options.steps or NUM_INFERENCE_STEPS
    return StandIn(step_ms / 1000, options.images_per_request, steps).as_pipeline(), False


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stand_in", allow_abbrev=False)
    parser.add_argument("--step-ms", type=float, required=True, help="what a step takes")
    options, arguments = parser.parse_known_args()
    app.main(arguments, partial(load, options.step_ms))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
