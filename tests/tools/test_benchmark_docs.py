"""The tables and the plots in the documents equal the records that they are made from."""

import json
import re
from pathlib import Path

import pytest

from tools import benchmark_docs, benchmark_tables

AGAIN = "run .venv/bin/python -m tools.benchmark_docs"


@pytest.mark.parametrize("page", benchmark_docs.PAGES, ids=lambda page: page.name)
def test_tables_equal_their_records(page: Path):
    text = page.read_text("utf-8")
    assert text == benchmark_docs.filled(text, page.parent), AGAIN
    assert "RECORDS/" not in text


@pytest.mark.parametrize("file", benchmark_docs.PLOTS, ids=lambda file: file.name)
def test_plots_equal_their_records(file: Path):
    assert file.read_text("utf-8") == benchmark_docs.PLOTS[file](), AGAIN


def test_every_table_is_shown_once():
    texts = "".join(page.read_text("utf-8") for page in benchmark_docs.PAGES)
    shown = re.findall(r"<!-- figures: ([\w-]+) -->", texts)
    assert sorted(shown) == sorted(benchmark_tables.TABLES)
    assert texts.count("<!-- end of figures -->") == len(shown)


def test_a_changed_figure_is_found(tmp_path: Path):
    page = benchmark_docs.ROOT / "docs" / "benchmarks.md"
    text = page.read_text("utf-8")
    [seconds] = re.findall(r"the page answers \| ([\d.]+) s", text)
    changed = text.replace(f"answers | {seconds} s", "answers | 0.1 s")
    assert changed != text
    assert benchmark_docs.filled(changed, page.parent) == text


def test_a_figure_that_was_not_measured_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "one.json").write_text(json.dumps({"a": {"seconds": [1.234]}}))
    monkeypatch.setattr(benchmark_tables, "RECORDS", tmp_path)
    benchmark_tables.record.cache_clear()
    assert benchmark_tables.figure("one", "a/seconds/0", ".1f") == "1.2"
    assert benchmark_tables.figure("one", "b/seconds/0", ".1f") == ""


def test_the_estimate_of_a_request_is_the_records():
    counts = benchmark_tables.value(benchmark_tables.TPU["v5e-4"], "request_seconds")
    low, high = benchmark_tables.estimate()
    assert (round(low, 3), round(high, 3)) == (counts["least"], counts["compiler"])
    unguided, _ = benchmark_tables.estimate(program="step, unguided")
    assert unguided < low < high


def test_a_range_without_its_record_is_left_out():
    name = benchmark_tables.TPU["v5e-4"]
    assert benchmark_tables.span(name, "request_seconds", "s", 1, 1).endswith(" s")
    assert benchmark_tables.span(name, "no such program", "s", 1, 1) == ""


def test_the_seconds_of_one_picture_follow_from_the_chips() -> None:
    counts = benchmark_tables.value(benchmark_tables.TPU["v5e-4"], "request_seconds")
    one, two, four = map(benchmark_tables.picture_seconds, (1, 2, 4))
    right = counts["least"], counts["compiler"]
    assert one == pytest.approx(right, rel=1e-3)
    for bound in range(2):
        assert one[bound] / 4 < four[bound] < two[bound] < one[bound]
