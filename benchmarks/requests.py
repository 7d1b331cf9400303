"""One process: load a checkpoint, draw pictures, print the measurements as JSON."""

import argparse
import importlib.metadata
import json
import resource
import statistics
import time

START = time.perf_counter()
PACKAGES = ("jax", "jaxlib", "flax", "numpy")
IMAGES = 4


def main() -> None:
    """Time start-up from a bare interpreter, then whole requests of 25 steps."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.requests", description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--cache-dir")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()

    from pipeline import SDXLPipeline
    from pipeline.default_model import choose_model
    from pipeline.runtime.mesh import cores_as_devices

    cores_as_devices(IMAGES)
    pipe = SDXLPipeline.from_pretrained(
        *choose_model(options.model, None), images_per_request=IMAGES, cache_dir=options.cache_dir
    )
    start_seconds = time.perf_counter() - START
    seconds = []
    for seed in range(options.repeats):
        begin = time.perf_counter()
        pipe.generate("a large red star on a blue background", seed=seed)
        seconds.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = {
        "model": pipe.facts.name,
        "device": f"{pipe.facts.num_devices} x {pipe.facts.device}",
        "size": f"{pipe.facts.images_per_request} x {pipe.facts.width}x{pipe.facts.height}",
        "num_inference_steps": pipe.facts.num_inference_steps,
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "start_seconds": round(start_seconds, 2),
        "request_seconds": [round(value, 3) for value in seconds],
        "request_seconds_median": round(statistics.median(seconds or [0.0]), 3),
        "peak_memory_mb": round(peak / 1024),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
