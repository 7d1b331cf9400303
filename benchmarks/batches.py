"""A step in the form for GPUs, with 1 to 4 pictures in four slots, on this machine's CPU.

    taskset -c 0 .venv/bin/python -m benchmarks.batches

Compiles the miniature's step twice: with all slots in one batch, and with a branch for each batch
of 1, 2 and 4 pictures. Takes the shortest of several steps, in turns, and writes
results/<date>-batches.json. On one core a step's seconds are its cost: the cores of a CPU have less
to share in a batch of one.
"""

import os
import pickle
from dataclasses import replace

os.environ["JAX_PLATFORMS"] = "cpu"

# isort: split

import jax
import numpy as np
from jax.experimental.serialize_executable import serialize

from benchmarks import record
from benchmarks.decoders import random_arguments, shortest, timed_compile
from pipeline import BUNDLED
from pipeline.families import read_config
from pipeline.platforms import PLATFORMS
from pipeline.runtime import sampler
from pipeline.runtime.compiled import make_mesh
from pipeline.runtime.loading import trace_networks
from pipeline.runtime.program import Shapes, Target
from pipeline.runtime.programs import Programs
from pipeline.runtime.work import Work, pack
from pipeline.schedulers.methods import make_schedule

SIDES = 256, 512
SLOTS = 4
REPEATS = 20
FORMS = {"one batch": sampler.by_slots, "batches of 1, 2 and 4": sampler.by_occupied}


def main() -> None:
    """Measure, and record the results."""
    sizes = {f"{side}x{side}": measure(side) for side in SIDES}
    record.write("batches", {"cores_in_use": len(os.sched_getaffinity(0)), "sizes": sizes})


def measure(side: int) -> dict[str, dict[str, float]]:
    """Return each form's seconds by the number of pictures, and what its program costs."""
    config, dtype = read_config(BUNDLED), np.dtype(np.float32)
    shapes, mesh = Shapes(SLOTS, side, side), make_mesh(jax.devices()[:1], SLOTS)
    programs = Programs(Target(config, dtype, mesh, shapes), trace_networks(config, dtype))
    evaluation = pack(make_schedule(config.scheduler, 1), 5.0, 0.0, guided=1, seed=0)
    figures, runs = {}, {}
    for name, form in FORMS.items():
        sampler.FORMS["measured"] = form
        PLATFORMS["cpu"] = replace(PLATFORMS["cpu"], forward="measured")
        step = programs["step"]
        executable, figures[name] = timed_compile(step)
        figures[name]["program_mb"] = round(len(pickle.dumps(serialize(executable))) / 1e6, 1)
        weights, state, context, _, *other_arguments = random_arguments(step.args)
        for pictures in range(1, SLOTS + 1):
            mask = np.arange(SLOTS)[:, None] < pictures
            work = Work(*(np.where(mask, part, 0) for part in evaluation))
            runs[name, pictures] = executable, [weights, state, context, work, *other_arguments]
    for (name, pictures), seconds in shortest(runs, REPEATS).items():
        figures[name][f"seconds_of_{pictures}"] = round(seconds, 4)
    return figures


if __name__ == "__main__":
    main()
