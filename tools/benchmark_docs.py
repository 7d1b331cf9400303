"""The tables of figures in the documents, made from the records in benchmarks/results.

    python -m tools.benchmark_docs

A document has `<!-- figures: NAME -->` before a table and `<!-- end of figures -->` after it. This
program makes everything between the two anew, and the plot of `tools/benchmark_plot.py`.
"""

import os.path
import re
from pathlib import Path

from tools import benchmark_plot
from tools.benchmark_tables import RECORDS, ROOT, TABLES

PAGES = (
    ROOT / "README.md",
    ROOT / "docs" / "benchmarks.md",
    ROOT / "docs" / "coming-from-flax.md",
    ROOT / "docs" / "fleet.md",
    ROOT / "benchmarks" / "experiments.md",
)
_BLOCK = re.compile(
    r"(?<=<!-- figures: )(?P<name>[\w-]+) -->\n.*?(?=<!-- end of figures -->)", re.DOTALL
)


def filled(text: str, folder: Path) -> str:
    """Return the text of a page in `folder` with all of its tables made anew."""

    def block(found: re.Match[str]) -> str:
        made = TABLES[found["name"]]()
        links = re.findall(r"\(RECORDS/([^)]+)\)", made)
        for link in links:
            target = os.path.relpath(RECORDS / link, folder)
            made = made.replace(f"(RECORDS/{link})", f"({target})")
        return f"{found['name']} -->\n\n{made}\n"

    return _BLOCK.sub(block, text)


def main() -> None:
    """Write the tables of all pages, and the plot."""
    for page in PAGES:
        page.write_text(filled(page.read_text("utf-8"), page.parent), "utf-8")
    benchmark_plot.FILE.write_text(benchmark_plot.svg(), "utf-8")


if __name__ == "__main__":
    main()
