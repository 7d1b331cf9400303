"""Changes of the model and of LoRAs at SDXL's full size, on this machine.

    .venv-reference/bin/python -m tests.reference.full_size_checkpoint runs/full_size
    .venv/bin/python -m benchmarks.swaps runs/full_size

The networks have the checkpoint's shapes in bfloat16; nothing is compiled or drawn. A second model,
read from the same files, and a random LoRA for all linear layers and convolutions take their
parameters' place. Prints seconds and gigabytes, and writes results/<date>-swaps.json.

The store of models holds one model, so 17 GB of memory are needed. A warm disk means that the
system's cache has the files.
"""

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

# isort: split

import jax
import numpy as np

from benchmarks import record
from pipeline.adapters.reader import read_adapter
from pipeline.checkpoints.source import fetch
from pipeline.families import FamilyReader
from pipeline.runtime.adapters import Adapters
from pipeline.runtime.compiled import make_mesh, place_on
from pipeline.runtime.loading import find_networks, load_networks
from pipeline.runtime.models import Model, ModelStore
from pipeline.runtime.parameters import Parameters
from tools.adapter_files import Module, draw_adapter, is_projection, write_adapter

DTYPE = np.dtype("bfloat16")
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
# The layers that published LoRAs change: those of diffusers' scripts, and those of sd-scripts.
LAYERS: dict[str, Callable[[Module], bool]] = {
    "attention": is_projection,
    "all layers of transformers": lambda module: (
        (module[0] != "unet" or "attentions" in module[1]) and "text_projection" not in module[1]
    ),
}


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.swaps", description=__doc__)
    parser.add_argument("checkpoint", help="a folder, as the command above writes it")
    parser.add_argument("--rank", type=int, default=32, help="of the LoRAs")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    with timed(figures, "start"):
        adapters, store, second_model = load(options.checkpoint)
    figures["model_gb"] = round(sum(slot.bytes for slot in store.slots) / 1e9, 2)
    models = measure_models(adapters, store, second_model)
    del store._held[second_model]  # what follows needs no second model
    loras = {
        name: measure_lora(adapters, layer_filter, options.rank)
        for name, layer_filter in LAYERS.items()
    }
    record.write("swaps", {**figures, "rank": options.rank, "models": models, "loras": loras})


def load(folder: str) -> tuple[Adapters, ModelStore, Model]:
    """Load a checkpoint without compiling, and find its files once more, as another model."""
    checkpoint = fetch(folder, None, FamilyReader(), prefer_fp16=True)
    files, second_files = (find_networks(checkpoint, DTYPE) for _ in range(2))
    mesh = make_mesh(jax.devices()[:1], 1)
    parameters = Parameters(load_networks(files, place_on(mesh)), files)
    config = checkpoint.config
    base, second_model = Model("", files), Model("other", second_files)
    store = ModelStore(base, parameters, 0)
    store.limit = sum(slot.bytes for slot in store.slots)
    denoisers = config.architecture.predict.networks
    adapters = Adapters(parameters, mesh, [*config.text_encoders], denoisers, store)
    return adapters, store, second_model


def measure_models(adapters: Adapters, store: ModelStore, second_model: Model) -> dict[str, Any]:
    """Change the model: from a warm disk, and from the store."""
    figures: dict[str, Any] = {}
    with timed(figures, "from a warm disk"):
        adapters.select({}, second_model)
    with timed(figures, "back from a warm disk"):
        adapters.select({})
    with timed(figures, "read ahead"):
        store.find(second_model)
    with timed(figures, "from the store"):
        adapters.select({}, second_model)
    return figures


def measure_lora(
    adapters: Adapters, layer_filter: Callable[[Module], bool], rank: int
) -> dict[str, Any]:
    """Merge a LoRA, take it out, and merge it with another weight."""
    inventory, figures = adapters.inventory, {}
    adapter = draw_adapter(inventory, "lora", 0, layer_filter, ranks=[rank])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "random.safetensors")
        write_adapter(file, adapter, "kohya sdxl", inventory, np.float16)
        del adapter
        figures["file_gb"] = round(file.stat().st_size / 1e9, 3)
        with timed(figures, "load"):
            adapters.add(read_adapter(file, "random", inventory))
    figures["changed_gb"] = round(adapters.bytes_of() / 1e9, 2)
    model, half_weight, full_weight = (
        adapters._model,
        {"random": (0.5, 0.5)},
        {"random": (1.0, 1.0)},
    )
    for name, weights in (
        ("merged", half_weight),
        ("with another weight", full_weight),
        ("taken out", {}),
    ):
        with timed(figures, name):
            adapters.select(weights, model)
    with timed(figures, "merged ahead"):
        adapters.read_ahead(model, half_weight)
        adapters._thread.submit(lambda: None).result()
    with timed(figures, "merged, after that"):
        adapters.select(half_weight, model)
    adapters.select({}, model)
    adapters.remove("random")
    return figures


@contextmanager
def timed(figures: dict[str, Any], name: str) -> Iterator[None]:
    """Note a block's seconds, the seconds of all cores together, and its peak of gigabytes."""
    gc.collect()
    CLEAR.write_text("5")  # the peak begins anew
    began, cpu_seconds = time.perf_counter(), time.process_time()
    yield
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_seconds
    peak = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    figures[name] = {
        "seconds": round(seconds, 3),
        "processor_seconds": round(cpu_seconds, 3),
        "peak_gb": round(1024 * int(peak.split()[1]) / 1e9, 2),
    }
    print(name, figures[name], flush=True)


if __name__ == "__main__":
    main()
