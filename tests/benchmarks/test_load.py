"""The ideal server that the load measurement compares with, and a quick load measurement."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.load import (
    MAX_WAITING,
    PLACES,
    SERVICE_S,
    STEP_MS,
    STEPS,
    ideal_latencies,
    under_load,
)
from benchmarks.processes import stand_in
from benchmarks.visitors import percentiles
from serving.generator import Request, RequestError
from serving.metrics import Observer
from serving.requests.registry import Limits
from tests.fake_pipeline import FakePipeline
from tests.generators import local_generator
from tests.web import served

pytestmark = pytest.mark.slow  # sends three times the load


def test_an_ideal_server_only_draws():
    assert ideal_latencies([0.0, 100.0]) == pytest.approx({0: SERVICE_S, 1: SERVICE_S})
    half = SERVICE_S / 2
    assert ideal_latencies([0.0, half]) == pytest.approx({0: SERVICE_S, 1: 3 * half})


def test_an_ideal_server_refuses_when_its_places_are_taken():
    at_once = ideal_latencies([0.0] * (PLACES + 5))
    assert at_once == pytest.approx({i: SERVICE_S * (i + 1) for i in range(PLACES + 1)})


def test_one_visitor_finds_all_the_places():
    async def taken_in() -> int:
        pipe = FakePipeline(held=True)
        limits = Limits(max_waiting=MAX_WAITING)
        generator = local_generator(pipe.as_pipeline(), limits, Observer())
        for _ in range(2 * PLACES):
            try:
                await generator.submit(Request("a", None, 5.0, 4, seed=7))
            except RequestError:
                break
        waiting = generator.load.waiting
        pipe.let_all()
        await generator.close(0)
        return waiting

    assert asyncio.run(taken_in()) == PLACES


def test_percentiles():
    assert percentiles([i / 1000 for i in range(100, 0, -1)]) == {"p50": 51, "p95": 96, "p99": 100}
    assert percentiles([]) == {}


def test_under_three_times_the_load_each_is_drawn_or_refused(tmp_path: Path):
    program = stand_in(STEP_MS, "--steps", str(STEPS), "--max-waiting", "2")
    with served(program, tmp_path / "log") as url:
        found = asyncio.run(under_load(url, 3.0, 4))
    assert found["outcomes"].keys() == {"done", "refused: full"}
    assert sum(found["outcomes"].values()) == found["arrivals"]
