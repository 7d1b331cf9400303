"""A pipeline that draws grey squares; a test may hold back every step.

`python -m tests.fake_pipeline [the flags of app.py]`: the real program, stuck in its first step.
"""

import sys
import threading
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from PIL import Image

from pipeline import (
    Cancelled,
    CheckpointError,
    InputError,
    NotFiniteError,
    Result,
    SDXLPipeline,
    metadata,
)
from pipeline.request import Request
from pipeline.text.loras import parse_loras


class FakePipeline:
    """Stand-in for `SDXLPipeline`.

    A LoRA whose file is named "broken" cannot be loaded.
    The prompts "refuse", "break", "exhaust" and "overflow" raise the matching errors. While `held`,
    every step waits for `let_step`. While `stuck`, a step waits even after it is told to stop.
    """

    model, revision, device_kind, num_devices = "stand-in", None, "cpu", 1
    height = width = 8
    images_per_request = 2
    family, safety_checker, screened = "Stable Diffusion XL", False, False
    scheduler, sigma_schedule, version = "euler", "default", "none"
    schedulers, sigma_schedules = ("euler", "heun", "ddim"), ("default", "karras")
    refused_schedulers: ClassVar = {"lcm": "prediction_type = 'x' is not supported"}
    num_train_timesteps = 1000
    guidance_scale, recipe, vae, unet, tiny_vae = 5.0, None, None, None, None
    num_inference_steps, max_inference_steps = 4, 50
    compile_seconds: ClassVar = {"hit": 0.5, "miss": 7.0}

    def __init__(self, *, held: bool = False) -> None:
        self.held = held
        self.stuck = False
        self.steps = 0
        self.calls: list[dict[str, Any]] = []
        self.loras: dict[str, Path] = {}
        self.loads: list[tuple[str, str]] = []  # "load" or "unload", and the name of a LoRA
        self._permits = 0
        self._permitted = threading.Condition()
        self._waiting_for: threading.Event | None = None  # the end of the waiting request
        self._busy = threading.Lock()

    def as_pipeline(self) -> SDXLPipeline:
        return cast(SDXLPipeline, self)

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
            return self._waiting_for is not None and not self._may_step(self._waiting_for)

    def _may_step(self, cancelled: threading.Event) -> bool:
        return not self.held or self._permits > 0 or (cancelled.is_set() and not self.stuck)

    def _wait_for_permit(self, cancelled: threading.Event) -> None:
        with self._permitted:
            self._waiting_for = cancelled
            while not self._may_step(cancelled):
                self._permitted.wait(0.002)  # nobody tells that it is cancelled
            if self.held and self._permits:
                self._permits -= 1
            self._waiting_for = None

    def measure(self, prompt: str) -> tuple[int, int, str]:
        words = prompt.split()
        return 2 + len(words), 8, " ".join(words[6:])

    def add_size(self, height: int, width: int) -> None:
        if width == 13:
            raise InputError("not this wide")

    def warm_up(self, height: int, width: int) -> None:
        self.generate("warm up", num_inference_steps=1, height=height, width=width)

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

    def generate(self, prompt: Any, **arguments: Any) -> Result:
        assert self._busy.acquire(blocking=False), "two requests met on the devices"
        self.calls.append({"prompt": prompt, **arguments})
        try:
            return self._drawn(prompt, **arguments)
        finally:
            self._busy.release()

    def _drawn(
        self,
        prompt: Any,
        num_inference_steps: int,
        negative_prompt: Any = None,
        guidance_scale: float = 5.0,
        seed: int = 0,
        on_step: Any = lambda *_: None,
        cancelled: threading.Event = threading.Event(),  # noqa: B008
        on_preview: Any = None,
        width: int | None = None,
        height: int | None = None,
        variation_strength: float = 0.0,
        loras: str = "",
        **_unused: float,
    ) -> Result:
        assert parse_loras(loras).keys() <= self.loras.keys()
        if prompt == "refuse":
            raise InputError("not this")
        if prompt == "break":
            raise KeyError("a secret")
        if prompt == "exhaust":
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 16.0GiB")
        if prompt == "overflow":
            raise NotFiniteError("too large")
        for step in range(num_inference_steps):
            self._wait_for_permit(cancelled)
            if cancelled.is_set():
                raise Cancelled
            self.steps += 1
            on_step(step + 1, num_inference_steps, None)
            if on_preview and step + 1 < num_inference_steps:
                on_preview(lambda: np.full((self.images_per_request, 1, 1, 3), 99, np.uint8))
        seeds = Request(
            "", seed=seed, variation_strength=variation_strength, images=self.images_per_request
        ).seeds
        size = width or self.width, height or self.height
        images = [Image.new("RGB", size, (one % 256, 0, 0)) for one in seeds]
        texts = [prompt] * len(seeds) if isinstance(prompt, str) else prompt
        for text, one, image in zip(texts, seeds, images, strict=True):
            settings = metadata.Settings(
                text,
                "",
                seed=one,
                num_inference_steps=num_inference_steps,
                guidance_scale=guidance_scale,
                width=size[0],
                height=size[1],
                model=self.model,
                loras=loras or None,
            )
            metadata.attach(image, settings)
        return Result(images, seeds, [False, False], ["the end", ""], ["the end", ""])


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
