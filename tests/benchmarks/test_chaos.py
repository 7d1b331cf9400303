"""The quick form of `make chaos`."""

import asyncio
from pathlib import Path

import pytest

from benchmarks import chaos
from benchmarks.visitors import Moment, Visit, many_connections, visit
from tests.web import serve

pytestmark = pytest.mark.slow  # kills processes for half a minute


def test_nothing_is_lost_and_nothing_comes_twice(tmp_path: Path):
    toll = asyncio.run(chaos.run(chaos.Plan(requests=30, kills=1, stops_s=(1.0,)), tmp_path))
    report = toll.report()
    assert not report["wrong"], report
    assert (report["lost"], report["duplicated"]) == (0, 0)
    assert report["mishaps"]["killed"] >= 1
    assert report["begun_again"] > 0


@pytest.mark.parametrize(
    ("made", "wrong"),
    [
        (Visit("cancelled", changed_at="queued", stopped_s=0.01), []),
        (Visit("done", changed_at="queued", stopped_s=0.01), ["3 of 3"]),
        (Visit("done", changed_at="step", drawn=0.1, stopped_s=0.05), ["3 of 3"]),
        (Visit("done", changed_at="step", drawn=0.1, stopped_s=0.5), []),  # answered too late
        (Visit("done", changed_at="step", drawn=0.9, stopped_s=0.05), []),  # stopped too late
        (Visit("done", changed_at="started"), []),  # the stop was never confirmed
    ],
)
def test_a_stopped_visit_is_not_counted_as_done(made: Visit, wrong: list[str]):
    toll = chaos.Toll(visits=[("cancels", made)] * 3)
    chaos.judge_stops(toll)
    assert toll.wrong == [f"{how_many} that were stopped in time are done" for how_many in wrong]


def test_the_moment_of_a_stop_is_recorded():
    async def stop(at: Moment) -> Visit:
        async with many_connections() as client:
            return await visit(client, site.url, {"prompt": "a red star"}, cancel_at=at)

    with serve(held=True) as site:
        site.pipe.let_step()
        early = asyncio.run(stop(Moment("step")))
        assert (early.outcome, early.changed_at, early.drawn) == ("cancelled", "step", 1 / 4)
        assert early.stopped_s is not None
        site.pipe.let_all()
        late = asyncio.run(stop(Moment("done")))
        assert (late.outcome, late.drawn) == ("done", 1.0)
        assert late.stopped_s is not None
        assert late.stopped_s >= 0
        never = asyncio.run(stop(Moment("queued", 9)))
        assert (never.outcome, never.changed_at, never.stopped_s) == ("done", "", None)
