"""The real server over a stand-in for the model, whose every step takes the same time.

    python -m benchmarks.stand_in --step-ms 20 [the flags of app.py]

Measurements of such an instance show the serving path alone. Its pictures depend on the prompt and
the seed only, like the model's: the same request must give the same picture.
"""

import argparse
import sys
import threading
import time
import zlib
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np
from PIL import Image

import app
from pipeline import Cancelled, Result, SDXLPipeline, metadata
from pipeline.pipeline import OnPreview
from pipeline.request import SETTINGS, Request
from serving.settings import Options


class StandIn:
    """A stand-in for `SDXLPipeline` that draws noise instead of what the prompt asks for."""

    model, revision, device_kind, num_devices = "stand-in", None, "none", 1
    family, safety_checker, screened = "Stable Diffusion XL", False, False
    scheduler, sigma_schedule, version = "euler", "default", "none"
    schedulers, sigma_schedules = ("euler",), ("default",)
    refused_schedulers: ClassVar = {}
    num_train_timesteps = 1000
    guidance_scale, recipe, vae, unet, tiny_vae = 5.0, None, None, None, None
    height = width = 64
    max_inference_steps = 50
    compile_seconds: ClassVar = {"hit": 0.0, "miss": 0.0}

    def __init__(self, step_s: float, images_per_request: int, num_inference_steps: int) -> None:
        self.images_per_request = images_per_request
        self.num_inference_steps = num_inference_steps
        self._step_s = step_s

    def measure(self, prompt: str) -> tuple[int, int, str]:
        """See `SDXLPipeline.measure`; here every word is a token."""
        return 2 + len(prompt.split()), 77, ""

    def generate(
        self,
        prompt: str | list[str],
        negative_prompt: str | list[str],
        guidance_scale: float,
        num_inference_steps: int,
        seed: int,
        on_step: Any,
        cancelled: threading.Event,
        on_preview: OnPreview | None = None,
        variation_strength: float = 0.0,
        **_unused: float,
    ) -> Result:
        """See `SDXLPipeline.generate`."""
        began = time.monotonic()
        for step in range(1, num_inference_steps + 1):
            # Wait until a fixed time, so that late wake-ups do not add up.
            if cancelled.wait(began + step * self._step_s - time.monotonic()):
                raise Cancelled
            on_step(step, num_inference_steps, None)
            if on_preview is not None and step < num_inference_steps:
                on_preview(self._look)
        count = self.images_per_request
        prompts = [prompt] * count if isinstance(prompt, str) else prompt
        seeds = Request("", seed=seed, variation_strength=variation_strength, images=count).seeds
        images = []
        for text, one in zip(prompts, seeds, strict=True):
            image = self._picture(text, one)
            settings = metadata.Settings(
                text,
                "",
                seed=one,
                num_inference_steps=num_inference_steps,
                guidance_scale=guidance_scale,
                width=self.width,
                height=self.height,
                model=self.model,
            )
            metadata.attach(image, settings)
            images.append(image)
        return Result(images, seeds, [False] * count, [""] * count, [""] * count)

    def _look(self) -> np.ndarray:
        return np.full(
            (self.images_per_request, self.height // 8, self.width // 8, 3), 128, np.uint8
        )

    def _picture(self, prompt: str, seed: int) -> Image.Image:
        noise = np.random.default_rng([seed, zlib.crc32(prompt.encode())])
        pixels = noise.integers(0, 256, (self.height, self.width, 3), np.uint8)
        return Image.fromarray(pixels)


def load(step_ms: float, chosen: Options) -> tuple[SDXLPipeline, bool]:
    """Return a `StandIn` in the form of `serving.bootstrap.load_pipeline`'s result."""
    steps = chosen.steps or SETTINGS["num_inference_steps"].default
    pipe = StandIn(step_ms / 1000, chosen.images_per_request, steps)
    return cast(SDXLPipeline, pipe), False


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stand_in", allow_abbrev=False)
    parser.add_argument("--step-ms", type=float, required=True, help="what a step takes")
    own, arguments = parser.parse_known_args()
    app.main(arguments, partial(load, own.step_ms))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
