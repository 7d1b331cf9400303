"""`make bench-tpu`: full-size SDXL base for TPUs, by analysis; no TPU is needed.

Compiles `encode`, `step` and `decode` for each topology through libtpu, and estimates the time
of a step and of a request from the compiled programs. Writes results/<date>-tpu-<topology>.json and
prints it as tables; benchmarks/experiments.md explains the method.
"""

import argparse
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import apart, record
from benchmarks.processes import ROOT
from benchmarks.roofline import CHIPS, Estimate, whole_and_loop, with_loops

INCUMBENT = ROOT / ".venv-incumbent/bin/python"
TOPOLOGIES = ("v5e:2x2", "v5e:2x4", "v6e:2x2")
STEPS = 25
STEP = ", a step"
GUIDED, PLAIN = "step", "step, unguided"
# The parts of a request: a program, and the lengths of its loops over pictures and their halves.
PARTS = {
    "encode": ("encode", (1,)),
    "noise": ("noise", ()),
    "enter": ("enter", ()),
    GUIDED: ("step", (1, 2)),
    PLAIN: ("step", (1, 1)),
    "decode": ("decode", (1,)),
}


def main() -> None:
    """Compile, estimate and record, one topology after another."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tpu", description=__doc__)
    parser.add_argument("topologies", nargs="*", default=TOPOLOGIES)
    for topology in parser.parse_args().topologies:
        with tempfile.TemporaryDirectory() as folder:
            report = measure(topology, Path(folder))
        file = record.save(f"tpu-{topology}", report)
        print(table(report), file, sep="\n", flush=True)


def measure(topology: str, folder: Path) -> dict[str, Any]:
    """Estimate this project and the incumbent for one topology; programs are left in `folder`."""
    ours, theirs = folder / "ours", folder / "incumbent"
    compiled = apart.run("benchmarks.tpu_compile", ["--topology", topology, "--out", str(ours)])
    kernels = attention_kernels(topology, folder)
    compiled |= our_estimates(topology, ours, kernels)
    incumbent = apart.run(
        "benchmarks.tpu_incumbent",
        ["--topology", topology, "--out", str(theirs)],
        INCUMBENT,
        TPU_LIBRARY_PATH=import_module("libtpu").get_library_path(),
    )
    incumbent |= estimates(topology, theirs)
    times = {
        kind: round(incumbent["request_seconds"][kind] / seconds, 2)
        for kind, seconds in compiled["request_seconds"].items()
    }
    head = record.head("benchmarks.tpu")
    return {**head, **compiled, "incumbent": incumbent, "incumbent_takes_times": times}


def our_estimates(topology: str, folder: Path, kernels: dict[float, float]) -> dict[str, Any]:
    """Estimate this project's programs in a folder, for one picture on each chip.

    Returns:
        The seconds of a request, and the microseconds of each program by class.
    """
    chip = CHIPS[topology.partition(":")[0]]
    parts = {
        name: with_loops((folder / f"{program}.hlo").read_text(), chip, kernels, lengths)
        for name, (program, lengths) in PARTS.items()
    }
    return _report(parts, {name: STEPS if name == GUIDED else 1 for name in parts if name != PLAIN})


def estimates(topology: str, folder: Path) -> dict[str, Any]:
    """Estimate the incumbent's programs in a folder, whose loops are its steps.

    Returns:
        The seconds of a request, and the microseconds of each program and of its step, by class.
    """
    chip = CHIPS[topology.partition(":")[0]]
    parts: dict[str, Estimate] = {}
    for file in sorted(folder.glob("*.hlo")):
        once, step = whole_and_loop(file.read_text(), chip, {})
        parts[file.stem] = once
        if step is not None:
            parts[f"{file.stem}{STEP}"] = step
    return _report(parts, {name: STEPS if name.endswith(STEP) else 1 for name in parts})


def _report(parts: dict[str, Estimate], times: dict[str, int]) -> dict[str, Any]:
    """Return the estimates of programs, and of a request that runs them so many times."""
    request = {
        kind: round(sum(getattr(parts[n], kind) * t for n, t in times.items()) / 1e6, 3)
        for kind in ("least", "compiler")
    }
    return {
        "request_seconds": request,
        "microseconds": {name: part.as_json() for name, part in parts.items()},
    }


def attention_kernels(topology: str, folder: Path) -> dict[float, float]:
    """Return the cycles of each attention kernel, by the FLOPs that it declares."""
    dump = folder / "llo"
    arguments = ["--topology", topology, "--dump", str(dump)]
    flags = f"--xla_jf_dump_to={dump} --xla_jf_dump_llo_text=true"
    found = apart.run("benchmarks.tpu_kernels", arguments, LIBTPU_INIT_ARGS=flags)
    return dict(found)


def table(report: dict[str, Any]) -> str:
    """Format a report for a reader: sizes, times, and the parts of a step's time."""
    lines = [f"\n{report['topology']}, layout {report['layout']}, {report['versions']}"]
    for name, sizes in report["programs"].items():
        lines.append(f"  {name:8} " + ", ".join(f"{key} {value}" for key, value in sizes.items()))
    request = report["request_seconds"]
    lines.append(f"  a request: at least {request['least']} s, compiler {request['compiler']} s")
    for name, part in report["microseconds"].items():
        lines.append(f"  {name}: at least {part['least']} us, compiler {part['compiler']} us")
        for kind, row in part["classes"].items():
            lines.append(f"    {kind:28} " + _cells(row))
    old = report["incumbent"]["request_seconds"]
    lines.append(f"  the incumbent: at least {old['least']} s, compiler {old['compiler']} s")
    return "\n".join(lines)


def _cells(row: dict[str, float]) -> str:
    return (
        f"{row['operations']:6.0f} ops {row['gflop']:9.1f} GFLOP {row['megabytes']:9.1f} MB"
        f" {row['least']:9.1f} us {row['compiler']:9.1f} us"
    )


if __name__ == "__main__":
    main()
