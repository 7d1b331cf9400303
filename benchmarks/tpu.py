"""`make bench-tpu`: SDXL base at full size, compiled for TPUs and analysed; no TPU is needed.

Libtpu compiles the programs of a request for four 1024x1024 pictures for a described topology. The
FLOPs and the sizes are the compiler's own. They give a lower bound of the time, and an estimate by
the share of the peak rate that published runs reached: benchmarks/experiments.md explains both.
Writes results/<date>-tpu-<topology>.json.
"""

import argparse
import importlib.metadata
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from benchmarks import record
from benchmarks.full_size import controlnet_of, read_with_tiny_vae
from pipeline.runtime.compiled import make_mesh
from pipeline.runtime.executables import compile_missing
from pipeline.runtime.loading import trace_networks
from pipeline.runtime.programs import Shapes, Target

TOPOLOGIES = ("v5e:2x2", "v5e:2x4", "v6e:2x2")
PACKAGES = ("flax", "jax", "jaxlib", "libtpu")
IMAGES, SIDE, STEPS = 4, 1024, 25
ENCODE, STEP, DECODE = ("encode", "condition"), "step", "decode"
# The programs whose arguments are all weights of the model. Each weight is in one of them.
WITH_WEIGHTS = (*ENCODE, STEP, DECODE, "encode_image", "tiny_decode")
# A picture in 20 Euler steps with guidance, by the compiler's count of the programs here.
PUBLISHED_TFLOP = 302.7


@dataclass(frozen=True)
class Chip:
    """One chip, by Google's figures.

    Attributes:
        accelerator: its name in Google Cloud's types of accelerators.
        tflops: bfloat16 TFLOP/s of its matrix units.
        bandwidth: GB/s between HBM and the chip.
        published: pictures a second of runs that others published, in 20 Euler steps with guidance.
    """

    accelerator: str
    tflops: float
    bandwidth: float
    published: tuple[float, ...]

    @property
    def share(self) -> float:
        """The share of the peak rate that the published runs reached, on average."""
        return sum(self.published) / len(self.published) * PUBLISHED_TFLOP / self.tflops

    def bound_ms(self, program: Mapping[str, float]) -> float:
        """Return the least milliseconds of a run: of its products, or of its arguments' bytes."""
        moved_gb = (program["arguments_mb"] + program["outputs_mb"]) / 1e3
        return 1e3 * max(program["tflop"] / self.tflops, moved_gb / self.bandwidth)


# MLPerf Inference's results of Google (v4.1, SDXL offline), and https://huggingface.co/blog/sdxl_jax:
# four pictures in 2.33 s on four chips.
CHIPS = {
    "v5e": Chip("v5litepod", tflops=197, bandwidth=819, published=(0.438, 1 / 2.33)),
    "v6e": Chip("v6e", tflops=918, bandwidth=1640, published=(1.36,)),
}


def main() -> None:
    """Compile, analyse and record, one topology after another."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tpu", description=__doc__)
    parser.add_argument("topologies", nargs="*", default=TOPOLOGIES)
    parser.add_argument("--one-picture", action="store_true", help="which all chips draw together")
    parser.add_argument("--control", action="store_true", help="only what a ControlNet adds")
    options = parser.parse_args()
    modes = [mode for mode in ("one_picture", "control") if getattr(options, mode)]
    for topology in options.topologies:
        report = {**record.head("benchmarks.tpu"), **analyse(topology, *modes)}
        name = "-".join(["tpu", topology, *modes]).replace("_", "-")
        print(json.dumps(report, indent=2), record.save(name, report), sep="\n", flush=True)


def analyse(topology: str, *modes: str) -> dict[str, Any]:
    """Compile all programs for a topology such as v5e:2x2, and return the report."""
    devices = describe(topology)
    images, per_picture = (1, len(devices)) if "one_picture" in modes else (IMAGES, 1)
    mesh = make_mesh(devices, images, per_picture)
    config, dtype = read_with_tiny_vae(), jnp.dtype(jnp.bfloat16)
    target = Target(config, dtype, mesh, Shapes(images, SIDE, SIDE), controls="control" in modes)
    if target.controls:
        target = target.guided_by(controlnet_of(config.networks["unet"]))
    compiled = compile_missing(target, trace_networks(target.config, dtype))
    chip = CHIPS[topology.partition(":")[0]]
    # A step predicts both halves of guidance in a loop, of which the compiler counts one turn.
    runs: dict[str, int] = dict.fromkeys((STEP, "control"), 2 // mesh.shape["guidance"])
    programs = {}
    for name, built in compiled.items():
        program = sizes(built.executable)
        programs[name] = {
            "compile_seconds": round(built.seconds, 1),
            **program,
            "bound_ms": round(runs.get(name, 1) * chip.bound_ms(program), 3),
        }
    report = {
        "topology": topology,
        "layout": dict(mesh.shape),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "programs": programs,
        "published_share": round(chip.share, 3),
    }
    if target.controls:
        return report
    bound = request_seconds(programs)
    return {
        **report,
        "chip_gb": chip_gb(programs),
        "request": {"bound": round(bound, 3), "estimate": round(bound / chip.share, 3)},
    }


def describe(topology: str) -> list[jax.Device]:
    """Return the chips of a topology such as v5e:2x2."""
    kind, sides = topology.split(":")
    chips = math.prod(map(int, sides.split("x")))
    # Without these variables libtpu asks the machine about the TPU that it is part of, and only one
    # process at a time can load it.
    os.environ |= {
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
        "TPU_ACCELERATOR_TYPE": f"{CHIPS[kind].accelerator}-{chips}",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
    }
    jax.config.update("jax_platforms", "cpu")
    return list(topologies.get_topology_desc(topology, platform="tpu").devices)


def sizes(executable: jax.stages.Compiled) -> dict[str, float]:
    """Return what one chip computes, reads and writes in a program, and the memory that it takes.

    A loop whose length is data counts as one turn. Bytes are also those that stay on the chip.
    """
    costs, memory = executable.cost_analysis(), executable.memory_analysis()
    assert costs is not None
    assert memory is not None
    megabytes = {
        "code_mb": memory.generated_code_size_in_bytes,
        "arguments_mb": memory.argument_size_in_bytes,
        "outputs_mb": memory.output_size_in_bytes,
        "temporaries_mb": memory.temp_size_in_bytes,
    }
    return {
        "tflop": round(costs.get("flops", 0.0) / 1e12, 4),
        "accessed_gb": round(costs.get("bytes accessed", 0.0) / 1e9, 3),
        **{name: round(size / 1e6, 1) for name, size in megabytes.items()},
    }


def chip_gb(programs: Mapping[str, Mapping[str, float]]) -> float:
    """Return the gigabytes of a chip: all weights, all code and the largest temporaries."""
    weights = sum(programs[name]["arguments_mb"] for name in WITH_WEIGHTS)
    code = sum(program["code_mb"] for program in programs.values())
    temporaries = max(program["temporaries_mb"] for program in programs.values())
    return round((weights + code + temporaries) / 1e3, 2)


def request_seconds(programs: Mapping[str, Mapping[str, float]]) -> float:
    """Return the least seconds of a request: the prompt, all steps and the pictures."""
    names = (*ENCODE, *[STEP] * STEPS, DECODE)
    return sum(programs[name]["bound_ms"] for name in names) / 1e3


if __name__ == "__main__":
    main()
