"""Estimates of the duration of a request, and of the time left of one under way."""

import time
from collections.abc import Callable

# The weight of the newest request in the average.
_NEWEST = 0.3
# Steps that must have been seen before the time left is estimated.
_SEEN = 2


class Pace:
    """Moving average of the seconds that a picture takes for each evaluation of the network.

    It includes all other work for the picture, and the evaluations of the pictures beside it.
    """

    def __init__(self) -> None:
        self._evaluation_s: float | None = None

    def observe(self, evaluations: int, seconds: float) -> None:
        """Add a picture that was drawn to the end to the average."""
        evaluation_s = seconds / evaluations
        average = evaluation_s if self._evaluation_s is None else self._evaluation_s
        self._evaluation_s = average + _NEWEST * (evaluation_s - average)

    def expect(self, evaluations: float) -> float | None:
        """Return the seconds that they take; None before anything was drawn."""
        return None if self._evaluation_s is None else self._evaluation_s * evaluations


class TimeLeft:
    """Time left of one request, estimated from the steps since the first call of `after`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[int, float] | None = None

    def after(self, done: int, total: int) -> float | None:
        """Return the seconds until the last step, now that `done` are done; None while unknown."""
        now = self._clock()
        if self._first is None or done < self._first[0]:
            self._first = done, now
        first, began_at = self._first
        return None if done - first < _SEEN else (now - began_at) / (done - first) * (total - done)
