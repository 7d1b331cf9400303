"""`python -m benchmarks.cpu_memory`: XLA's memory analysis of programs for CPUs, and the plan's.

Compiles the bundled miniature and tiny checkpoints for several sizes and numbers of pictures and
devices, and Stable Diffusion 1 at full size without its weights. Writes
results/<date>-cpu-memory.json. The rates of `pipeline.runtime.device_kinds.CPU` are fitted to it.
"""

import os
import tempfile
import time
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ["JAX_PLATFORMS"] = "cpu"

# isort: split

import jax
import jax.numpy as jnp

from benchmarks import record
from benchmarks.processes import ROOT
from pipeline.families import read_config
from pipeline.families.family import Config
from pipeline.runtime.compiled import choose_layout, make_mesh
from pipeline.runtime.device_kinds import CPU
from pipeline.runtime.loading import trace_networks
from pipeline.runtime.model_size import model_size
from pipeline.runtime.plan import Budget
from pipeline.runtime.program import Shapes, Target
from pipeline.runtime.programs import Programs, program_names
from tools.published_configs import SD_1, write

MINIATURE = "pipeline/miniature"
FULL_SD_1 = "Stable Diffusion 1"


class Case(NamedTuple):
    """A checkpoint, and what its programs are compiled for."""

    model: str
    side: int
    images: int = 1
    devices: int = 1
    dtype: str = "float32"


CASES = (
    Case(MINIATURE, 256),
    Case(MINIATURE, 256, images=4),
    Case(MINIATURE, 512),
    Case(MINIATURE, 256, images=4, devices=2),
    Case(MINIATURE, 256, devices=2),
    Case(MINIATURE, 256, dtype="bfloat16"),
    Case("tests/golden/plain/checkpoint", 64, images=4),
    Case("tests/golden/sd_1/checkpoint", 64, images=4),
    Case("tests/golden/karras/checkpoint", 64, images=4),
    Case(FULL_SD_1, 512),
)


def main() -> None:
    """Compile, compare and record, one case after another."""
    jax.config.update("jax_num_cpu_devices", max(case.devices for case in CASES))
    cases = []
    for case in CASES:
        cases.append({**case._asdict(), "programs": measure(case)})
        print(cases[-1], flush=True)
    versions = {"jax": jax.__version__}
    report = {**record.head("benchmarks.cpu_memory"), "versions": versions, "cases": cases}
    print(record.save("cpu-memory", report))


def measure(case: Case) -> dict[str, dict[str, Any]]:
    """Return the megabytes of temporaries and the seconds of each program, and the plan's."""
    config = _config(case.model)
    shapes = Shapes(case.images, case.side, case.side, 77)
    mesh = make_mesh(jax.devices()[: case.devices], case.images)
    networks = trace_networks(config, jnp.dtype(case.dtype))
    target = Target(config, jnp.dtype(case.dtype), mesh, shapes)
    programs = Programs(target, networks)
    layout = partial(choose_layout, case.devices)
    budget = Budget(model_size(config, networks), CPU, None, layout, case.images, shapes.tokens)
    planned = {each.name: each for each in budget.plan([(case.side, case.side)]).programs}
    found = {}
    for name in program_names(target):
        began = time.perf_counter()
        memory = programs[name].compile().memory_analysis()
        assert memory is not None
        found[name] = {
            "temporaries_mb": round(memory.temp_size_in_bytes / 1e6, 2),
            "planned_mb": round(planned[name].temporaries / mesh.size / 1e6, 2),
            "compile_seconds": round(time.perf_counter() - began, 1),
        }
    return found


@cache
def _config(model: str) -> Config:
    if model != FULL_SD_1:
        return read_config(ROOT / model)
    with tempfile.TemporaryDirectory() as folder:
        return read_config(write(Path(folder), SD_1))


if __name__ == "__main__":
    main()
