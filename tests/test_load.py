"""What the load measurement compares with."""

import pytest

from benchmarks.load import PLACES, SERVICE_S, ideal_latencies
from benchmarks.visitors import percentiles


def test_an_ideal_server_only_draws():
    assert ideal_latencies([0.0, 100.0]) == pytest.approx([SERVICE_S, SERVICE_S])
    assert ideal_latencies([0.0, SERVICE_S / 2]) == pytest.approx([SERVICE_S, 1.5 * SERVICE_S])


def test_an_ideal_server_refuses_when_its_places_are_taken():
    at_once = ideal_latencies([0.0] * (PLACES + 5))
    assert at_once == pytest.approx([SERVICE_S * (i + 1) for i in range(PLACES + 1)])


def test_percentiles():
    assert percentiles([i / 1000 for i in range(100, 0, -1)]) == {"p50": 51, "p95": 96, "p99": 100}
    assert percentiles([]) == {}
