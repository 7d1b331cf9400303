"""The tables of figures in the documents, made from the records in benchmarks/results.

    python -m tools.benchmark_docs

A document has `<!-- figures: NAME -->` before a table and `<!-- end of figures -->` after it. This
program makes everything between the two anew, and the plots.
"""

import os.path
import re
from pathlib import Path

from tools import benchmark_lines, benchmark_plot
from tools.benchmark_tables import RECORDS, ROOT, TABLES

PAGES = (
    ROOT / "README.md",
    ROOT / "docs" / "benchmarks.md",
    ROOT / "docs" / "coming-from-flax.md",
    ROOT / "docs" / "fleet.md",
    ROOT / "benchmarks" / "experiments.md",
)
PLOTS = {
    ROOT / "docs" / "benchmarks.svg": benchmark_plot.svg,
    ROOT / "docs" / "steps.svg": benchmark_lines.steps_svg,
    ROOT / "docs" / "clients.svg": benchmark_lines.clients_svg,
}
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
    """Write the tables of all pages, and the plots."""
    for page in PAGES:
        page.write_text(filled(page.read_text("utf-8"), page.parent), "utf-8")
    for file, svg in PLOTS.items():
        file.write_text(svg(), "utf-8")


if __name__ == "__main__":
    main()
