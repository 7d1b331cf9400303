"""Count statements, and compare them with their ceilings: `python -m tools.statements`.

A statement is one of Python's own `ast.stmt`, docstrings left out, so neither comments nor layout
count. `pyproject.toml` has the ceiling of each package; a ceiling rises only in a commit of its own
that says what a user gained.
"""

import ast
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def count(source: str) -> int:
    """Count the statements of a program's text."""
    nodes = list(ast.walk(ast.parse(source)))
    documented_nodes = [node for node in nodes if isinstance(node, DOCUMENTED)]
    docstrings = sum(ast.get_docstring(node, clean=False) is not None for node in documented_nodes)
    return sum(isinstance(node, ast.stmt) for node in nodes) - docstrings


def count_package(folder: Path) -> int:
    """Count the statements of all programs in a folder."""
    return sum(count(file.read_text(encoding="utf-8")) for file in folder.rglob("*.py"))


def main() -> None:
    """Print each package's statements and ceiling; fail if one is above its ceiling."""
    ceilings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["statements"]
    excesses = []
    for name, ceiling in ceilings.items():
        statements = count_package(ROOT / name)
        print(f"{name:12} {statements:6} statements of at most {ceiling}")
        if statements > ceiling:
            excesses.append(f"{name} has {statements - ceiling} statements too many")
    sys.exit("; ".join(excesses) or 0)


if __name__ == "__main__":
    main()
