"""`python -m benchmarks.prompts`: the cost of prompts that change, and of room for long ones.

The bundled miniature draws one picture after another, with prompts of one chunk in a pipeline with
room for one, and with shorter and longer ones in a pipeline with room for three. All cases run in
turns; the shortest of several runs counts. The memory is that of plans for SDXL base at 1024x1024
on a TPU v5e-4. Writes `benchmarks/results/<date>-prompts.json` and prints it.
"""

import argparse
import math
import time
from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
import numpy as np

from benchmarks import record
from benchmarks.full_size import read_published
from pipeline import BUNDLED, SDXLPipeline
from pipeline.runtime.compiled import choose_layout
from pipeline.runtime.device_kinds import TPU_V5E
from pipeline.runtime.loading import trace_networks
from pipeline.runtime.model_size import model_size
from pipeline.runtime.plan import Budget

SHORT, FEW, MANY = "red cube", 5, 25
ROOM = 3  # chunks
# Each prompt by its name, and the chunks that the pipeline has room for.
CASES = {
    "plain": (1, SHORT),
    "changes once": (1, "[red:blue:0.5] cube"),
    "alternates between two": (1, "[red|blue] cube"),
    "alternates between four": (1, "[red|blue|green|grey] cube"),
    "plain, room for three chunks": (ROOM, SHORT),
    "two chunks": (ROOM, f"{SHORT} BREAK {SHORT}"),
    "three chunks": (ROOM, f"{SHORT} BREAK {SHORT} BREAK {SHORT}"),
}
SIZE = 1024, 1024
IMAGES = 4


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prompts", description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    seconds = measure(parser.parse_args().repeats)
    found = {
        name: {
            "request_seconds": round(each[MANY], 4),
            "step_seconds": round((each[MANY] - each[FEW]) / (MANY - FEW), 5),
        }
        for name, each in seconds.items()
    }
    memory = {chunks: planned(chunks) for chunks in range(1, ROOM + 1)}
    record.write("prompts", {"steps": MANY, "cases": found, "planned_v5e_4_mb": memory})


def measure(repeats: int) -> dict[str, dict[int, float]]:
    """Return the seconds of a request by case and number of steps."""
    pipes = {
        chunks: SDXLPipeline.from_pretrained(BUNDLED, images_per_request=1, prompt_chunks=chunks)
        for chunks in (1, ROOM)
    }
    draws: dict[tuple[str, int], Callable[[], object]] = {
        (name, steps): partial(
            pipes[chunks].generate,
            prompt,
            prompt_syntax="a1111",
            num_inference_steps=steps,
            output_type="latent",
        )
        for name, (chunks, prompt) in CASES.items()
        for steps in (FEW, MANY)
    }
    seconds: dict[str, dict[int, float]] = {
        name: dict.fromkeys((FEW, MANY), math.inf) for name in CASES
    }
    for _ in range(repeats):
        for (name, steps), draw in draws.items():
            began = time.perf_counter()
            draw()
            seconds[name][steps] = min(seconds[name][steps], time.perf_counter() - began)
    return seconds


def planned(chunks: int) -> dict[str, int]:
    """Return the planned memory of a chip, for prompts of up to so many chunks, in megabytes."""
    config = read_published()
    model = model_size(config, trace_networks(config, np.dtype(jnp.bfloat16)))
    layout = partial(choose_layout, TPU_V5E.devices)
    tokens = chunks * config.tokens
    plan = Budget(model, TPU_V5E, TPU_V5E.memory, layout, IMAGES, tokens).plan([SIZE])
    return {
        "arrays": plan.arrays // 10**6,
        "temporaries": plan.temporaries // 10**6,
        "sum": plan.total // 10**6,
    }


if __name__ == "__main__":
    main()
