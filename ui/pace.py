"""How much longer a drawing takes, judged by how long its steps have taken."""

import time
from collections.abc import Callable

# Before so many steps were seen a guess would be a poor one.
_SEEN = 2


class Pace:
    """The steps of one request, from whenever somebody began to watch."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[int, float] | None = None

    def left_s(self, done: int, total: int) -> float | None:
        """Seconds until the last step, now that so many are done; None while nobody can know."""
        now = self._clock()
        if self._first is None or done < self._first[0]:
            self._first = done, now
        first, then = self._first
        return None if done - first < _SEEN else (now - then) / (done - first) * (total - done)
