"""One process: the program of https://huggingface.co/blog/sdxl_jax, timed, with either provider.

Prints its measurements as JSON. `--provider diffusers` needs diffusers 0.39 (.venv-incumbent).
"""

import argparse
import importlib
import importlib.metadata
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.jax_utils import replicate

PACKAGES = ("diffusers", "flax", "jax", "jaxlib")
PROMPT = "a llama in ancient Greece, painted in oil"
NEGATIVE_PROMPT = "cartoon, drawing, animation"
STEPS = 25
GUIDANCE_SCALE = 5.0


def main() -> None:
    """Load, compile with a first call, then time whole calls up to the pictures on the host."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dropin_program")
    parser.add_argument("--provider", choices=("diffusers", "pipeline.compat"), required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), required=True)
    options = parser.parse_args()
    kind = importlib.import_module(options.provider).FlaxStableDiffusionXLPipeline
    with tempfile.TemporaryDirectory() as scratch:
        model = options.model
        if options.provider == "diffusers" and Path(model).is_dir():
            from tools.incumbent import convert

            model = str(Path(scratch, "checkpoint"))
            convert(Path(options.model), Path(model))
        pipeline, params = kind.from_pretrained(model, split_head_dim=True)
    scheduler_state = params.pop("scheduler")
    params = jax.tree_util.tree_map(lambda x: x.astype(options.dtype), params)
    params["scheduler"] = scheduler_state
    params = replicate(params)
    seconds = [_timed(pipeline, params, seed) for seed in range(1 + options.repeats)]
    report = {
        "provider": options.provider,
        "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "first_call_seconds": round(seconds[0], 2),
        "call_seconds": [round(value, 3) for value in seconds[1:]],
        "call_seconds_median": round(float(np.median(seconds[1:])), 3),
    }
    print(json.dumps(report))


def _timed(pipeline: Any, params: dict[str, Any], seed: int) -> float:
    """Return the seconds of a call that draws one picture on each device."""
    begin = time.perf_counter()
    images = pipeline(
        replicate(pipeline.prepare_inputs(PROMPT)),
        params,
        jax.random.split(jax.random.PRNGKey(seed), jax.device_count()),
        num_inference_steps=STEPS,
        neg_prompt_ids=replicate(pipeline.prepare_inputs(NEGATIVE_PROMPT)),
        guidance_scale=GUIDANCE_SCALE,
        jit=True,
    ).images
    np.asarray(images)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
