"""`python -m benchmarks.adapters`: the time to change the set of LoRAs, and the memory for it.

The networks that LoRAs change have random weights in the shapes of the bundled miniature or of
SDXL base; so do two LoRAs, which change every linear layer and convolution, or only attention.
Writes `benchmarks/results/<date>-adapters.json`, or `-adapters-sdxl.json`, and prints it. Nothing
is drawn.
"""

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import record
from benchmarks.random_weights import fill
from pipeline import BUNDLED
from pipeline.adapters.adapter import Inventory
from pipeline.adapters.reader import read_adapter
from pipeline.families import read_config
from pipeline.families.family import Config
from pipeline.platforms import network_dtype
from pipeline.runtime.adapters import Adapters
from pipeline.runtime.compiled import make_mesh
from pipeline.runtime.loading import trace_networks
from pipeline.runtime.mesh import cores_as_devices
from pipeline.runtime.parameters import Parameters
from tools.adapter_files import draw_adapter, is_projection, write_adapter
from tools.published_configs import SDXL_BASE, write

NAMES = ("one", "two")
ONE, TWO, BOTH = {"one": (0.8, 0.8)}, {"two": (0.8, 0.8)}, dict.fromkeys(NAMES, (0.5, 0.5))

Choose = Callable[[int], Any]  # the set of each turn, by its number


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapters", description=__doc__)
    parser.add_argument("--model", choices=("miniature", "sdxl"), default="miniature")
    parser.add_argument("--dtype", help="default: that of the devices")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--attention", action="store_true", help="change only attention")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    cores_as_devices(options.devices)
    name = "adapters" if options.model == "miniature" else f"adapters-{options.model}"
    record.write(name, {**vars(options), **measure(options)})


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return seconds to read a LoRA and to change the set of LoRAs, and megabytes."""
    with tempfile.TemporaryDirectory() as folder:
        config = _config(options.model, Path(folder))
        adapters = _adapters(config, options)
        files = _files(Path(folder), adapters.inventory, options)
        before = _peak_mb()
        began = time.perf_counter()
        for file in files:
            adapters.add(read_adapter(file, file.stem, adapters.inventory))
        read = (time.perf_counter() - began) / len(NAMES)
        loras_mb = adapters.file_bytes() / 1e6
    first = _timed(lambda: adapters.select(ONE))
    changes: dict[str, tuple[Choose, Any]] = {
        "another": (lambda _: TWO, ONE),
        "two_at_once": (lambda _: BOTH, ONE),
        "none": (lambda _: {}, ONE),
        "one_after_none": (lambda _: ONE, {}),
        "new_weight": (lambda turn: {"one": (0.1 + turn / 100,) * 2}, ONE),
        "two_at_new_weights": (lambda turn: dict.fromkeys(NAMES, (0.1 + turn / 100,) * 2), {}),
        "the_same": (lambda _: ONE, ONE),
    }
    found = {
        name: _repeated(adapters, new, old, options.repeats) for name, (new, old) in changes.items()
    }
    return {
        "device": jax.devices()[0].device_kind,
        "read_seconds": round(read, 3),
        "first_set": first,
        "change_to": found,
        "loras_mb": round(loras_mb, 1),
        "pristine_mb": round(adapters.bytes_of() / 1e6, 1),
        "peak_memory_mb": {"before": before, "after": _peak_mb()},
    }


def _config(model: str, folder: Path) -> Config:
    return read_config(BUNDLED if model == "miniature" else write(folder / "sdxl", SDXL_BASE))


def _adapters(config: Config, options: argparse.Namespace) -> Adapters:
    """Return the holder of random networks, those that LoRAs can change."""
    devices = jax.devices()[: options.devices]
    mesh = make_mesh(devices, options.devices)
    family = config.family
    encoders = [part.name for part in family.text_encoders]
    denoisers = family.predict.networks
    traced = trace_networks(config, network_dtype(options.dtype, devices))
    networks = {}
    for number, name in enumerate([*encoders, *denoisers]):
        graphdef, shapes = nnx.split(traced[name])
        filled = fill(shapes, jax.random.key(number), NamedSharding(mesh, P()))
        networks[name] = nnx.merge(graphdef, filled)
    return Adapters(Parameters(networks), mesh, encoders, denoisers)


def _files(folder: Path, inventory: Inventory, options: argparse.Namespace) -> list[Path]:
    files = []
    for seed, name in enumerate(NAMES):
        chosen: dict[str, Any] = {"chosen": is_projection} if options.attention else {}
        drawn = draw_adapter(inventory, "lora", seed, ranks=[options.rank], **chosen)
        file = folder / f"{name}.safetensors"
        files.append(write_adapter(file, drawn, "kohya sdxl", inventory, np.float16))
    return files


def _repeated(adapters: Adapters, new: Choose, old: Any, repeats: int) -> dict[str, float]:
    """Return the shortest and the median seconds of a change from one set to another."""
    timed = []
    for turn in range(repeats):
        adapters.select(old)
        timed.append(_timed(partial(adapters.select, new(turn))))
    return {
        "seconds": min(each["seconds"] for each in timed),
        "seconds_median": round(statistics.median(each["seconds"] for each in timed), 4),
        "cpu_seconds": min(each["cpu_seconds"] for each in timed),
    }


def _timed(work: Callable[[], object]) -> dict[str, float]:
    began = time.perf_counter(), time.process_time()
    work()
    ended = time.perf_counter(), time.process_time()
    wall, cpu = (round(end - begin, 4) for begin, end in zip(began, ended, strict=True))
    return {"seconds": wall, "cpu_seconds": cpu}


def _peak_mb() -> int:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    main()
