"""The model of the queue against textbooks and against a simulation."""

import heapq
import random
import sys

import pytest

from tools import fleet
from tools.fleet import Fleet


def simulated_waits(arrivals: list[float], services: list[float], replicas: int) -> list[float]:
    """Return the seconds that each request waits, from all arrival and service times."""
    free_at = [0.0] * replicas
    waits = []
    for at, service_s in zip(arrivals, services, strict=True):
        begin = max(at, heapq.heappop(free_at))
        heapq.heappush(free_at, begin + service_s)
        waits.append(begin - at)
    return waits


def poisson(arrivals: float, count: int, rng: random.Random) -> list[float]:
    """Return the random times of `count` arrivals, in seconds; `arrivals` is their rate."""
    at, times = 0.0, []
    for _ in range(count):
        at += rng.expovariate(arrivals)
        times.append(at)
    return times


def test_known_values():
    assert Fleet(0.7, 1.0, 1.0, 1).must_wait == pytest.approx(0.7)
    assert Fleet(1.0, 1.0, 1.0, 2).must_wait == pytest.approx(1 / 3)
    # One server, memoryless: P(W > t) = rho exp(-(1 - rho) t / service).
    assert Fleet(0.5, 2.0, 1.0, 1).wait_s(0.9) == float("inf")
    assert Fleet(0.25, 2.0, 1.0, 1).wait_s(0.9) == pytest.approx(6.4378, abs=1e-4)
    assert Fleet(0.25, 2.0, 1.0, 1).wait_s(0.4) == 0.0


def test_waits_of_a_schedule():
    assert simulated_waits([0, 1, 1, 9], [4, 4, 4, 4], replicas=2) == [0, 0, 3, 0]


@pytest.mark.parametrize("replicas", [1, 2, 8])
@pytest.mark.parametrize("variation", [0.0, 0.3])
@pytest.mark.parametrize("load", [0.5, 0.8, 0.9])
def test_the_model_is_near_a_simulation(load: float, replicas: int, variation: float):
    asked = Fleet(load * replicas, 1.0, variation, replicas)
    rng, count = random.Random(1), 50_000
    services = [max(0.0, rng.gauss(1.0, variation)) for _ in range(count)]
    waits = sorted(simulated_waits(poisson(asked.arrivals, count, rng), services, replicas))
    for part in (0.95, 0.99):
        waited = waits[int(part * count)]
        # Where few wait, the model is too short by at most a tenth of a drawing time.
        # Elsewhere it is rather too long.
        at_least, at_most = waited - max(0.1, 0.05 * waited), 1.25 * waited
        assert at_least < asked.wait_s(part) < at_most
    waiting = sum(wait > 0 for wait in waits) / count
    assert asked.must_wait == pytest.approx(waiting, abs=0.03)


def test_no_fewer_replicas_would_do():
    enough = Fleet(5.8, 2.9, 0.0, 1).enough(wait_s=10, part=0.95)
    assert enough.wait_s(0.95) <= 10
    assert Fleet(5.8, 2.9, 0.0, enough.replicas - 1).wait_s(0.95) > 10


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    demand = ["fleet", "--pictures-a-day", "1e6", "--request-seconds", "2.9", "--price", "4.8"]
    monkeypatch.setattr(sys, "argv", demand)
    fleet.main()
    assert "18 replicas begin 95% within 10 s at the peak" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*demand, "--part", "95"])
    with pytest.raises(SystemExit):
        fleet.main()
    assert "95 is not possible; expected a number between 0 and 1" in capsys.readouterr().err
