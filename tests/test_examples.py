"""The programs in examples/, run unchanged, and the notebook, executed in its own kernel."""

import base64
import io
import runpy
import sys
from operator import eq
from pathlib import Path

import jax
import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from PIL import Image

from tests import compiling
from tests.checkpoints import GOLDEN
from tools.miniature.judge import look

pytestmark = pytest.mark.slow  # compiles for each program

EXAMPLES = Path(__file__).parents[1] / "examples"
FLAX = GOLDEN / "flax/checkpoint"
SIDE = 16  # of its pictures, in pixels


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Image.Image:
    file = folder / "grid.png"
    monkeypatch.setattr(sys, "argv", [name, "--model", str(FLAX), "--out", str(file)])
    with jax.numpy_dtype_promotion("standard"):  # flax's norms promote bfloat16 to float32
        runpy.run_module(f"examples.{name}", run_name="__main__")
    return Image.open(file)


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("sdxl_article", 2, 8),
        ("one_prompt", 1, 8),
        ("many_prompts", 2, 4),
        ("map_generate", 1, 8),
    ],
)
def test_program(
    name: str, rows: int, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = run(name, tmp_path, monkeypatch)
    assert grid.size == (columns * SIDE, rows * SIDE)
    assert len({picture.tobytes() for picture in cut(grid, SIDE)}) == rows * columns


def cut(grid: Image.Image, side: int) -> list[np.ndarray]:
    """Return the pictures of a grid, row by row."""
    array = np.asarray(grid)
    rows, columns = array.shape[0] // side, array.shape[1] // side
    tiles = array.reshape(rows, side, columns, side, 3).swapaxes(1, 2)
    return list(tiles.reshape(-1, side, side, 3))


def test_every_program_is_run() -> None:
    names = {file.stem for file in EXAMPLES.glob("*.py")} - {"__init__", "notebook"}
    assert names == {"sdxl_article", "one_prompt", "many_prompts", "map_generate"}


# Background colours in the order of the notebook's prompts.
BACKGROUNDS = ("blue", "white", "purple", "black", "red", "yellow", "green", "orange")


@pytest.mark.rare  # the programs make the same calls
def test_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """On two simulated devices, the bundled miniature draws what the notebook's prompts ask for."""
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("MODEL_ID", raising=False)
    notebook = nbformat.read(EXAMPLES / "jax_guide.ipynb", as_version=4)
    with compiling.quickly():
        NotebookClient(
            notebook, timeout=None, resources={"metadata": {"path": str(EXAMPLES)}}
        ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    texts = [output.data["text/plain"] for output in outputs if "data" in output]
    assert texts.count("(2, 1, 256, 256, 3)") == 2
    grids = [png(output) for output in outputs if "image/png" in output.get("data", {})]
    assert [grid.size for grid in grids] == [(2 * 256, 256), (4 * 256, 2 * 256)]
    asked = ["blue"] * 2, BACKGROUNDS
    for grid, backgrounds in zip(grids, asked, strict=True):
        seen = [look(picture).background for picture in cut(grid, 256)]
        # The miniature gets some wrong; if the order were wrong, nearly all would be.
        assert sum(map(eq, seen, backgrounds)) >= 0.75 * len(seen), seen


def png(output: nbformat.NotebookNode) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(output.data["image/png"])))
