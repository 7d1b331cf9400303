"""The documents name only files and names that exist; `make lint` checks their links."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "benchmarks" / "README.md",
    ROOT / "benchmarks" / "experiments.md",
    ROOT / "ui" / "gradio_compat" / "README.md",
]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
MOST_README_LINES = 160
# A path below one of these folders, or a file's name, in backticks.
FOLDERS = ["benchmarks", "deploy", "docs", "examples", "pipeline"]
FOLDERS += ["serving", "tests", "tools", "ui"]
_PATH = re.compile(
    rf"(?:{'|'.join(FOLDERS)})/[\w./-]*|[\w-]+\.(?:py|md|toml|yaml|service)|Makefile|Dockerfile"
)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def prose(text: str) -> str:
    """Return a page without its blocks of code."""
    return _FENCE.sub("", text)


def fences(text: str) -> list[tuple[str, str]]:
    """Return the language and the text of every block of code."""
    return _FENCE.findall(text)


def spans(text: str) -> list[str]:
    """Return every text in backticks."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(text))]


def read(page: Path) -> str:
    return page.read_text("utf-8") if page.suffix == ".md" and page.exists() else ""


@pytest.mark.parametrize("name", NAMES)
def test_every_path_exists(name: str):
    page = ROOT / name
    paths = filter(_PATH.fullmatch, re.findall(r"`([^`\n]+)`", prose(read(page))))
    places = ROOT, page.parent, ROOT / "tests" / page.parent.relative_to(ROOT)
    assert [path for path in paths if not any((each / path).exists() for each in places)] == []


@pytest.mark.parametrize("name", NAMES)
def test_python_examples_import_names_that_exist(name: str):
    for language, block in fences(read(ROOT / name)):
        nodes = ast.walk(ast.parse(block)) if language == "python" else ()
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(node.module or "")
                assert all(hasattr(module, alias.name) for alias in node.names)


def test_the_readme_is_short():
    assert len(read(ROOT / "README.md").splitlines()) <= MOST_README_LINES


def test_the_readme_links_every_page():
    text = read(ROOT / "README.md")
    top = [name for name in NAMES if name.startswith("docs/") or "/" not in name]
    assert {name for name in top if f"]({name}" not in text} == {"README.md"}
