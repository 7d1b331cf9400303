"""Estimates of the time left for a drawing."""

from serving.requests.eta import TimeLeft


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def told(steps: list[tuple[int, float]], total: int = 10) -> list[float | None]:
    """Return the estimate in seconds after each `(steps done, time in seconds)` pair."""
    clock = Clock()
    time_left = TimeLeft(clock)
    said = []
    for done, seconds in steps:
        clock.now = 100.0 + seconds
        said.append(time_left.after(done, total))
    return said


def test_an_estimate_is_made_from_the_first_step_on():
    assert told([(1, 0.0), (2, 2.0), (3, 4.0), (5, 8.0), (10, 18.0)]) == [None, None, 14, 10, 0]


def test_a_late_follower_gets_an_estimate_from_the_steps_left():
    assert told([(6, 50.0), (7, 51.0), (8, 52.0)]) == [None, None, 2]


def test_a_retry_restarts_the_estimate():
    assert told([(5, 0.0), (7, 2.0), (1, 9.0), (3, 10.0)]) == [None, 3, None, 3.5]
