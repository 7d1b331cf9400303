"""GPU measurements; at small sizes they run on a CPU, and only their figures need a GPU."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import apart
from benchmarks.gpu import PARTS, rates, runs
from benchmarks.gpu_profile import kind
from benchmarks.processes import ROOT
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


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "attention"),
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32", "convolution"),
        ("cudnn::ops::nchwToNhwcKernel<__nv_bfloat16>", "copy and layout"),
        ("sm80_xmma_fprop_implicit_gemm_bf16_nhwckrsc_nhwc_tilesize128x128", "convolution"),
        ("nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_NNT", "matrix product"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int>", "matrix product"),
        ("gemm_fusion_dot_12", "matrix product"),
        ("input_reduce_fusion_12", "reduction"),
        ("input_convert_reduce_fusion_3", "reduction"),
        ("triton_softmax_7", "reduction"),
        ("loop_convert_fusion_5", "element by element"),
        ("wrapped_convert", "element by element"),
        ("loop_add_fusion", "element by element"),
        ("random_normal_fusion", "element by element"),
        ("loop_transpose_fusion", "copy and layout"),
        ("MemcpyD2D", "copy and layout"),
        ("something_else", "other"),
    ],
)
def test_kernels_are_classed_by_their_names(kernel: str, expected: str) -> None:
    assert kind(kernel) == expected


def test_rates_of_the_job() -> None:
    job = argparse.Namespace(pixels=1024, steps=25)
    found = rates({"request_seconds": 2.0, "matmul_tflops": 788.0}, job)
    assert found == {"tflops": 697.0, "share_of_matmul_rate": 0.885}
    assert rates({"request_seconds": 2.0}, argparse.Namespace(pixels=512, steps=25)) == {}
    assert rates({"failed": "out of memory"}, job) == {}


def test_every_part_has_processes() -> None:
    options = argparse.Namespace(pixels=1024, steps=25, repeats=3, cache=Path("kept"))
    for part in PARTS:
        modules = {run.module for run in runs(part, options, Path("configs"), Path("profile"))}
        assert all((ROOT / f"{module.replace('.', '/')}.py").exists() for module in modules)
        assert modules


def test_figures_come_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = "print('[1]', flush=True)\nprint('[2]', flush=True)\n"
    wait = "import threading\nthreading.Event().wait()"
    (tmp_path / "endless.py").write_text(told + wait)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    figures = apart.stream("endless", (), sys.executable, 600)
    assert [next(figures), next(figures)] == [[1], [2]]
    figures.close()  # type: ignore[attr-defined]


def test_a_process_is_ended_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "endless.py").write_text("import threading\nthreading.Event().wait()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(subprocess.TimeoutExpired):
        list(apart.stream("endless", (), sys.executable, 0))


def test_a_failed_process_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text("raise SystemExit(3)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(subprocess.CalledProcessError, match="status 3"):
        list(apart.stream("broken", (), sys.executable, 60))


def test_other_packages_are_not_imported(tmp_path: Path) -> None:
    """Only the parts with other libraries need more than a machine with a GPU has."""
    program = "import benchmarks.gpu, benchmarks.gpu_first, benchmarks.draw_ours"
    for also, status in ((program, 0), ("import gradio", 1), ("import diffusers", 1)):
        done = subprocess.run(
            [sys.executable, "-c", also], cwd=ROOT, env=bare(tmp_path), capture_output=True
        )
        assert done.returncode == status, done.stderr.decode()


@pytest.mark.rare
def test_the_first_part_runs_with_few_packages(tmp_path: Path) -> None:
    small = "--pixels", "32", "--steps", "2", "--repeats", "1", "--configs", str(SMALLEST)
    places = "--cache", str(tmp_path / "cache"), "--results", str(tmp_path / "results")
    with compiling.quickly():
        subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu", "first", *small, *places],
            cwd=ROOT,
            env=bare(tmp_path),
            check=True,
        )
    (file,) = (tmp_path / "results").iterdir()
    figures = json.loads(file.read_text())["figures"]
    assert {"copy_gb_per_second", "matmul_tflops", "transformer 64"} <= figures["device"].keys()
    for run in ("smoke", "ours"):
        assert {"step_seconds", "request_seconds", "decode_seconds"} <= figures[run].keys()
    assert not figures["ours"]["compile_seconds"]  # they are the smoke's programs
