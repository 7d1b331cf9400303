"""The figures in the documents equal the records that they are made from."""

import re
from pathlib import Path

import pytest

from tools import figures


@pytest.mark.parametrize("page", figures.PAGES, ids=lambda page: page.name)
def test_tables_equal_their_records(page: Path):
    again = "run .venv/bin/python -m tools.figures"
    assert page.read_text("utf-8") == figures.fill(page), again


def test_benchmarks_md_has_every_table_once():
    text = figures.PAGES[1].read_text("utf-8")
    assert sorted(re.findall("<!-- figures: (.*) -->", text)) == sorted(figures.TABLES)
    assert text.count("<!-- end of figures -->") == len(figures.TABLES)


@pytest.mark.parametrize("name", figures.TABLES)
def test_every_row_and_column_has_a_figure(name: str):
    lines = [line for line in figures.write(name, figures.PAGES[1]).splitlines() if "|" in line]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    assert len(rows) >= len(figures.TABLES[name].rows)
    assert all(any(row[column] for row in rows) for column in range(len(rows[0])))


def test_a_changed_figure_is_mended(tmp_path: Path):
    text = figures.PAGES[1].read_text("utf-8")
    page = tmp_path / "benchmarks.md"
    page.write_text(re.sub(r"\| miniature \| [\d.]+ s", "| miniature | 0.1 s", text))
    assert page.read_text() != text
    assert "| 0.1 s" not in figures.fill(page)
