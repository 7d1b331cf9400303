"""A pipeline that draws grey squares; a test may hold back every step.

`python -m tests.fake_pipeline [the flags of app.py]`: the real program, stuck in its first step.
"""

import math
import sys
import threading
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from PIL import Image

from benchmarks.stand_in_pipeline import Computation, StandInPipeline, number_of
from pipeline import CheckpointError, InputError
from pipeline.drawing.drawing import Drawing
from pipeline.drawing.origins import NO_INPUTS, Inputs
from pipeline.images.inputs import read_image, read_mask
from pipeline.request import GenerateRequest
from pipeline.text.prompt_syntax import PLAIN, texts_of


class FakePipeline(StandInPipeline):
    """Stand-in for `SDXLPipeline` with two slots.

    In the colour of a picture, red is its seed. Green is the mean of the picture that the request
    starts from, and blue that of its mask.
    Controls change nothing.
    A LoRA whose file is named "broken" cannot be loaded.
    The prompts "refuse", "break", "exhaust" and "overflow" raise the matching errors. While `held`,
    every step waits for `let_step`, unless one of its drawings is cancelled. While `stuck`, it
    waits even then.
    """

    facts = replace(
        StandInPipeline.facts,
        device="cpu",
        images_per_request=2,
        num_inference_steps=4,
        height=8,
        width=8,
        schedulers=("euler", "heun", "ddim"),
        sigma_schedules=("default", "karras"),
        refused_schedulers=(("lcm", "prediction_type = 'x' is not supported"),),
    )
    compile_seconds: ClassVar = {"hit": 0.5, "miss": 7.0}
    truncated = "the end"

    def __init__(self, *, held: bool = False, slots: int = 2) -> None:
        super().__init__(images_per_request=slots, num_inference_steps=4)
        self.held = held
        self.stuck = False
        self.steps = 0  # those that were let
        self.calls: list[dict[str, Any]] = []  # the requests that were prepared
        self.loads: list[tuple[str, str]] = []  # "load" or "unload", and the name of a LoRA
        # Means of a picture that a request starts from, and of its mask, by the prompt's number.
        self.colours: defaultdict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
        self._permits = 0
        self._permitted = threading.Condition()
        self._waiting_for: list[Drawing] | None = None  # the drawings of the step that waits

    def let_step(self, steps: int = 1) -> None:
        with self._permitted:
            self._permits += steps
            self._permitted.notify_all()

    def let_all(self) -> None:
        with self._permitted:
            self.held = self.stuck = False
            self._permitted.notify_all()

    @property
    def at_rest(self) -> bool:
        """Whether a step waits, and goes on waiting until the test does something."""
        with self._permitted:
            return self._waiting_for is not None and not self._may_end(self._waiting_for)

    def _is_let(self) -> bool:
        return not self.held or self._permits > 0

    def _may_end(self, drawings: list[Drawing]) -> bool:
        wanted = [each for each in drawings if not each.is_over]
        stops = not wanted or any(each.cancelled.is_set() for each in wanted)
        return self._is_let() or (stops and not self.stuck)

    def begin_step(self, prompts: np.ndarray) -> Computation:
        if number_of("break") in prompts:
            raise KeyError("a secret")
        if number_of("exhaust") in prompts:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 16.0GiB")
        drawings = [seat.job.drawing for seat in self._seats.values()]
        return Computation(lambda: self._wait(drawings))

    def _wait(self, drawings: list[Drawing]) -> None:
        with self._permitted:
            self._waiting_for = drawings
            if self.stuck:
                print("Stuck", flush=True)
            while not self._may_end(drawings):
                self._permitted.wait(0.002)  # nobody tells that it is cancelled
            if self._is_let() and not all(each.is_over for each in drawings):
                self.steps += 1
                self._permits -= self.held
            self._waiting_for = None

    def picture(self, seed: int, prompt: int, height: int, width: int) -> np.ndarray:
        return np.full((height, width, 3), (seed % 256, *self.colours[prompt]), np.uint8)

    def measure(
        self, prompt: str, prompt_syntax: str = PLAIN, num_inference_steps: int | None = None
    ) -> tuple[int, int, str]:
        steps = num_inference_steps or self.facts.num_inference_steps
        texts = texts_of(prompt, prompt_syntax, steps)
        words = max(map(str.split, texts), key=len)
        return 2 + len(words), 8, " ".join(words[6:])

    def add_size(self, height: int, width: int) -> None:
        if width == 13:
            raise InputError("not this wide")

    def warm_up(self, height: int, width: int) -> None:
        self.begin(
            self.prepare(
                GenerateRequest("warm up", num_inference_steps=1, seed=0), None, height, width
            )
        )
        while self.is_busy:
            self.advance()

    def load_lora(self, source: Path, name: str) -> str:
        assert name not in self.loras
        self.loads.append(("load", name))
        if name == "broken":
            raise CheckpointError(f"{source}: a secret")
        self.loras[name] = source
        return name

    def unload_lora(self, name: str) -> None:
        self.loads.append(("unload", name))
        del self.loras[name]

    def prepare(
        self,
        request: GenerateRequest,
        images: int | None = None,
        height: int | None = None,
        width: int | None = None,
        inputs: Inputs = NO_INPUTS,
        output_type: str = "pil",
        cancelled: threading.Event | None = None,
    ) -> Drawing:
        image, mask = cast(Image.Image | None, inputs.image), cast(Image.Image | None, inputs.mask)
        others = {"images": images, "height": height, "width": width}
        others |= {"image": image, "mask": mask, "followed": [*inputs.controls]}
        self.calls.append(request.settings | others)
        if request.prompt == "refuse":
            raise InputError("not this")
        request, inputs = replace(request, controls=""), inputs._replace(controls=())
        drawing = super().prepare(request, images, height, width, inputs, output_type, cancelled)
        start = drawing.first.start
        if request.prompt == "overflow":
            start = replace(start, init_noise_sigma=math.nan)
        if image is not None:
            # The number that stands for the prompt stands for the picture too.
            colours = int(read_image(image).mean() * 255), 0
            if mask is not None:
                colours = colours[0], int(read_mask(mask).mean() * 255)
            number = number_of(f"{request.prompt} {colours}")
            self.colours[number] = colours
            start = replace(start, input_ids=(np.full_like(start.input_ids[0], number),))
        drawing.first = replace(drawing.first, start=start)
        return drawing


def main() -> None:
    """Serve a stuck stand-in until told to stop."""
    import app
    from serving.requests import lifecycle

    lifecycle.STOPS_WITHIN_S = 0.5
    pipe = FakePipeline(held=True)
    pipe.stuck = True
    app.main(sys.argv[1:], lambda _: (pipe.as_pipeline(), False))


if __name__ == "__main__":
    main()
