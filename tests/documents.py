"""The project's documents, and their blocks of code."""

import re
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "benchmarks" / "README.md",
    ROOT / "benchmarks" / "experiments.md",
    ROOT / "examples" / "comfyui" / "README.md",
    ROOT / "ui" / "gradio_compat" / "README.md",
]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


def prose(text: str) -> str:
    """Return a page without its blocks of code."""
    return _FENCE.sub("", text)


def fences(text: str) -> list[tuple[str, str]]:
    """Return the language and the text of every block of code."""
    return [(language, dedent(block)) for _, language, block in _FENCE.findall(text)]


def spans(text: str) -> list[str]:
    """Return every text in backticks."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(text))]


def read(page: Path) -> str:
    return page.read_text("utf-8") if page.suffix == ".md" and page.exists() else ""
