"""Imports that import-linter's contracts in pyproject.toml cannot express."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# The documented parts of Gradio. Everything else may change in any release.
PUBLIC_GRADIO = {
    "gradio",
    "gradio.blocks",
    "gradio.components",
    "gradio.data_classes",
    "gradio.events",
    "gradio.themes",
}


def imported(file: Path) -> Iterator[str]:
    """Yield the modules that a file names in its imports."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("pipeline", {"app", "cli", "cluster", "tests", "tools", "benchmarks"}),
        ("serving", {"app", "cli", "cluster", "tests", "tools", "benchmarks"}),
        ("ui", {"app", "cli", "cluster", "tests", "tools", "benchmarks"}),
        ("tools", {"tests"}),
        ("benchmarks", {"tests"}),
    ],
)
def test_nothing_imports_what_is_above_it(folder: str, forbidden: set[str]):
    for file in (ROOT / folder).rglob("*.py"):
        assert not {name.partition(".")[0] for name in imported(file)} & forbidden, file


def test_gradios_internals_are_imported_in_one_package():
    for file in (ROOT / "ui").rglob("*.py"):
        if file.parent.name != "gradio_compat":
            gradios = {each for each in imported(file) if each.startswith("gradio")}
            assert gradios <= PUBLIC_GRADIO, file
