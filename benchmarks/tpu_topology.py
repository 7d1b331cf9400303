"""TPU topologies to compile for without a TPU.

Import this before JAX: it sets the environment.
"""

import importlib.metadata
import math
import os

# Without these variables libtpu asks the machine about the TPU it is part of, and only one process
# at a time can load it.
os.environ |= {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}

import jax
from jax.experimental import topologies


def describe(topology: str) -> list[jax.Device]:
    """Return the chips of a topology such as v5e:2x2."""
    kind, sides = topology.split(":")
    chips = math.prod(map(int, sides.split("x")))
    name = {"v5e": "v5litepod"}.get(kind, kind)
    os.environ["TPU_ACCELERATOR_TYPE"] = f"{name}-{chips}"
    return list(topologies.get_topology_desc(topology, platform="tpu").devices)


def versions() -> dict[str, str]:
    """Return the versions of the packages that this project compiles with."""
    packages = ("flax", "jax", "jaxlib", "libtpu")
    return {name: importlib.metadata.version(name) for name in packages}


def megabytes(executable: jax.stages.Compiled) -> dict[str, float]:
    """Return what a program occupies of one chip's HBM, in megabytes."""
    memory = executable.memory_analysis()
    assert memory is not None
    sizes = {
        "code": memory.generated_code_size_in_bytes,
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
    }
    return {f"{name}_mb": round(size / 1e6, 1) for name, size in sizes.items()}
