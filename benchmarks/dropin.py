"""The program of an article before and after the change of its import: diffusers 0.39, then here.

    make .venv-incumbent/.installed
    .venv/bin/python -m benchmarks.dropin --model stabilityai/stable-diffusion-xl-base-1.0

The program is that of https://huggingface.co/blog/sdxl_jax. Run it by hand. Both providers run on
the same devices, in turns, each time in a process of its own. With an accelerator, .venv-incumbent
needs its plugin of JAX too: `.venv-incumbent/bin/python -m pip install "jax[cuda13]==0.10.2"`. On a
CPU use a smaller model; `tools/dropin_checkpoint.py` makes one. Writes
benchmarks/results/<date>-<device>-dropin-<dtype>.json.
"""

import argparse
import importlib
import importlib.metadata
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np
from flax.jax_utils import replicate

from benchmarks import apart, record
from benchmarks.processes import ROOT

PROVIDERS = {
    "diffusers": str(ROOT / ".venv-incumbent/bin/python"),
    "pipeline.compat": sys.executable,
}
PACKAGES = ("diffusers", "flax", "jax", "jaxlib")
PROMPT = "a llama in ancient Greece, painted in oil"
NEGATIVE_PROMPT = "cartoon, drawing, animation"
STEPS = 25
GUIDANCE_SCALE = 5.0


def main() -> None:
    """Measure, and record the results; or run the program once, in this process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dropin")
    parser.add_argument("--model", required=True, help="folder or Hub id of an SDXL")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each, in turns")
    parser.add_argument("--repeats", type=int, default=5, help="calls, after one that compiles")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--provider", choices=PROVIDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.provider:
        print(json.dumps(run(options.provider, options.model, options.dtype, options.repeats)))
        return
    arguments = ["--model", options.model, "--repeats", str(options.repeats)]
    arguments += ["--dtype", options.dtype]
    rounds = [
        {
            provider: apart.run("benchmarks.dropin", ["--provider", provider, *arguments], python)
            for provider, python in PROVIDERS.items()
        }
        for _ in range(options.rounds)
    ]
    before, after = ([result[provider] for result in rounds] for provider in PROVIDERS)
    report = {
        **record.head("benchmarks.dropin"),
        "before": before,
        "after": after,
        "speed_up": {
            name: round(median(b[name] / a[name] for b, a in zip(before, after, strict=True)), 2)
            for name in ("first_call_seconds", "call_seconds_median")
        },
    }
    file = record.save(f"{after[0]['device']}-dropin-{options.dtype}", report)
    print(json.dumps(report, indent=2), file, sep="\n")


def run(provider: str, model: str, dtype: str, repeats: int) -> dict[str, Any]:
    """Load, compile with a first call, then time whole calls up to the pictures on the host."""
    kind = importlib.import_module(provider).FlaxStableDiffusionXLPipeline
    with tempfile.TemporaryDirectory() as scratch:
        if provider == "diffusers" and Path(model).is_dir():
            from tools.incumbent import convert

            convert(Path(model), Path(scratch, "checkpoint"))
            model = str(Path(scratch, "checkpoint"))
        pipeline, params = kind.from_pretrained(model, split_head_dim=True)
    scheduler_state = params.pop("scheduler")
    params = jax.tree_util.tree_map(lambda x: x.astype(dtype), params)
    params = replicate({**params, "scheduler": scheduler_state})
    seconds = [_timed(pipeline, params, seed) for seed in range(1 + repeats)]
    return {
        "provider": provider,
        "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "first_call_seconds": round(seconds[0], 2),
        "call_seconds": [round(value, 3) for value in seconds[1:]],
        "call_seconds_median": round(median(seconds[1:]), 3),
    }


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
