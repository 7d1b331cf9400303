"""`make bench-tpu`: full-size SDXL base for TPUs, by analysis; no TPU is needed.

Compiles `encode`, `condition`, `step` and `decode` for each topology through libtpu, and estimates
the time of a step and of a request from the compiled programs, with a picture in every slot. Writes
results/<date>-tpu-<topology>.json and prints it as tables; benchmarks/experiments.md explains the
method.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Container, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import apart, record
from benchmarks.processes import ROOT
from benchmarks.roofline import CHIPS, Chip, Estimate, Kernel, estimate

INCUMBENT = ROOT / ".venv-incumbent/bin/python"
TOPOLOGIES = ("v5e:2x2", "v5e:2x4", "v6e:2x2")
IMAGES = 4  # of a request, and slots of all chips together: `tpu_compile.SHAPES`
STEPS = 25


@dataclass(frozen=True)
class Part:
    """A program of a request.

    Attributes:
        program: its name.
        times: how often a request runs it.
        halves: the halves of guidance that it predicts for each picture, one after the other.
    """

    program: str
    times: int = 1
    halves: int = 1


PARTS = {
    "encode": Part("encode"),
    "condition": Part("condition"),
    "noise": Part("noise"),
    "enter": Part("enter"),
    "step": Part("step", STEPS, halves=2),
    "step, unguided": Part("step", times=0),
    # Its cheapest branches are those of an evaluation with cached deep features.
    "step, shallow": Part("step_cached", times=0, halves=2),
    "step, int8": Part("step_int8", times=0, halves=2),
    "decode": Part("decode"),
}


def main() -> None:
    """Compile, estimate and record, one topology after another."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tpu", description=__doc__)
    parser.add_argument("topologies", nargs="*", default=TOPOLOGIES)
    parser.add_argument("--programs", type=Path, help="a folder that keeps the compiled programs")
    parser.add_argument("--ours", action="store_true", help="leave out diffusers' program")
    parser.add_argument("--exact", action="store_true", help="leave out the steps of modes")
    options = parser.parse_args()
    for topology in options.topologies:
        with tempfile.TemporaryDirectory() as folder:
            programs_folder = Path(
                folder if options.programs is None else options.programs / topology
            )
            report = measure(topology, programs_folder, alone=options.ours, exact=options.exact)
        file = record.save(f"tpu-{topology}", report)
        print(table(report), file, sep="\n", flush=True)


def measure(topology: str, folder: Path, *, alone: bool, exact: bool) -> dict[str, Any]:
    """Estimate this project for one topology, and the incumbent unless it is left out.

    Programs are left in `folder`. Programs that it has already are not compiled again.

    Args:
        topology: such as v5e:2x2.
        folder: keeps the programs.
        alone: leave out the incumbent.
        exact: leave out the steps of modes that are not exact.
    """
    our_folder, their_folder = folder / "ours", folder / "incumbent"
    compiled_report = _compiled(
        our_folder, "benchmarks.tpu_compile", topology, *["--exact"] * exact
    )
    chip = CHIPS[topology.partition(":")[0]]
    pictures = IMAGES // compiled_report["layout"]["images"]
    kernels = attention_kernels(topology, folder)
    compiled_report |= our_estimates(
        our_folder, chip, kernels, pictures, compiled_report["programs"]
    )
    report = {**record.head("benchmarks.tpu"), **compiled_report}
    if alone:
        return report
    incumbent = _compiled(
        their_folder,
        "benchmarks.tpu_incumbent",
        topology,
        python=INCUMBENT,
        TPU_LIBRARY_PATH=import_module("libtpu").get_library_path(),
    )
    incumbent_estimate = estimate((their_folder / "generate.hlo").read_text(), chip, {})
    incumbent |= _report({"generate": incumbent_estimate}, {"generate": 1})
    return {**report, "incumbent": incumbent}


def _compiled(
    folder: Path,
    module: str,
    topology: str,
    *extra_arguments: str,
    python: str | Path = sys.executable,
    **environment: str,
) -> dict[str, Any]:
    """Return the report of a module that compiles into a folder, which keeps the report too."""
    report = folder / "report.json"
    if not report.exists():
        arguments = ["--topology", topology, "--out", str(folder), *extra_arguments]
        report.write_text(json.dumps(apart.run(module, arguments, python, **environment)))
    return json.loads(report.read_text())


def our_estimates(
    folder: Path,
    chip: Chip,
    kernels: Mapping[float, Kernel],
    pictures: int,
    programs: Container[str],
) -> dict[str, Any]:
    """Estimate this project's programs in a folder, with a picture in every slot.

    Args:
        folder: has the programs' HLO.
        chip: a chip, which runs the same as all others.
        kernels: the schedules of the attention kernels.
        pictures: the slots of each chip.
        programs: the names of those that are there.

    Returns:
        The seconds of a request, and the microseconds of each program.
    """
    selected_parts = {name: part for name, part in PARTS.items() if part.program in programs}
    estimates = {
        name: estimate(
            (folder / f"{part.program}.hlo").read_text(), chip, kernels, (pictures, part.halves)
        )
        for name, part in selected_parts.items()
    }
    return _report(
        estimates, {name: part.times for name, part in selected_parts.items() if part.times}
    )


def _report(estimates: dict[str, Estimate], times: dict[str, int]) -> dict[str, Any]:
    """Return the estimates of programs, and of a request that runs them so many times."""
    request = {
        kind: round(sum(getattr(estimates[n], kind) * t for n, t in times.items()) / 1e6, 3)
        for kind in ("least", "compiler", "unsure")
    }
    return {
        "request_seconds": request,
        "microseconds": {name: part.as_json() for name, part in estimates.items()},
    }


def attention_kernels(topology: str, folder: Path) -> dict[float, Kernel]:
    """Return the schedule of each attention kernel, by the FLOPs that it declares."""
    dump = folder / "llo"
    arguments = ["--topology", topology, "--dump", str(dump)]
    flags = f"--xla_jf_dump_to={dump} --xla_jf_dump_llo_text=true"
    schedules = apart.run("benchmarks.tpu_kernels", arguments, LIBTPU_INIT_ARGS=flags)
    return {flops: Kernel(cycles, idle) for flops, cycles, idle in schedules}


def table(report: dict[str, Any]) -> str:
    """Format a report for a reader: sizes and times."""
    lines = [f"\n{report['topology']}, layout {report['layout']}, {report['versions']}"]
    for name, sizes in report["programs"].items():
        lines.append(f"  {name:8} " + ", ".join(f"{key} {value}" for key, value in sizes.items()))
    request = report["request_seconds"]
    lines.append(f"  a request: at least {request['least']} s, compiler {request['compiler']} s")
    for name, part in report["microseconds"].items():
        lines.append(f"  {name}: at least {part['least']} us, compiler {part['compiler']} us")
    if "incumbent" in report:
        incumbent = report["incumbent"]["request_seconds"]
        lines.append(
            f"  the incumbent: at least {incumbent['least']} s, compiler {incumbent['compiler']} s"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
