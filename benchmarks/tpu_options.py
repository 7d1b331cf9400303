"""The effect of libtpu's options on single layers of SDXL: minutes for each option.

    .venv-tpu/bin/python -m benchmarks.tpu_options --topology v5e:2x2

Compiles the layers of `benchmarks.tpu_blocks` with the compiler's defaults, then with one option
changed at a time. Prints a row for each, and writes results/<date>-tpu-<topology>-options.json.
"""

import argparse
import time
from typing import Any

from benchmarks.tpu_topology import describe, versions  # first: it sets the environment

# isort: split

import jax
from jax.sharding import SingleDeviceSharding

from benchmarks import record
from benchmarks.roofline import CHIPS, Chip, estimate
from benchmarks.tpu_blocks import BLOCKS, program
from pipeline.platforms import CompilerOptions

SCOPED_VMEM = "xla_tpu_scoped_vmem_limit_kib"
OPTIONS: list[tuple[str, str | bool]] = [
    *((SCOPED_VMEM, str(1024 * mib)) for mib in (32, 64, 96)),
    # Options in recipes for language models.
    ("xla_tpu_rwb_fusion", False),
    ("xla_tpu_dot_dot_fusion_duplicated", True),
    ("xla_tpu_dot_dot_fusion", False),
    # Options that may keep more of a convolution's or a product's arrays in fast memory.
    ("xla_jf_tune_large_vmem", True),
    ("xla_jf_conv_prefers_padding_input_feature", True),
    ("xla_jf_conv_reshape_fusion", True),
    ("xla_tpu_allow_conv_input_fusion_with_downcast_convert", True),
    # Options that may fuse more, or choose better layouts.
    ("xla_tpu_enable_experimental_fusion_cost_model", True),
    ("xla_tpu_enable_aggressive_loop_fusion_layout_opt", True),
    ("xla_tpu_enable_multi_level_nested_loop_fusion", True),
    ("xla_tpu_enable_large_2nd_minor_layout_for_x16", True),
    ("xla_jf_enable_advanced_multi_output_fusion", True),
    ("xla_tpu_enable_copy_fusion", True),
    # Options that may hide more of the copies.
    ("xla_tpu_enable_latency_hiding_scheduler", False),
    ("xla_tpu_enable_all_experimental_scheduler_features", True),
]


def main() -> None:
    """Compile with each option, print and record the estimates."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tpu_options")
    parser.add_argument("--topology", default="v5e:2x2")
    topology = parser.parse_args().topology
    place = SingleDeviceSharding(describe(topology)[0])
    chip = CHIPS[topology.partition(":")[0]]
    choices: dict[str, CompilerOptions] = {"defaults": {}}
    choices |= {f"{option}={value}": {option: value} for option, value in OPTIONS}
    found: dict[str, Any] = {}
    for name, choice in choices.items():
        found[name] = measure(choice, place, chip)
        print(name, found[name], flush=True)
    report = {
        **record.head("benchmarks.tpu_options"),
        "versions": versions(),
        "microseconds": found,
    }
    print(record.save(f"tpu-{topology}-options", report))


def measure(options: CompilerOptions, place: SingleDeviceSharding, chip: Chip) -> dict[str, Any]:
    """Compile every layer with `options`.

    Returns:
        Each layer's estimates in microseconds, or its error, and the seconds of compiling.
    """
    layers: dict[str, Any] = {}
    began = time.monotonic()
    for name, block in BLOCKS.items():
        try:
            found = estimate(program(*block, place, options), chip, {})
        except jax.errors.JaxRuntimeError as error:
            layers[name] = str(error).splitlines()[0]
            continue
        layers[name] = {"least": round(found.least), "compiler": round(found.compiler)}
    return {**layers, "compile_seconds": round(time.monotonic() - began)}


if __name__ == "__main__":
    main()
