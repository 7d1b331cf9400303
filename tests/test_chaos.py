"""The quick form of `make chaos`."""

import asyncio
from pathlib import Path

from benchmarks import chaos


def test_nothing_is_lost_and_nothing_comes_twice(tmp_path: Path):
    toll = asyncio.run(chaos.run(chaos.Plan(requests=30, kills=1, stops_s=(1.0,)), tmp_path))
    report = toll.report()
    assert not report["wrong"], report
    assert (report["lost"], report["duplicated"]) == (0, 0)
    assert report["mishaps"]["killed"] >= 1
    assert report["begun_again"] > 0
