"""The time that full-size SDXL base takes to start here, cold and warm: its programs alone.

    .venv/bin/python -m benchmarks.start

One process compiles the programs from the shapes of their parameters and caches them; another loads
them. Both times count from a bare interpreter. Reading the weights is left out, because it needs
weights. Writes `benchmarks/results/<date>-start-<device>.json`.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

START = time.perf_counter()
SHOWN = ("jax", "jaxlib", "flax")


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__)
    parser.add_argument("--pixels", type=int, default=1024, help="along each side")
    parser.add_argument("--cache-dir", type=Path, help="start once, with the programs kept there")
    options = parser.parse_args()
    if options.cache_dir is not None:
        print(json.dumps(start(options.pixels, options.cache_dir)))
        return
    from benchmarks import apart, record

    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--pixels", str(options.pixels), "--cache-dir", f"{folder}/cache"]
        cold, warm = (apart.run("benchmarks.start", arguments) for _ in range(2))
    report = {**record.head("benchmarks.start"), "cold": cold, "warm": warm}
    print(json.dumps(report, indent=2), record.save(f"start-{cold['device']}", report), sep="\n")


def start(pixels: int, cache_dir: Path) -> dict[str, Any]:
    """Start in this process, and return the seconds of each part."""
    import importlib.metadata
    from concurrent.futures import ThreadPoolExecutor

    import jax

    from benchmarks.full_size import read_published
    from pipeline.platforms import network_dtype
    from pipeline.runtime.compiled import make_mesh
    from pipeline.runtime.executable_cache import ExecutableCache
    from pipeline.runtime.executables import compile_missing, load_cached
    from pipeline.runtime.loading import trace_networks, without_collecting_garbage
    from pipeline.runtime.program import Shapes, Target

    devices = jax.devices()
    dtype = network_dtype(None, devices)
    mesh = make_mesh(devices, 4)
    config = read_published()
    shapes = Shapes(images=4, height=pixels, width=pixels, tokens=config.tokens)
    target = Target(config, dtype, mesh, shapes)
    cache = ExecutableCache(cache_dir)
    with without_collecting_garbage(), ThreadPoolExecutor(1) as threads:
        cached = threads.submit(load_cached, target, cache)
        networks = trace_networks(config, dtype, cache)
        executables = compile_missing(target, networks, cache, cached.result())
    return {
        "device": f"{len(devices)} x {devices[0].device_kind}",
        "size": f"4 x {pixels}x{pixels}",
        "dtype": dtype.name,
        "versions": {name: importlib.metadata.version(name) for name in SHOWN},
        "seconds": round(time.perf_counter() - START, 2),
        "programs": {name: round(seconds, 2) for name, seconds in executables.seconds.items()},
        "megabytes": round(sum(file.stat().st_size for file in cache_dir.iterdir()) / 1e6),
    }


if __name__ == "__main__":
    main()
