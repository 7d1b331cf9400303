"""The documents name only files and names that exist; `make lint` checks their links."""

import ast
import importlib
import re

import pytest

from pipeline.request import SETTINGS
from tests.documents import NAMES, ROOT, fences, prose, read

MOST_README_LINES = 160
# A path below one of these folders, or a file's name, in backticks.
FOLDERS = ["benchmarks", "deploy", "docs", "examples", "pipeline"]
FOLDERS += ["serving", "tests", "tools", "ui"]
_PATH = re.compile(
    rf"(?:{'|'.join(FOLDERS)})/[\w./-]*|[\w-]+\.(?:py|md|toml|yaml|service)|Makefile|Dockerfile"
)


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


def test_every_test_that_is_named_exists():
    tests = "".join(file.read_text("utf-8") for file in ROOT.glob("tests/**/test_*.py"))
    named = {test for name in NAMES for test in re.findall(r"`(test_\w+)`", read(ROOT / name))}
    assert named <= {*re.findall(r"def (test_\w+)", tests)}


def test_every_setting_of_a_request_is_described():
    assert SETTINGS.keys() <= {*re.findall(r"`(\w+)`", read(ROOT / "docs/api.md"))}


def test_the_readme_is_short():
    text = read(ROOT / "README.md")
    assert len(text.splitlines()) <= MOST_README_LINES
    assert max(len(block.splitlines()) for _, block in fences(text)) <= 10


def test_an_index_links_every_page():
    """README.md and docs/README.md do, each by the path from its own folder."""
    links = {
        (index.parent / link).resolve()
        for index in (ROOT / "README.md", ROOT / "docs/README.md")
        for link in re.findall(r"\]\(([\w./-]+)", read(index))
    }
    pages = {name for name in NAMES if name.startswith("docs/") or "/" not in name}
    assert {name for name in pages if ROOT / name not in links} <= {"README.md", "docs/README.md"}
