"""One process: diffusers 0.39's Flax pipeline, with random weights made on the device.

    .venv-incumbent/bin/python -m benchmarks.draw_flax CONFIGS

Prints its measurements as JSON.
"""

import importlib.metadata
import json
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import draw_job
from benchmarks.incumbent_model import build
from benchmarks.random_weights import fill

PACKAGES = ("diffusers", "flax", "jax", "jaxlib", "transformers")


def main() -> None:
    """Measure, and print the results."""
    options = draw_job.read_arguments("draw_flax")
    pipeline, shapes = build(options.configs, options.dtype)
    params = fill(shapes, jax.random.PRNGKey(0))
    params["scheduler"] = pipeline.scheduler.create_state()
    words = draw_job.config(options.configs, "text_encoder/config.json")["vocab_size"]
    shape = (options.images, 2, 77)
    ids = jnp.asarray(np.random.default_rng(0).integers(0, words, shape, np.int32))

    # The same call as in the pipeline's own pmap, for one device.
    @partial(jax.jit, static_argnums=0)
    def generate(latent: bool, params: Any, key: jax.Array) -> jax.Array:
        size = (options.pixels, options.pixels)
        scale = draw_job.GUIDANCE_SCALE
        arguments = (ids, params, key, options.steps, *size, scale, None, ids)
        return pipeline._generate(*arguments, return_latents=latent)

    def pictures() -> np.ndarray:
        return np.asarray(generate(False, params, jax.random.PRNGKey(0)))

    begin = time.perf_counter()
    pictures()
    first_seconds = time.perf_counter() - begin
    request = draw_job.seconds(pictures, options.repeats)
    without_decode = draw_job.seconds(
        lambda: generate(True, params, jax.random.PRNGKey(0)).block_until_ready(), options.repeats
    )
    device = jax.devices()[0]
    report = {
        "provider": "diffusers 0.39, Flax",
        "device": device.device_kind,
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "first_request_seconds": first_seconds,
        "request_seconds": request,
        "step_seconds": without_decode / options.steps,
        "decode_seconds": request - without_decode,
        "peak_memory_mb": (device.memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e6,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
