"""Measure a tiny model; only the figures need a real device."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import measure
from benchmarks.processes import ROOT
from benchmarks.random_weights import VALUES, fill
from tests import compiling
from tests.checkpoints import SMALLEST

# The packages of a machine with a GPU and no package index, and those that they need themselves.
THERE = (
    *("jax", "jaxlib", "flax", "numpy", "PIL", "safetensors"),
    *("absl", "etils", "humanize", "importlib_resources", "markdown_it", "mdurl", "ml_dtypes"),
    *("msgpack", "nest_asyncio", "opt_einsum", "optax", "orbax", "psutil", "pygments", "rich"),
    *("scipy", "simplejson", "tensorstore", "treescope", "typing_extensions", "yaml", "zipp"),
    *("aiofiles", "google", "jaxtyping", "wadler_lindig", "uvloop", "anyio", "sniffio", "idna"),
)
# A program that starts refuses to import any other package of an environment.
BLOCKER = f"""
import sys
from importlib.machinery import PathFinder

class Refusal:
    def find_spec(self, name, path=None, target=None):
        if path is not None or name in {THERE!r}:
            return None
        found = PathFinder.find_spec(name)
        places = found and (found.origin or str(list(found.submodule_search_locations or [])))
        if places and "site-packages" in places:
            raise ModuleNotFoundError(f"{{name}} is not on this machine", name=name)
        return None

sys.meta_path.insert(0, Refusal())
"""


def bare(folder: Path) -> dict[str, str]:
    """Return the environment of a program on a machine that has only `THERE`."""
    (folder / "sitecustomize.py").write_text(BLOCKER)
    return {**os.environ, "PYTHONPATH": str(folder), "JAX_PLATFORMS": "cpu"}


@pytest.mark.slow
def test_a_table_and_a_record_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = ("--pixels", "32", "--images", "1", "--steps", "1", "--repeats", "2")
    monkeypatch.setitem(measure.JOB, False, size)
    options = argparse.Namespace(
        model=str(SMALLEST), seconds=600, cache=tmp_path / "cache", results=tmp_path / "results"
    )
    with compiling.quickly():
        kept = measure.measure(options, "")
    assert kept.file is not None
    report = json.loads(kept.file.read_text())
    first, warm = (report[str(SMALLEST)][start] for start in measure.STARTS)
    assert first["compile_seconds"].keys() >= {"step", "decode"}
    assert not warm["compile_seconds"]
    assert "requests" not in warm
    low, high = first["request_seconds_range"]
    assert low <= first["request_seconds"] <= high
    assert report[str(SMALLEST)]["device"]["transformer block"]["relative_error"] < 1e-5
    assert report["priority"]
    lines = measure.table(report).splitlines()
    rows = {line.split("|")[1].strip(): line.split("|")[2].strip() for line in lines[2:]}
    assert rows[""] == str(SMALLEST)
    assert rows["pictures: 1, steps: 1"].endswith(")")
    assert {"a step", "decoding", "first start", "start with the programs kept"} <= rows.keys()
    assert {"most memory", "transformer block", "ResNet block"} <= rows.keys()


def test_parts_are_programs_of_this_project() -> None:
    for part in measure.PARTS.values():
        assert (ROOT / f"{part.module.replace('.', '/')}.py").is_file()
    assert "xla_gpu_autotune_level" in measure.PARTS


@pytest.mark.parametrize(
    ("flag", "is_known"), [("--xla_gpu_autotune_level=4", True), ("--xla_none_such=1", False)]
)
def test_an_unknown_flag_is_noticed(flag: str, is_known: bool) -> None:
    assert measure.known(flag) is is_known


def test_random_weights_are_scaled_and_the_same_in_any_dtype() -> None:
    shapes = {"bias": (64,), "kernel": (3, 3, 64, 2 * VALUES // 576)}
    wide, narrow = (
        fill({name: np.empty(shape, dtype) for name, shape in shapes.items()}, 0)
        for dtype in ("float32", "float16")
    )
    assert {name: array.shape for name, array in wide.items()} == shapes
    assert np.std(wide["kernel"]) == pytest.approx((9 * 64) ** -0.5, rel=0.01)
    np.testing.assert_allclose(wide["bias"], narrow["bias"], rtol=1e-3)


def test_other_packages_are_not_imported(tmp_path: Path) -> None:
    """Only the parts with other libraries need more than a machine with a GPU has."""
    program = "import benchmarks.measure, benchmarks.device, benchmarks.draw_ours"
    for also, status in ((program, 0), ("import gradio", 1), ("import diffusers", 1)):
        done = subprocess.run(
            [sys.executable, "-c", also], cwd=ROOT, env=bare(tmp_path), capture_output=True
        )
        assert done.returncode == status, done.stderr.decode()


@pytest.mark.rare
@pytest.mark.parametrize("module", ["device", "draw_ours"])
def test_few_packages_are_enough(tmp_path: Path, module: str) -> None:
    small = "--pixels", "32", "--steps", "2", "--repeats", "1", "--fidelity"
    with compiling.quickly():
        output = subprocess.check_output(
            [sys.executable, "-m", f"benchmarks.{module}", str(SMALLEST), *small],
            cwd=ROOT,
            env=bare(tmp_path),
        )
    last = json.loads(output.splitlines()[-1])
    names = {"device": {"copy_gb_per_second", "self-attention"}, "draw_ours": {"requests"}}
    assert names[module] <= last.keys()
